#!/usr/bin/env python3
"""Holds Ironweir against nginx: the same configuration, the same requests, the same answers and log lines.

usage: tests/beside/compare.py NGINX IRONWEIR [--first SEED] [--count N] [--requests N] [--port PORT]

NGINX: best built by build-nginx.sh, whose answers have our name. Each seed is a configuration and requests drawn by chance; `--first SEED --count 1`
repeats one and shows its configuration. What differs and is not known (KNOWN) is printed. Exit status 1: something is. PORT and the two after it
are used, on 127.0.0.0/8; run several at once with ports of their own.
"""
import argparse
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import asking
import backend
import configs

FILES = {
    "index.html": "start\n", "a.txt": "0123456789" * 30, "b.html": "<p>hello world hello</p>\n", "err.html": "ERR page\n",
    "sub/index.html": "sub index\n", "sub/c.txt": "c file\n", "sub/d e.txt": "space\n", "sub/deep/x.json": '{"a":1}\n', "no_index/f.txt": "f\n",
    "x.php": "<?php\n", "up/UP.TXT": "UP\n", "big.bin": "x" * 40000,
    "s.shtml": 'A<!--#echo var="uri" -->B<!--#include virtual="/a.txt?z=1" -->C<!--#set var="q" value="$arg_x" -->'
               '<!--#if expr="$q = 1" -->one<!--#else -->other<!--#endif -->\n',
}
MIME = "types { text/html html htm shtml; text/plain txt; application/json json; image/png png; }"
CHANGED = 1_700_000_000
GLOBALS = "user root; daemon off; master_process off; pid logs/pid; error_log logs/error.log warn;"
START_S = 2

# Differences that are meant: (what it is about, a test of nginx's value and ours, why).
KNOWN = [
    ("answer", lambda n, i: n[0].startswith("TimeoutError"), "nginx waits for what never comes: `auth_request` passes on the length of a body and "
     "not the body; `try_files ... =200` ends without an answer"),
    ("answer", lambda n, i: n[0] == "ConnectionResetError" and i[0] == "closed", "a connection with unread bytes is closed without a reset"),
    ("answer", lambda n, i: n[0] == i[0] and re.sub(r"(X-T: .*\s+)\1", r"\1", n[1]) == i[1], "nginx sends trailers twice after a page of "
     "its own in a subrequest"),
    ("answer", lambda n, i: n[0] == i[0] and n[1].replace("|Content-Length: 0||", "||") == i[1].replace("|Content-Length: 0||", "||"),
     "a subrequest without a body says so to its upstream, or not"),
    ("$upstream_status", lambda n, i: n == f"{i}, {i}", "whether the connection that failed was a kept one is a matter of time"),
    ("$upstream_status", lambda n, i: (n, i) == ("-", "499"), "a try that ended with the client's going away is a try"),
    ("$remote_addr", lambda n, i: i.startswith("127."), "`set_real_ip_from` in a subrequest's location changes the main request's address in nginx"),
    ("$status", lambda n, i: n == "200" and i in ("206", "304"), "nginx logs the status that `error_page 404 =200` asks for, we what was sent"),
    ("$status", lambda n, i: n in ("499", "200"), "the log line of an answer that nginx did not give (above)"),
    ("$args", lambda n, i: (n, i) == ("", "-"), "an empty query that nginx itself has made is said as one that is not there"),
    ("$content_length", lambda n, i: (n, i) == ("0", "-"), "a chunked body that is refused by its connection's end"),
    ("$request_length", lambda n, i: int(n) < int(i), "nginx stops reading at a header that is wrong"),
    ("$remote_user", lambda n, i: n == "-", "the same"),
]


class Server:
    """A server in a folder of its own."""

    def __init__(self, name, program, folder, address):
        self.name, self.program, self.address = name, program, address
        self.folder = folder / name.ljust(8, "_")  # as long as the other: answers hold paths
        (self.folder / "logs").mkdir(parents=True)
        for path, content in FILES.items():
            file = self.folder / "html" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        for path in (self.folder / "html").rglob("*"):
            os.utime(path, (CHANGED, CHANGED))
        (self.folder / "mime").write_text(MIME)
        (self.folder / "ht").write_text("u:{PLAIN}p\n")

    def configure(self, text, port):
        """Writes the configuration; the first error in it, or nothing."""
        places = {"@A@": "{}:{}".format(*self.address), "@D@": str(self.folder), "@P@": str(port)}
        for mark, value in places.items():
            text = text.replace(mark, value)
        (self.folder / "nginx.conf").write_text(text)
        said = subprocess.run([*self._command(), "-t", "-q"], capture_output=True, text=True).stderr
        return next((self.plain(line.partition("] ")[2]) for line in said.splitlines() if "[emerg]" in line), "")

    def start(self):
        """Starts it and waits until it listens."""
        shutil.rmtree(self.folder / "cache", ignore_errors=True)
        for log in (self.folder / "logs").iterdir():
            log.unlink()
        self.process = subprocess.Popen([*self._command(), "-g", GLOBALS], stderr=subprocess.DEVNULL)
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            try:
                return socket.create_connection(self.address, 1).close()
            except OSError:
                time.sleep(0.01)
        raise SystemExit(f"{self.name} does not listen: {(self.folder / 'logs/error.log').read_text()}")

    def stop(self):
        """Ends it, kindly first; its log lines."""
        self.process.send_signal(signal.SIGQUIT)
        try:
            self.process.wait(START_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        log = self.folder / "logs/access.log"
        return [self.plain(line) for line in log.read_text("latin1").splitlines()] if log.exists() else []

    def plain(self, text):
        """A text without what must differ: address, folder, dates of today, boundaries."""
        text = text.replace(self.address[0], "ADDRESS").replace(str(self.folder), "FOLDER")
        text = re.sub(r"(?m)^Date: (?!Thu, 01 Jan 1970).*$", "Date: now", text)
        text = re.sub(r"(?m)^Expires: .*20[23]\d (?!00:00:00).*$", "Expires: then", text)
        return re.sub(r"\b\d{20}\b", "BOUNDARY", text)

    def _command(self):
        return [self.program, "-p", str(self.folder), "-c", str(self.folder / "nginx.conf"), "-e", str(self.folder / "logs/error.log")]


def is_known(about, nginx, ironweir):
    """Whether a difference is one of those that are meant."""
    return any(about == known and test(nginx, ironweir) for known, test, _ in KNOWN)


def compare(servers, seed, count, port):
    """The differences for a seed, as texts; none: the configuration was refused by both, in the same words."""
    text = configs.Draw(seed).text()
    nginx, ironweir = (server.configure(text, port) for server in servers)
    if nginx or ironweir:
        return [f"configuration\n  nginx:    {nginx}\n  ironweir: {ironweir}"] if nginx != ironweir else None
    for server in servers:
        server.start()
    found, excused = [], set()
    for asked in asking.draw(seed, count):
        answers = [tuple(map(server.plain, asking.ask(server.address, asked))) for server in servers]
        if answers[0] != answers[1] and (is_known("answer", *answers) or judged_by_etag(asked, answers[1])):
            excused.add(asked.line())
        elif answers[0] != answers[1]:
            found.append(f"{asked}\n  nginx:    {shortened(answers[0], answers[1])}\n  ironweir: {shortened(answers[1], answers[0])}")
    logs = [server.stop() for server in servers]
    if len(logs[0]) != len(logs[1]):
        found.append(f"access log: {len(logs[0])} lines of nginx, {len(logs[1])} of ironweir")
    for lines in zip(*logs):
        logged = [dict(zip(configs.LOGGED, line.split("|"))) for line in lines]
        # The line of an answer that differs as it may says so too.
        found += differences(*logged) if logged[0]["request"] not in excused else []
    return found


def judged_by_etag(asked, answer):
    """RFC 9110 section 13.2.2: where `If-None-Match` is sent, `If-Modified-Since` does not count; nginx wants both to agree."""
    sent = str(asked)
    return answer[0].startswith("HTTP/1.1 304") and "If-None-Match:" in sent and "If-Modified-Since:" in sent


def differences(nginx, ironweir):
    """Of two lines of the access logs. Where the answers differ as they may, so does the rest."""
    if nginx["status"] != ironweir["status"] and is_known("$status", nginx["status"], ironweir["status"]):
        return []
    return [f"log: {nginx['request']}: ${name}\n  nginx:    {n}\n  ironweir: {ironweir[name]}" for name, n in nginx.items()
            if n != ironweir[name] and not is_known(f"${name}", n, ironweir[name])]


def shortened(answer, other):
    """What an answer has that the other has not."""
    lines = [line for line in answer[0].splitlines() if line not in other[0].splitlines()]
    return f"{lines}{' ' + repr(answer[1][:300]) if answer[1] != other[1] else ''}"


def main():
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nginx")
    parser.add_argument("ironweir")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--port", type=int, default=18080)
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="beside-"))
    folder.chmod(0o755)
    net = options.port % 250
    servers = [Server("nginx", os.path.abspath(options.nginx), folder, (f"127.1.{net}.1", options.port)),
               Server("ironweir", os.path.abspath(options.ironweir), folder, (f"127.1.{net}.2", options.port))]
    backend.start(options.port + 1)
    compared = different = 0
    try:
        for seed in range(options.first, options.first + options.count):
            found = compare(servers, seed, options.requests, options.port + 1)
            compared += found is not None and not any(text.startswith("configuration") for text in found)
            different += bool(found)
            for text in found or []:
                print(f"seed {seed}: {text}", flush=True)
            if options.count == 1:
                print(configs.Draw(seed).text())
    finally:
        for server in servers:
            if hasattr(server, "process") and server.process.poll() is None:
                server.process.kill()
        shutil.rmtree(folder)
    print(f"{compared} configurations compared with {options.requests} requests each; differences in {different}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
