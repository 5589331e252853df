#!/usr/bin/env python3
"""What a request costs over HTTP/2 and over kept TLS connections, beside nginx: one CPU each, in turns.

The load is h2load, or `ironweir stress` where the client speaks HTTP/1.1 (wrk needs more for TLS than either server, which would
then be half idle); the HTTP/2 backend is nghttpd; both on the other CPU. nginx 1.22 reaches an HTTP/2 backend by `grpc_pass` only,
so both servers use that. See perf/README.md.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys

from rig import processes, servers

TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", pathlib.Path(__file__).resolve().parent.parent / "target"))
CONFIGURATION = """user root;
worker_processes 1;
daemon off;
pid {folder}/{name}.pid;
error_log {folder}/{name}.log error;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    keepalive_timeout 3600s;
    upstream h1 {{ server 127.0.0.1:{h1}; keepalive 512; keepalive_requests 1000000000; }}
    upstream h2 {{ server 127.0.0.1:{h2}; keepalive 512; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:{port} {listen};
        ssl_certificate {folder}/p256.crt;
        ssl_certificate_key {folder}/p256.key;
        root {folder}/files;
        location / {{ return 200 "x"; }}
        location /f {{ }}
        location /h1 {{ proxy_pass http://h1; proxy_http_version 1.1; proxy_set_header Connection ""; }}
        location /h2 {{ rewrite ^ /f10 break; grpc_pass grpc://h2; }}
    }}
}}
"""


@dataclasses.dataclass
class Case:
    """What is asked, and how."""
    path: str
    listen: str = ""
    streams: int = 32
    wanted: float = 0

    @property
    def is_http2(self):
        """Whether the client speaks HTTP/2."""
        return "http2" in self.listen


CASES = {
    "h2_return": Case("/", "http2", wanted=1.8),
    "h2_tls_return": Case("/", "ssl http2", wanted=1.8),
    "h2_file": Case("/f10", "http2", wanted=1.8),
    "h2_file16k": Case("/f16k", "http2"),
    "h2_to_h1": Case("/h1", "http2"),
    "h1_to_h2": Case("/h2"),
    "h2_to_h2": Case("/h2", "http2"),
    "tls_return": Case("/", "ssl", wanted=1.25),
}


def main():
    """Measures and prints a row for each case."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rig = servers.Rig(options.ironweir, options.floor, options.server_cpu, options.load_cpu)
    names = [name for name in ("nginx", "ironweir") if rig.available(name)]
    print("| case | " + " | ".join(f"{name}, us" for name in names) + " | ratio | required |\n|---|---|---|---|---|")
    try:
        prepare(rig)
        h1 = rig.backend().port
        h2 = nghttpd(rig)
        for case in options.cases:
            running = {name: start(rig, name, case, h1, h2) for name in names}
            rounds = {name: [] for name in names}
            for number in range(options.rounds + 1):
                for name in names:
                    cost = measure(running[name], CASES[case], options)
                    # The first round warms up.
                    rounds[name] += [cost] if number else []
            for server in running.values():
                server.stop()
            row(case, rounds)
    finally:
        processes.stop_all()
        rig.close()
    print(f"\nload average {os.getloadavg()[0]:.1f} of {os.cpu_count()} CPUs")


def prepare(rig):
    """Files and a certificate."""
    files = rig.folder / "files"
    files.mkdir()
    (files / "f10").write_bytes(b"0123456789")
    (files / "f16k").write_bytes(b"x" * 16384)
    command = ["openssl", "req", "-x509", "-nodes", "-days", "30", "-subj", "/CN=localhost", "-newkey", "ec", "-pkeyopt",
               "ec_paramgen_curve:P-256", "-keyout", rig.folder / "p256.key", "-out", rig.folder / "p256.crt"]
    subprocess.run(command, check=True, capture_output=True)


def nghttpd(rig):
    """The HTTP/2 backend."""
    port = processes.free_port()
    command = ["nghttpd", "--no-tls", "-a", "127.0.0.1", "-d", str(rig.folder / "files"), str(port)]
    return processes.start("nghttpd", command, rig.folder, rig.load_cpu, port).port


def start(rig, name, case, h1, h2):
    """One server for one case."""
    port = processes.free_port()
    conf = rig.folder / f"{name}-{case}.conf"
    conf.write_text(CONFIGURATION.format(folder=rig.folder, name=name, port=port, h1=h1, h2=h2, listen=CASES[case].listen))
    command = [rig.programs[name], "-p", str(rig.folder), "-c", str(conf), "-e", str(rig.folder / "error.log")]
    return processes.start(name, command, rig.folder, rig.server_cpu, port)


def measure(server, case, options):
    """CPU of a request in microseconds. Raises ValueError if any was not answered well."""
    url = f"{'https' if 'ssl' in case.listen else 'http'}://127.0.0.1:{server.port}{case.path}"
    if case.is_http2:
        load = ["h2load", "-t1", f"-c{options.connections}", f"-m{case.streams}", f"-n{options.requests}", url]
    else:
        load = [str(options.ironweir), "stress", "-q", "--no-preflight", "-t", "1", "-c", str(options.connections * 4), "-d",
                f"{options.seconds}s", "--json", "-", url]
    before = server.cpu()[2]
    said = subprocess.run(["taskset", "-c", str(options.load_cpu), *load], capture_output=True, text=True, check=False,
                          timeout=60).stdout
    spent = server.cpu()[2] - before
    requests = answered(said) if case.is_http2 else answered_json(said)
    if not requests:
        log = (server.log.parent / f"{server.name}.log").read_text()
        raise ValueError(f"{server.name}: {said[-600:]}\n{log[-2000:]}")
    return spent * 1e6 / requests


def answered(said):
    """How many requests h2load had answered; 0 if any was not, or not well."""
    done = re.search(r"(\d+) succeeded, 0 failed, 0 errored, 0 timeout", said)
    return int(done[1]) if done and f"status codes: {done[1]} 2xx" in said else 0


def answered_json(said):
    """The same of `ironweir stress`."""
    run = json.loads(said)
    return 0 if run["errors"]["total"] else run["requests"]


def row(case, rounds):
    """The medians, and how much more nginx's is."""
    middle = {name: statistics.median(costs) for name, costs in rounds.items()}
    cells = [f"{middle[name]:.2f} ({min(costs):.2f} to {max(costs):.2f})" for name, costs in rounds.items()]
    ratio = f"{middle['nginx'] / middle['ironweir']:.2f}" if len(middle) == 2 else "-"
    print(f"| {case} | " + " | ".join(cells) + f" | {ratio} | {CASES[case].wanted or '-'} |", flush=True)


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=lambda text: text.split(","), default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=16, help="four times as many over HTTP/1.1")
    parser.add_argument("--requests", type=int, default=100_000, help="of a round over HTTP/2")
    parser.add_argument("--seconds", type=int, default=1, help="length of a round over HTTP/1.1")
    parser.add_argument("--ironweir", type=pathlib.Path, default=TARGET / "release/ironweir")
    parser.add_argument("--floor", type=pathlib.Path, default=TARGET / "release/floor")
    parser.add_argument("--server-cpu", type=int, default=0)
    parser.add_argument("--load-cpu", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
