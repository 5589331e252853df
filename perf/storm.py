#!/usr/bin/env python3
"""What full TLS handshakes cost, and what a storm of them does to the kept connections of the same thread.

For each server, kind of key and cipher, in turns: kept connections alone at a fixed rate (quiet), the same beside as many full
handshakes as the server does (storm), and the handshakes alone, a second of each server in turns: the machine's speed changes
from one ten seconds to the next. The load is `ironweir stress`: open loop for the kept
connections, so that their latency holds what they waited for. Asked for: p99 in the storm at most 5 times the quiet one;
nginx's CPU for a handshake over ironweir's at least 1.2 with RSA 2048, 1.7 with P-256. See perf/README.md.

The server has one core to itself, as far as the machine lets it. On the other are the client that storms and the one that asks;
the latter has real-time priority, so that it never waits for the former, and what it measures is the server's and the kernel's.
The servers are nice -20: at 0, threads of the kernel take their core for a tick of 4 ms when it is busy, which was all of what
went beyond 1 ms (`--nice 0` to see it). Real-time priority would do the opposite: a core that is full of it is taken away for 50 ms.
"""
import argparse
import json
import math
import os
import pathlib
import signal
import statistics
import subprocess
import sys

from rig import processes, servers

TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", pathlib.Path(__file__).resolve().parent.parent / "target"))
KEYS = {"rsa": ["-newkey", "rsa:2048"], "p256": ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]}
# What browsers put first, and what OpenSSL and rustls do.
CIPHERS = {"aes128": "TLS_AES_128_GCM_SHA256", "aes256": "TLS_AES_256_GCM_SHA384"}
WANTED = {"rsa": 1.2, "p256": 1.7}
MOST_P99 = 5.0
# Kept connections, and their requests a second: far from what the server could do.
KEPT, RATE = 8, 400
# Before whatever else is on its core.
REAL_TIME = ["chrt", "--fifo", "10"]
STORM = 64
# The same for all: what nginx is linked with may know no post-quantum group.
GROUPS = "X25519:prime256v1"
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
        listen 127.0.0.1:{port} ssl {listen} backlog=16384;
        ssl_certificate {folder}/{key}.crt;
        ssl_certificate_key {folder}/{key}.key;
        ssl_session_tickets off;
        ssl_ecdh_curve {groups};
        ssl_conf_command Ciphersuites {cipher};
        location / {{ return 200 "x"; }}
    }}
}}
"""


def main():
    """Measures, prints a line for each server and kind, then the ratios."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rig = servers.Rig(options.ironweir, "floor", options.server_cpu, options.load_cpu)
    kinds = [(key, cipher) for key in options.keys for cipher in options.ciphers]
    results = {}
    try:
        for kind in kinds:
            certificate(rig.folder, kind[0])
            running = {name: start(rig, name, kind, options.groups, options.nice)
                       for name in options.servers if rig.available(name)}
            rounds = {name: [] for name in running}
            for _ in range(options.rounds):
                for name, server in running.items():
                    rounds[name].append(measure(server, options))
                for name, costs in cost_alone(running, options).items():
                    rounds[name][-1] |= costs
            for name, server in running.items():
                results[kind, name] = middle(rounds[name])
                print(text(kind, name, results[kind, name]), flush=True)
                server.stop()
    finally:
        processes.stop_all()
        rig.close()
    print(f"load average {os.getloadavg()[0]:.1f} of {os.cpu_count()} CPUs")
    for kind in kinds:
        verdict(kind, results)


def certificate(folder, key):
    """A certificate that signed itself."""
    command = ["openssl", "req", "-x509", "-nodes", "-days", "30", "-subj", "/CN=localhost", *KEYS[key]]
    command += ["-keyout", folder / f"{key}.key", "-out", folder / f"{key}.crt"]
    subprocess.run(command, check=True, capture_output=True)


def start(rig, name, kind, groups=GROUPS, nice=0, listen=""):
    """One server; `kind` is a key and a cipher, `listen` more of that directive."""
    port = processes.free_port()
    key, cipher = kind
    conf = rig.folder / f"{name}-{key}-{cipher}.conf"
    conf.write_text(CONFIGURATION.format(folder=rig.folder, port=port, key=key, groups=groups,
                                         cipher=CIPHERS[cipher], listen=listen))
    command = ["nice", "-n", str(nice), rig.programs[name], "-p", str(rig.folder), "-c", str(conf), "-e", str(rig.folder / "error.log")]
    return processes.start(name, command, rig.folder, rig.server_cpu, port)


def measure(server, options):
    """One round: p99 of the kept connections in both windows, in microseconds."""
    quiet = stress(REAL_TIME + command(kept(server, options), options), options)
    storm = subprocess.Popen(command(handshakes(server, options, options.seconds + 1), options), stdout=subprocess.PIPE)
    before = server.cpu()[2]
    loud = stress(REAL_TIME + command(kept(server, options), options), options)
    busy = (server.cpu()[2] - before) / options.seconds
    under = json.loads(storm.communicate(timeout=options.seconds + 30)[0])
    return {"quiet_p50": quiet["latency_us"]["p50"], "quiet_p99": quiet["latency_us"]["p99"],
            "storm_p50": loud["latency_us"]["p50"], "storm_p99": loud["latency_us"]["p99"],
            "storm_rate": under["rps"], "busy": busy, "errors": sum(run["errors"]["total"] for run in (quiet, loud))}


def cost_alone(running, options):
    """Handshakes alone: how many a second, the CPU of one in microseconds, and nginx's over it."""
    spent, done = dict.fromkeys(running, 0.0), dict.fromkeys(running, 0)
    for _ in range(options.seconds):
        for name, server in running.items():
            before = server.cpu()[2]
            done[name] += stress(command(handshakes(server, options, 1), options), options)["requests"]
            spent[name] += server.cpu()[2] - before
    costs = {name: spent[name] * 1e6 / max(done[name], 1) for name in running}
    return {name: {"cpu_us": cost, "rate": done[name] / options.seconds, "gain": costs.get("nginx", math.nan) / cost}
            for name, cost in costs.items()}


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
    out = subprocess.run(arguments, stdout=subprocess.PIPE, timeout=options.seconds + 30, check=False)
    return json.loads(out.stdout)


def middle(rounds):
    """The median of each figure; of the ratios too, since rounds differ in what else the machine does."""
    result = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    result["ratio"] = statistics.median(one["storm_p99"] / one["quiet_p99"] for one in rounds)
    return result


def text(kind, name, result):
    """A line."""
    return (f"{' '.join(kind):11} {name:9} kept: quiet p50 {result['quiet_p50']:6.0f} us p99 {result['quiet_p99']:7.0f} us, "
            f"storm ({result['storm_rate']:.0f}/s, core {result['busy']:.0%} busy) p50 {result['storm_p50']:6.0f} us "
            f"p99 {result['storm_p99']:7.0f} us ({result['ratio']:.1f} times); "
            f"handshake {result['cpu_us']:6.1f} us CPU, {result['rate']:6.0f}/s; errors {result['errors']:.0f}")


def verdict(kind, results):
    """Whether what is asked for holds."""
    ours, other = results.get((kind, "ironweir")), results.get((kind, "nginx"))
    what = " ".join(kind)
    if ours:
        met = "met" if ours["ratio"] <= MOST_P99 else "missed"
        print(f"{what}: p99 in the storm {ours['ratio']:.1f} times the quiet one, at most {MOST_P99}: {met}")
    if ours and other:
        ratio, wanted = ours["gain"], WANTED[kind[0]]
        met = "met" if ratio >= wanted else "missed"
        print(f"{what}: nginx's CPU for a handshake over ironweir's {ratio:.2f}, at least {wanted}: {met}")


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    program = TARGET / "release/ironweir"
    parser.add_argument("--ironweir", default=program, type=pathlib.Path, help="the server")
    parser.add_argument("--load", default=program, type=pathlib.Path, help="the binary whose `stress` makes the load")
    parser.add_argument("--servers", default=["nginx", "ironweir"], type=lambda text: text.split(","))
    parser.add_argument("--keys", default=list(KEYS), type=lambda text: text.split(","))
    parser.add_argument("--ciphers", default=list(CIPHERS), type=lambda text: text.split(","))
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--seconds", default=4, type=int)
    parser.add_argument("--storm", default=STORM, type=int, help="connections that shake hands at once")
    parser.add_argument("--groups", default=GROUPS, help="ssl_ecdh_curve")
    parser.add_argument("--nice", default=-20, type=int, help="of the servers")
    parser.add_argument("--server-cpu", default=1, type=int)
    parser.add_argument("--load-cpu", default=0, type=int)
    return parser.parse_args()


if __name__ == "__main__":
    main()
