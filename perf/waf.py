#!/usr/bin/env python3
"""What the Core Rule Set costs: requests for a second of the server's CPU with `modsecurity on` against off.

perf/waf.py IRONWEIR [--before OTHER] [--rounds 3] [--seconds 6] [--cases file,proxy,fresh,post] [--servers ironweir,nginx,coraza]

Ironweir, and nginx with Debian's libnginx-mod-http-modsecurity where that is installed, read the same configuration: the rules of the Go module
that `.ci/setup peers` fetches, unmodified, at paranoia 1, with bodies of requests and without bodies of answers. Beside them a server in Go with Coraza
(perf/coraza), where there is Go: what `off` is there is Go's own server. Kinds are measured in turns.

file    a file of 1 kB, a browser's nine headers, always the same
proxy   the same from a backend
fresh   the same, each request with other arguments and another cookie
post    a form of 2 kB for a backend, other values each time

The server has one CPU, wrk and the backend the other. Exit status 1: some answer was not 200, or GET keeps less than half.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

from rig import processes

SERVER_CPU, LOAD_CPU = 0, 1
RULES = "github.com/corazawaf/coraza-coreruleset/v4@v4.25.0/rules"
MODULE = pathlib.Path("/usr/lib/nginx/modules/ngx_http_modsecurity_module.so")
CONNECTIONS = 64
LEAST_SHARE = 0.5
CORAZA = pathlib.Path(__file__).resolve().parent / "coraza"

MAIN = """
SecRuleEngine On
SecRequestBodyAccess On
SecResponseBodyAccess Off
SecRequestBodyLimit 13107200
SecRequestBodyNoFilesLimit 131072
SecAuditEngine Off
SecRule REQUEST_HEADERS:Content-Type "^application/json" "id:200001,phase:1,t:none,t:lowercase,pass,nolog,ctl:requestBodyProcessor=JSON"
Include {folder}/crs-setup.conf
Include {crs}/*.conf
"""

CONF = """
{load} daemon off; worker_processes 1; user root; pid {folder}/{name}.pid; error_log {folder}/{name}.log error; events {{ worker_connections 4096; }}
http {{
    access_log off; keepalive_requests 100000000; keepalive_timeout 1h; sendfile on; client_body_buffer_size 16k;
    modsecurity {on}; modsecurity_rules_file {folder}/{name}-main.conf;
    upstream backend {{ server 127.0.0.1:{backend}; keepalive 128; }}
    server {{
        listen 127.0.0.1:{port}; root {folder};
        location / {{ }}
        location /app/ {{ proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection ""; }}
    }}
}}
"""

SCRIPT = """
local kind = "%(kind)s"
wrk.headers["User-Agent"] = "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"
wrk.headers["Host"] = "www.example.org"
wrk.headers["Accept"] = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
wrk.headers["Accept-Language"] = "en-US,en;q=0.5"
wrk.headers["Accept-Encoding"] = "gzip, deflate, br, zstd"
wrk.headers["Referer"] = "https://www.example.org/products/list"
wrk.headers["Cookie"] = "session=7f3a9c0e4b1d4f6a8e2c5b7d9f0a1c3e; theme=dark; _ga=GA1.2.1234567890.1700000000"
wrk.headers["Upgrade-Insecure-Requests"] = "1"
wrk.headers["Connection"] = "keep-alive"
local serial = 0
local function fresh()
   serial = serial + 1
   wrk.headers["Cookie"] = string.format("session=%%016x%%016x; theme=dark; _ga=GA1.2.%%d.1700000000", serial * 7919, serial, serial)
   return string.format("/app/list?category=shoes&page=%%d&sort=price_asc&q=red+number+%%d", serial %% 97, serial)
end
local first = { file = "/file.html", proxy = "/app/list?category=shoes&page=2", fresh = "/app/list", post = "/app/form" }
wrk.path = first[kind]
if kind == "fresh" then
   request = function() return wrk.format("GET", fresh()) end
elseif kind == "post" then
   wrk.headers["Content-Type"] = "application/x-www-form-urlencoded"
   request = function()
      local path = fresh()
      local fields = {}
      for n = 1, 24 do
         fields[n] = string.format("field_%%d=some+ordinary+text+that+a+person+%%d+types+into+a+form+number+%%d", n, serial, n)
      end
      return wrk.format("POST", "/app/form", nil, table.concat(fields, "&"))
   end
end
function done(summary, latency, requests)
   local e = summary.errors
   io.write(string.format('\\n{"requests":%%d,"bad":%%d}\\n', summary.requests, e.connect + e.read + e.write + e.status + e.timeout))
end
"""


def rules_folder():
    """Where Go keeps the rules."""
    cache = os.environ.get("GOMODCACHE") or str(pathlib.Path.home() / "go/pkg/mod")
    folder = pathlib.Path(cache) / RULES
    if not folder.is_dir():
        sys.exit(f"{folder} is not there: .ci/setup peers fetches it")
    return folder


def start(name, program, on, folder, backend):
    """A server with the rules on or off."""
    port = processes.free_port()
    if name == "coraza":
        command = [str(program), "-listen", f"127.0.0.1:{port}", "-root", str(folder), "-backend", f"127.0.0.1:{backend}"]
        rules = ["-rules", str(folder / "coraza-main.conf")] if on == "on" else []
        return processes.start(f"{name}-{on}", command + rules, folder, SERVER_CPU, port)
    load = f"load_module {MODULE};" if name == "nginx" else ""
    conf = folder / f"{name}-{on}.conf"
    conf.write_text(CONF.format(load=load, folder=folder, name=name, on=on, port=port, backend=backend))
    command = [str(program), "-p", str(folder), "-c", str(conf), "-e", str(folder / f"{name}.log")]
    return processes.start(f"{name}-{on}", command, folder, SERVER_CPU, port)


def build_coraza(folder):
    """The server in Go; None, said aloud: there is no Go, or what it needs cannot be fetched."""
    if not shutil.which("go"):
        print("there is no Go here: Coraza is left out")
        return None
    program = folder / "coraza-server"
    built = subprocess.run(["go", "build", "-o", str(program), "."], cwd=CORAZA, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if built.returncode:
        print(f"Coraza is left out: {built.stdout.strip()}")
        return None
    return program


def load(server, kind, seconds, folder):
    """Requests, how many of them failed, and the server's CPU seconds."""
    script = folder / f"{kind}.lua"
    script.write_text(SCRIPT % {"kind": kind})
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s", str(script), f"http://127.0.0.1:{server.port}/"]
    before = server.cpu()[2]
    outcome = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds + 30,
                             preexec_fn=lambda: processes.be_load(LOAD_CPU))
    spent = server.cpu()[2] - before
    said = json.loads(outcome.stdout.strip().splitlines()[-1])
    return said["requests"], said["bad"], spent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--before", type=pathlib.Path, help="another binary of Ironweir")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=6)
    parser.add_argument("--cases", default="file,proxy,fresh,post")
    parser.add_argument("--servers", default="ironweir,nginx,coraza")
    options = parser.parse_args()
    programs = {"ironweir": options.program.resolve(), "nginx": shutil.which("nginx") or "/usr/sbin/nginx"}
    if options.before:
        programs["before"] = options.before.resolve()
    wanted = options.servers.split(",") + (["before"] if options.before else [])
    if "nginx" in wanted and not MODULE.exists():
        print("nginx has no ModSecurity here (libnginx-mod-http-modsecurity): left out")
        wanted.remove("nginx")
    costs, failed = {}, False
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        folder = pathlib.Path(folder)
        folder.chmod(0o755)
        if "coraza" in wanted:
            programs["coraza"] = build_coraza(folder)
            if not programs["coraza"]:
                wanted.remove("coraza")
        # libmodsecurity includes nothing with an @ in its path.
        shutil.copy(rules_folder() / "@crs-setup.conf.example", folder / "crs-setup.conf")
        shutil.copytree(rules_folder() / "@owasp_crs", folder / "crs")
        # And it wants a list of actions where another rule follows on the next line.
        shutil.copytree(folder / "crs", folder / "crs-nginx")
        for file in (folder / "crs-nginx").glob("*.conf"):
            bare = r'(?m)^(\s*SecRule \S+ "(?:[^"\\\n]|\\.)*")$'
            file.write_text(re.sub(bare, r'\1 "t:none"', file.read_text()))
        for name, crs in (("ironweir", "crs"), ("before", "crs"), ("nginx", "crs-nginx"), ("coraza", "crs")):
            (folder / f"{name}-main.conf").write_text(MAIN.format(folder=folder, crs=folder / crs))
        (folder / "file.html").write_text("<p>a page</p>\n" * 73)
        port = processes.free_port()
        (folder / "backend.conf").write_text(
            f"daemon off; master_process off; pid {folder}/backend.pid; error_log /dev/null; events {{ worker_connections 4096; }}"
            f"http {{ access_log off; keepalive_requests 100000000; server {{ listen 127.0.0.1:{port};"
            f"location / {{ default_type text/html; return 200 ok; }} }} }}")
        backend = processes.start("backend", [programs["nginx"], "-c", str(folder / "backend.conf")], folder, LOAD_CPU, port,
                                  processes.be_load)
        for _ in range(options.rounds):
            for kind in options.cases.split(","):
                for name in wanted:
                    for on in ("off", "on"):
                        server = start(name, programs[name], on, folder, port)
                        load(server, kind, 1, folder)
                        requests, bad, spent = load(server, kind, options.seconds, folder)
                        server.stop()
                        failed |= bad > 0 or requests == 0
                        costs.setdefault((kind, name, on), []).append(spent * 1e6 / max(requests, 1))
                        print(f"{kind:6} {name:9} {on:4} {costs[kind, name, on][-1]:8.1f} us of CPU for a request"
                              + (f", {bad} BAD" if bad else ""), flush=True)
        backend.stop()
    print("\n| case | server | off, us | on, us | more, us | of off |\n|---|---|---|---|---|---|")
    for (kind, name, on), all_costs in costs.items():
        if on == "on":
            off, cost = statistics.median(costs[kind, name, "off"]), statistics.median(all_costs)
            print(f"| {kind} | {name} | {off:.1f} | {cost:.1f} | {cost - off:.1f} | {off / cost * 100:.0f} % |")
            if name == "ironweir" and kind != "post":
                failed |= off / cost < LEAST_SHARE
    sys.exit(failed)


if __name__ == "__main__":
    main()
