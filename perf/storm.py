#!/usr/bin/env python3
"""What full TLS handshakes cost, and what a storm of them does to the kept connections of the same thread.

For each server and each kind of key, in turns: kept connections alone at a fixed rate (quiet), the same beside as many full
handshakes as the server does (storm), and the handshakes alone. The load is `ironweir stress`: open loop for the kept
connections, so that their latency holds what they waited for. Asked for: p99 in the storm at most 5 times the quiet one;
nginx's CPU for a handshake over ironweir's at least 1.2 with RSA 2048, 1.7 with P-256. See perf/README.md.
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

TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", pathlib.Path(__file__).resolve().parent.parent / "target"))
KEYS = {"rsa": ["-newkey", "rsa:2048"], "p256": ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]}
WANTED = {"rsa": 1.2, "p256": 1.7}
MOST_P99 = 5.0
# Kept connections, and their requests a second: far from what the server could do.
KEPT, RATE = 8, 400
STORM = 64
CONFIGURATION = """user root;
worker_processes 1;
daemon off;
pid {folder}/pid;
error_log {folder}/error.log crit;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    keepalive_timeout 3600s;
    server {{
        listen 127.0.0.1:{port} ssl backlog=16384;
        ssl_certificate {folder}/{key}.crt;
        ssl_certificate_key {folder}/{key}.key;
        ssl_session_tickets off;
        ssl_ecdh_curve {groups};
        location / {{ return 200 "x"; }}
    }}
}}
"""


def main():
    """Measures, prints a line for each server and key, then the ratios."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rig = servers.Rig(options.ironweir, "floor", options.server_cpu, options.load_cpu)
    results = {}
    try:
        for key in options.keys:
            certificate(rig.folder, key)
            running = {name: start(rig, name, key, options) for name in options.servers if rig.available(name)}
            rounds = {name: [] for name in running}
            for _ in range(options.rounds):
                for name, server in running.items():
                    rounds[name].append(measure(server, options))
            for name, server in running.items():
                results[key, name] = middle(rounds[name])
                print(text(key, name, results[key, name]), flush=True)
                server.stop()
    finally:
        processes.stop_all()
        rig.close()
    print(f"load average {os.getloadavg()[0]:.1f} of {os.cpu_count()} CPUs")
    for key in options.keys:
        verdict(key, results)


def certificate(folder, key):
    """A certificate that signed itself."""
    command = ["openssl", "req", "-x509", "-nodes", "-days", "30", "-subj", "/CN=localhost", *KEYS[key]]
    command += ["-keyout", folder / f"{key}.key", "-out", folder / f"{key}.crt"]
    subprocess.run(command, check=True, capture_output=True)


def start(rig, name, key, options):
    """One server."""
    port = processes.free_port()
    conf = rig.folder / f"{name}-{key}.conf"
    conf.write_text(CONFIGURATION.format(folder=rig.folder, port=port, key=key, groups=options.groups))
    command = [rig.programs[name], "-p", str(rig.folder), "-c", str(conf), "-e", str(rig.folder / "error.log")]
    return processes.start(name, command, rig.folder, rig.server_cpu, port)


def measure(server, options):
    """One round: p99 of the kept connections in both windows, and the CPU of a handshake, in microseconds."""
    quiet = stress(kept(server, options), options)
    storm = subprocess.Popen(command(handshakes(server, options, options.seconds + 1), options), stdout=subprocess.PIPE)
    loud = stress(kept(server, options), options)
    under = json.loads(storm.communicate(timeout=options.seconds + 30)[0])
    cpu = server.cpu()[2]
    alone = stress(handshakes(server, options, options.seconds), options)
    cpu = server.cpu()[2] - cpu
    return {"quiet_p50": quiet["latency_us"]["p50"], "quiet_p99": quiet["latency_us"]["p99"],
            "storm_p50": loud["latency_us"]["p50"], "storm_p99": loud["latency_us"]["p99"],
            "storm_rate": under["rps"], "rate": alone["rps"], "cpu_us": cpu * 1e6 / max(alone["requests"], 1),
            "errors": sum(run["errors"]["total"] for run in (quiet, loud))}


def kept(server, options):
    """Arguments for requests at a fixed rate."""
    return ["-c", str(KEPT), "-R", str(RATE), "-d", f"{options.seconds}s", f"https://localhost:{server.port}/"]


def handshakes(server, options, seconds):
    """Arguments for as many full handshakes as there can be."""
    return ["-c", str(options.storm), "--no-keepalive", "--no-resumption", "-d", f"{seconds}s",
            f"https://localhost:{server.port}/"]


def command(arguments, options):
    """The load generator on its CPU."""
    stress_it = [options.load, "stress", "-q", "--no-preflight", "-t", "1", "--json", "-", *arguments]
    return ["taskset", "-c", str(options.load_cpu), *stress_it]


def stress(arguments, options):
    """Runs the load generator; its results."""
    out = subprocess.run(command(arguments, options), stdout=subprocess.PIPE, timeout=options.seconds + 30, check=False)
    return json.loads(out.stdout)


def middle(rounds):
    """The median of each figure; of the ratios too, since rounds differ in what else the machine does."""
    result = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    result["ratio"] = statistics.median(one["storm_p99"] / one["quiet_p99"] for one in rounds)
    return result


def text(key, name, result):
    """A line."""
    return (f"{key:5} {name:9} kept: quiet p50 {result['quiet_p50']:6.0f} us p99 {result['quiet_p99']:7.0f} us, "
            f"storm p50 {result['storm_p50']:6.0f} us p99 {result['storm_p99']:7.0f} us ({result['ratio']:.1f} times); "
            f"handshake {result['cpu_us']:6.1f} us CPU, {result['rate']:6.0f}/s; errors {result['errors']:.0f}")


def verdict(key, results):
    """Whether what is asked for holds."""
    ours, other = results.get((key, "ironweir")), results.get((key, "nginx"))
    if ours:
        met = "met" if ours["ratio"] <= MOST_P99 else "missed"
        print(f"{key}: p99 in the storm {ours['ratio']:.1f} times the quiet one, at most {MOST_P99}: {met}")
    if ours and other:
        ratio = other["cpu_us"] / ours["cpu_us"]
        met = "met" if ratio >= WANTED[key] else "missed"
        print(f"{key}: nginx's CPU for a handshake over ironweir's {ratio:.2f}, at least {WANTED[key]}: {met}")


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    program = TARGET / "release/ironweir"
    parser.add_argument("--ironweir", default=program, type=pathlib.Path, help="the server")
    parser.add_argument("--load", default=program, type=pathlib.Path, help="the binary whose `stress` makes the load")
    parser.add_argument("--servers", default=["nginx", "ironweir"], type=lambda text: text.split(","))
    parser.add_argument("--keys", default=list(KEYS), type=lambda text: text.split(","))
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--seconds", default=4, type=int)
    parser.add_argument("--storm", default=STORM, type=int, help="connections that shake hands at once")
    # The same for all: what nginx is linked with may know no post-quantum group.
    parser.add_argument("--groups", default="X25519:prime256v1", help="ssl_ecdh_curve")
    parser.add_argument("--server-cpu", default=1, type=int)
    parser.add_argument("--load-cpu", default=0, type=int)
    return parser.parse_args()


if __name__ == "__main__":
    main()
