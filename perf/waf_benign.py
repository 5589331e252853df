#!/usr/bin/env python3
"""Which benign requests the Core Rule Set refuses, in Ironweir and beside it in nginx with libmodsecurity, with the same rules at paranoia 1.

perf/waf_benign.py IRONWEIR REQUESTS [--servers ironweir,nginx] [--exclusions FILE] [--count 10000]

REQUESTS is what `cargo run --example benign` (crates/waf) has written. Each request is sent to each server; said are the share that is refused, the rules that
had a part in it, and the requests on which the servers differ. Exclusions are read behind the rules, as an operator writes them.

Exit status 1: a request is refused by Ironweir and not by nginx, or without an answer.
"""
import argparse
import collections
import json
import pathlib
import re
import shutil
import socket
import struct
import sys
import tempfile

from rig import processes
from waf import MODULE, rules_folder

MAIN = """
SecRuleEngine On
SecRequestBodyAccess On
SecResponseBodyAccess Off
SecRequestBodyLimit 13107200
SecRequestBodyNoFilesLimit 131072
SecAuditEngine RelevantOnly
SecAuditLogRelevantStatus "^(?:5|4(?!04))"
SecAuditLogParts ABHZ
SecAuditLogType Serial
SecAuditLogFormat JSON
SecAuditLog {folder}/{name}-audit.log
SecRule REQUEST_HEADERS:Content-Type "^application/json" "id:200001,phase:1,t:none,t:lowercase,pass,nolog,ctl:requestBodyProcessor=JSON"
Include {folder}/crs-setup.conf
Include {crs}/*.conf
"""
CONF = """
{load} daemon off; worker_processes 1; user root; pid {folder}/{name}.pid; error_log {folder}/{name}.log error; events {{ worker_connections 1024; }}
http {{
    access_log off; keepalive_requests 100000000; keepalive_timeout 1h; client_body_buffer_size 256k; client_max_body_size 10m;
    modsecurity on; modsecurity_rules_file {folder}/{name}-main.conf;
    server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{backend}; }} }}
}}
"""


def requests(path, count):
    data, at = pathlib.Path(path).read_bytes(), 0
    while at < len(data) and count > 0:
        length = struct.unpack_from("<I", data, at)[0]
        yield data[at + 4:at + 4 + length]
        at, count = at + 4 + length, count - 1


class Client:
    """One connection that is kept as long as the server keeps it."""

    def __init__(self, port):
        self.port, self.stream, self.rest = port, None, b""

    def status(self, request):
        for _ in range(2):
            try:
                if self.stream is None:
                    self.stream, self.rest = socket.create_connection(("127.0.0.1", self.port), timeout=20), b""
                self.stream.sendall(request)
                return self.read(request.startswith(b"HEAD "))
            except OSError:
                self.close()
        return 0

    def close(self):
        if self.stream:
            self.stream.close()
        self.stream = None

    def more(self):
        data = self.stream.recv(65536)
        if not data:
            raise ConnectionError("closed")
        self.rest += data

    def read(self, is_head):
        while b"\r\n\r\n" not in self.rest:
            self.more()
        head, _, self.rest = self.rest.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        wanted = 0 if is_head or head[9:12] in (b"304", b"204") else int(length.group(1)) if length else None
        if wanted is None:
            raise ConnectionError("an answer without a length")
        while len(self.rest) < wanted:
            self.more()
        self.rest = self.rest[wanted:]
        if re.search(rb"(?i)\r\nconnection: *close", head):
            self.close()
        return int(head[9:12])


def rules_of(audit):
    """Rules that matched, by a request's `X-Request-Id`."""
    found = {}
    if not audit.exists():
        return found
    for line in audit.read_text(errors="replace").splitlines():
        try:
            transaction = json.loads(line)["transaction"]
        except (ValueError, KeyError):
            continue
        headers = {name.lower(): value for name, value in transaction["request"].get("headers", {}).items()}
        details = [message["details"] for message in transaction.get("messages", [])]
        found[headers.get("x-request-id")] = {int(detail["ruleId"]): f"{detail['match'][:120]} {detail['data'][:400]}" for detail in details}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("requests", type=pathlib.Path)
    parser.add_argument("--servers", default="ironweir,nginx")
    parser.add_argument("--exclusions", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=1 << 30)
    options = parser.parse_args()
    nginx = shutil.which("nginx") or "/usr/sbin/nginx"
    programs = {"ironweir": options.program.resolve(), "nginx": nginx}
    wanted = options.servers.split(",")
    if "nginx" in wanted and not MODULE.exists():
        print("nginx has no ModSecurity here (libnginx-mod-http-modsecurity): left out")
        wanted.remove("nginx")
    exclusions = options.exclusions.read_text() if options.exclusions else ""
    statuses, rules = {}, {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        folder = pathlib.Path(folder)
        folder.chmod(0o755)
        shutil.copy(rules_folder() / "@crs-setup.conf.example", folder / "crs-setup.conf")
        shutil.copytree(rules_folder() / "@owasp_crs", folder / "crs")
        # libmodsecurity wants a list of actions where another rule follows on the next line.
        shutil.copytree(folder / "crs", folder / "crs-nginx")
        for file in (folder / "crs-nginx").glob("*.conf"):
            bare = r'(?m)^(\s*SecRule \S+ "(?:[^"\\\n]|\\.)*")$'
            file.write_text(re.sub(bare, r'\1 "t:none"', file.read_text()))
        port = processes.free_port()
        (folder / "backend.conf").write_text(
            f"daemon off; master_process off; pid {folder}/backend.pid; error_log /dev/null; events {{ worker_connections 1024; }}"
            f"http {{ access_log off; client_max_body_size 10m; server {{ listen 127.0.0.1:{port}; location / {{ default_type text/html; return 200 ok; }} }} }}")
        backend = processes.start("backend", [nginx, "-c", str(folder / "backend.conf")], folder, 1, port, lambda _: None)
        for name in wanted:
            crs = folder / ("crs-nginx" if name == "nginx" else "crs")
            (folder / f"{name}-main.conf").write_text(MAIN.format(folder=folder, name=name, crs=crs) + exclusions)
            at = processes.free_port()
            conf = folder / f"{name}.conf"
            load = f"load_module {MODULE};" if name == "nginx" else ""
            conf.write_text(CONF.format(load=load, folder=folder, name=name, port=at, backend=port))
            server = processes.start(name, [str(programs[name]), "-p", str(folder), "-c", str(conf), "-e", str(folder / f"{name}.log")], folder, 0, at, lambda _: None)
            client = Client(at)
            statuses[name] = [client.status(request) for request in requests(options.requests, options.count)]
            client.close()
            server.stop()
            rules[name] = rules_of(folder / f"{name}-audit.log")
        backend.stop()
    failed = False
    for name in wanted:
        of, counts = statuses[name], collections.Counter()
        ids = collections.Counter(rule for found in rules[name].values() for rule in found)
        counts.update(of)
        failed |= counts[0] > 0
        print(f"{name}: {counts[403]} of {len(of)} refused, {counts[403] * 100 / max(len(of), 1):.2f} %; statuses {dict(counts)}")
        print("   rules: " + ", ".join(f"{rule} {count}" for rule, count in ids.most_common()))
        places = collections.Counter(place for found in rules[name].values() for why in found.values() for place in re.findall(r"found within (\S+?): ", why))
        print("   where: " + ", ".join(f"{place} {count}" for place, count in places.most_common(16)))
    if len(wanted) == 2:
        both = list(zip(requests(options.requests, options.count), *(statuses[name] for name in wanted)))
        only = {name: [r for r, *s in both if s[at] == 403 and s[1 - at] != 403] for at, name in enumerate(wanted)}
        for name, found in only.items():
            print(f"refused by {name} only: {len(found)}")
            for request in found[:10]:
                key = re.search(rb"X-Request-Id: (\S+)", request).group(1).decode()
                print(f"   {key}: {request[:60]!r}: " + "; ".join(f"{rule} {why}" for rule, why in rules[name].get(key, {}).items()))
        failed |= bool(only["ironweir"])
    sys.exit(failed)


if __name__ == "__main__":
    main()
