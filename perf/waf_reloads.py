#!/usr/bin/env python3
"""Whether memory stays flat over reloads with the Core Rule Set: the worker's resident memory after each, while it is asked.

perf/waf_reloads.py IRONWEIR [--reloads 200] [--requests 50]

The configuration reads the rules of the Go module that `.ci/setup peers` fetches anew each time. After each reload some requests are judged, so that what is
remembered of values is part of it. One line for each twenty reloads, and the verdict: the median of the last quarter beside that of the second.

Exit status 1: it has grown by more than a tenth, or an answer was wrong.
"""
import argparse
import http.client
import json
import os
import pathlib
import shutil
import signal
import statistics
import sys
import tempfile
import time

from rig import processes
from waf import MAIN, rules_folder

CONF = """
daemon off; worker_processes 2; user root; pid {folder}/ironweir.pid; error_log {folder}/error.log error; events {{ worker_connections 1024; }}
http {{
    access_log off; modsecurity on; modsecurity_rules_file {folder}/main.conf;
    server {{ listen 127.0.0.1:{port}; root {folder}; location / {{ }} location /api {{ modsecurity off; api; }} }}
}}
"""
GROWTH = 1.1
PATIENCE = 30


def ask(port, target):
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        client.request("GET", target, headers={"User-Agent": "Mozilla/5.0", "Accept": "*/*"})
        answer = client.getresponse()
        return answer.status, answer.read()
    finally:
        client.close()


def generation(port):
    return json.loads(ask(port, "/api/9/nginx")[1])["generation"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--reloads", type=int, default=200)
    parser.add_argument("--requests", type=int, default=50)
    options = parser.parse_args()
    series, wrong = [], 0
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        folder, port = pathlib.Path(folder), processes.free_port()
        shutil.copy(rules_folder() / "@crs-setup.conf.example", folder / "crs-setup.conf")
        shutil.copytree(rules_folder() / "@owasp_crs", folder / "crs")
        (folder / "main.conf").write_text(MAIN.format(folder=folder, crs=folder / "crs"))
        (folder / "ironweir.conf").write_text(CONF.format(folder=folder, port=port))
        (folder / "file.html").write_text("<p>a page</p>\n")
        command = [str(options.program.resolve()), "-p", str(folder), "-c", str(folder / "ironweir.conf"), "-e", str(folder / "error.log")]
        server = processes.start("ironweir", command, folder, 0, port, lambda _: None)
        try:
            for number in range(1, options.reloads + 1):
                before, until = generation(port), time.monotonic() + PATIENCE
                os.kill(server.process.pid, signal.SIGHUP)
                while generation(port) == before:
                    if time.monotonic() > until:
                        sys.exit(f"reload {number} has not come in {PATIENCE} s")
                    time.sleep(0.02)
                for n in range(options.requests):
                    wrong += ask(port, f"/file.html?q=red+shoes+{number}&page={n}")[0] != 200
                wrong += ask(port, "/file.html?q=1'+or+'1'='1")[0] != 403
                series.append(server.memory()[1] // 1024)
                if number % 20 == 0:
                    print(f"{number:4} reloads: {series[-1]:7} kB, the last 20 from {min(series[-20:])} to {max(series[-20:])}", flush=True)
        finally:
            server.stop()
    quarter = len(series) // 4
    early, late = statistics.median(series[quarter:2 * quarter]), statistics.median(series[-quarter:])
    print(f"second quarter {early:.0f} kB, last quarter {late:.0f} kB: {late / early:.2f}; {wrong} wrong answers")
    sys.exit(late > early * GROWTH or wrong > 0)


if __name__ == "__main__":
    main()
