#!/usr/bin/env python3
"""What 200 changes a second by the API cost requests: latency under a fixed load, with and without changes, in turns.

perf/api_changes.py IRONWEIR [ROUNDS] [RATE]

Starts two backends and a balancer in front of them (IRONWEIR, a release build), puts RATE requests a second on it (default 2000)
with `ironweir stress`, and during every other run adds, changes, drains and removes servers by the API 200 times a second. Asked
for: no error, and a p99 at most 2 ms above that of the runs without changes. Exit status 1 where that does not hold.
"""
import http.client
import json
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

CHANGES = 200
SECONDS = 10
ALLOWED_MS = 2.0

CONF = """
daemon off; worker_processes 1; pid {dir}/pid; error_log {dir}/error.log info;
events {{ worker_connections 4096; }}
http {{
    access_log off; keepalive_requests 1000000000;
    upstream app {{ zone app 256k; server 127.0.0.1:{one}; server 127.0.0.1:{two}; }}
    server {{ listen 127.0.0.1:{one}; location / {{ return 200 one; }} }}
    server {{ listen 127.0.0.1:{two}; location / {{ return 200 two; }} }}
    server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://app; }} }}
    server {{ listen 127.0.0.1:{admin}; location /api {{ api write=on; }} }}
}}
"""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Changes(threading.Thread):
    """Adds a third server (the first backend again), changes its weight, drains it, removes it; again and again."""

    def __init__(self, admin, backend):
        super().__init__()
        self.admin, self.backend, self.over, self.made, self.failed = admin, backend, False, 0, []

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.admin)
        base = "/api/9/http/upstreams/app/servers"
        number, made = 0, None
        began = time.monotonic()
        while not self.over:
            steps = [("POST", base, {"server": f"127.0.0.1:{self.backend}", "weight": 2}), ("PATCH", "", {"weight": 5}),
                     ("PATCH", "", {"drain": True}), ("DELETE", "", None)]
            method, path, body = steps[number % 4]
            connection.request(method, path or f"{base}/{made}", json.dumps(body) if body is not None else None)
            response = connection.getresponse()
            answer = response.read()
            if response.status not in (200, 201):
                self.failed.append((method, response.status, answer))
            if method == "POST":
                made = json.loads(answer)["id"]
            number += 1
            self.made = number
            time.sleep(max(0, began + number / CHANGES - time.monotonic()))


def run(program, port, rate):
    command = [program, "stress", "-q", "--no-preflight", "-t1", "-c32", f"-d{SECONDS}s", f"-R{rate}", "--json", "-",
               f"http://127.0.0.1:{port}/"]
    result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return result


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    program = str(pathlib.Path(sys.argv[1]).resolve())
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    rate = int(sys.argv[3]) if len(sys.argv) > 3 else 2000
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        folder.chmod(0o777)
        one, two, port, admin = free_ports(4)
        (folder / "nginx.conf").write_text(CONF.format(dir=folder, one=one, two=two, port=port, admin=admin))
        server = subprocess.Popen([program, "-p", folder, "-e", folder / "error.log", "-c", folder / "nginx.conf"])
        try:
            time.sleep(1)
            figures = {False: [], True: []}
            errors, failed = 0, []
            for _ in range(rounds):
                for changing in (False, True):
                    changes = Changes(admin, one)
                    if changing:
                        changes.start()
                    result = run(program, port, rate)
                    changes.over = True
                    if changing:
                        changes.join()
                    p99, wrong = result["latency_us"]["p99"] / 1000, result["errors"]["total"]
                    errors += wrong if changing else 0
                    failed += changes.failed
                    figures[changing].append(p99)
                    print(f"{'changes' if changing else 'quiet  '}  p99 {p99:.2f} ms  errors {wrong}  changes {changes.made / SECONDS:.0f}/s "
                          f"failed {len(changes.failed)}", flush=True)
        finally:
            server.terminate()
            server.wait()
    quiet, changing = statistics.median(figures[False]), statistics.median(figures[True])
    step = changing - quiet
    print(f"p99, median: quiet {quiet:.2f} ms, with changes {changing:.2f} ms, step {step:.2f} ms; errors {errors}; refused {failed[:3]}")
    return 1 if errors or failed or step > ALLOWED_MS else 0


if __name__ == "__main__":
    sys.exit(main())
