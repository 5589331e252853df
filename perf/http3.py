#!/usr/bin/env python3
"""What HTTP/3 costs the server beside its own HTTP/2: CPU for a MB of a large file, and for a small request.

Both protocols in turns, against one server with one thread, on one CPU; the clients have another. The load is the Go program
in tests/quic-go, the same for both protocols; for the large file also ngtcp2's gtlsclient (HTTP/3) and curl (HTTP/2), since
clients differ in how often they acknowledge. Asked for: HTTP/2's CPU for a MB over HTTP/3's at least 0.5.
"""
import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys

from rig import processes, servers
from storm import TARGET, certificate

WANTED = 0.5
MB = 1_000_000
CLIENT = pathlib.Path(__file__).resolve().parent.parent / "tests/quic-go"
CONFIGURATION = """user root;
worker_processes 1;
daemon off;
pid {folder}/pid;
error_log {folder}/error.log crit;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    server {{
        listen 127.0.0.1:{port} ssl;
        listen 127.0.0.1:{port} quic;
        http2 on;
        ssl_certificate {folder}/p256.crt;
        ssl_certificate_key {folder}/p256.key;
        {more}
        root {folder};
        location = /return {{ return 200 "x"; }}
    }}
}}
"""


def main():
    """Measures, prints a line for each case and protocol, then the ratios."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rig = servers.Rig(options.ironweir, "floor", options.server_cpu, options.load_cpu)
    try:
        loads = cases(options, rig)
        server = start(rig, options)
        results = {case: [] for case in loads}
        for _ in range(options.rounds):
            for case, (command, units, _) in loads.items():
                url = f"https://localhost:{server.port}"
                results[case].append(measure(server, command(url), units, options))
    finally:
        processes.stop_all()
        rig.close()
    report(loads, results)
    print(f"load average {os.getloadavg()[0]:.1f} of {os.cpu_count()} CPUs")


def cases(options, rig):
    """What is run: the command for a URL, how many units it brought by what it printed, and the unit."""
    client = rig.folder / "client"
    subprocess.run(["go", "build", "-o", client, "."], cwd=CLIENT, check=True)
    size = options.mb * MB

    def ask(protocol, path, *more):
        return lambda url: [client, "-protocol", protocol, *more, url + path]

    def requests(protocol):
        streams = ["-connections", "4", "-streams", str(options.streams), "-requests", str(options.requests)]
        return ask(protocol, "/return", *streams), lambda out: json.loads(out)["requests"], "us/request"

    def bulk(protocol):
        return ask(protocol, "/large"), lambda out: json.loads(out)["bytes"] / MB, "ms/MB"

    whole = rig.folder / "whole"
    whole.mkdir()

    def gtlsclient(url):
        port = url.rpartition(":")[2]
        return ["gtlsclient", "-q", "--exit-on-all-streams-close", f"--download={whole}", "127.0.0.1", port, url + "/large"]

    def arrived(_):
        file = whole / "large"
        length = file.stat().st_size if file.exists() else 0
        file.unlink(missing_ok=True)
        return length / MB

    curl = ["curl", "-sk", "--http2", "-o", "/dev/null", "-w", "%{size_download}"]
    all_cases = {
        ("bulk, Go", "h2"): bulk("h2"),
        ("bulk, Go", "h3"): bulk("h3"),
        ("bulk, curl and gtlsclient", "h2"): (lambda url: [*curl, url + "/large"], lambda out: int(out) / MB, "ms/MB"),
        ("bulk, curl and gtlsclient", "h3"): (gtlsclient, arrived, "ms/MB"),
        ("requests", "h2"): requests("h2"),
        ("requests", "h3"): requests("h3"),
    }
    (rig.folder / "large").write_bytes(bytes(size))
    return {case: load for case, load in all_cases.items() if any(name in case[0] for name in options.cases)}


def start(rig, options):
    """The server."""
    certificate(rig.folder, "p256")
    port = processes.free_port()
    conf = rig.folder / "nginx.conf"
    conf.write_text(CONFIGURATION.format(folder=rig.folder, port=port, more=options.directives))
    command = [rig.programs["ironweir"], "-p", str(rig.folder), "-c", str(conf), "-e", str(rig.folder / "error.log")]
    return processes.start("ironweir", command, rig.folder, rig.server_cpu, port)


def measure(server, command, units, options):
    """One round: user, system and all CPU seconds, and what they brought."""
    before = server.cpu()
    ran = subprocess.run(["taskset", "-c", str(options.load_cpu), *command], stdout=subprocess.PIPE, timeout=60, check=True)
    user, system, precise = (after - begin for after, begin in zip(server.cpu(), before))
    return user, system, precise, units(ran.stdout)


def report(loads, results):
    """A line for each; a ratio for each pair."""
    costs = {}
    for (name, protocol), rounds in results.items():
        unit = loads[name, protocol][2]
        scale = 1e3 if unit == "ms/MB" else 1e6
        costs[name, protocol] = [cpu * scale / done for _, _, cpu, done in rounds]
        user, system = (sum(one[i] for one in rounds) for i in (0, 1))
        share = user / max(user + system, 1e-9)
        each = costs[name, protocol]
        print(f"{name:26} {protocol} {statistics.median(each):7.3f} {unit} ({min(each):.3f} to {max(each):.3f}), "
              f"{share:.0%} of it user")
    for name in dict.fromkeys(name for name, _ in results):
        ratio = statistics.median(costs[name, "h2"]) / statistics.median(costs[name, "h3"])
        wanted = "" if name == "requests" else f", at least {WANTED}: {'met' if ratio >= WANTED else 'missed'}"
        print(f"{name}: HTTP/2's CPU over HTTP/3's {ratio:.2f}{wanted}")


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ironweir", default=TARGET / "release/ironweir", type=pathlib.Path, help="the server")
    parser.add_argument("--cases", default=["bulk", "requests"], type=lambda text: text.split(","))
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--mb", default=100, type=int, help="size of the file")
    parser.add_argument("--streams", default=8, type=int, help="requests at once on each of 4 connections")
    parser.add_argument("--requests", default=100_000, type=int)
    parser.add_argument("--directives", default="", help="more of the server's configuration")
    parser.add_argument("--server-cpu", default=1, type=int)
    parser.add_argument("--load-cpu", default=0, type=int)
    return parser.parse_args()


if __name__ == "__main__":
    main()
