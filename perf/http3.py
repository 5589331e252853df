#!/usr/bin/env python3
"""What HTTP/3 costs the server beside its own HTTP/2, and beside nginx: CPU for a MB of a large file, and for a small request.

Servers and protocols in turns, each server with one thread on one CPU; the clients have another. The load is the Go program
in tests/quic-go, the same for both protocols; for the large file also ngtcp2's gtlsclient (HTTP/3) and curl (HTTP/2), since
clients differ in how often they acknowledge. nginx takes part if it is given and has HTTP/3. With --mtu packets are as large as
that, as on a network: over the loopback both servers send gtlsclient, which takes them, datagrams of 64 kB.
Asked for: HTTP/2's CPU for a MB over HTTP/3's at least 0.5.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys

from rig import processes, servers
from storm import TARGET, certificate

WANTED = 0.5
SERVERS = ["ironweir", "nginx"]
# Set where the network is one of its own already.
INSIDE = "HTTP3_NARROW"
MB = 1_000_000
CLIENT = pathlib.Path(__file__).resolve().parent.parent / "tests/quic-go"
CONFIGURATION = """user root;
worker_processes 1;
daemon off;
pid {folder}/{name}.pid;
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
    if options.mtu:
        narrow(options.mtu)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rig = servers.Rig(options.ironweir, "floor", options.server_cpu, options.load_cpu)
    rig.programs["nginx"] = options.nginx
    try:
        loads = cases(options, rig)
        certificate(rig.folder, "p256")
        running = {name: start(rig, name, options) for name in SERVERS if name == "ironweir" or has_http3(options.nginx)}
        results = {(name, *case): [] for case in loads for name in running}
        for _ in range(options.rounds):
            for name, *case in results:
                command, units, _ = loads[tuple(case)]
                url = f"https://localhost:{running[name].port}"
                results[(name, *case)].append(measure(running[name], command(url), units, options))
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


def narrow(mtu):
    """Starts again in a network of its own, whose loopback takes packets of so many bytes. Needs root."""
    if INSIDE in os.environ:
        return
    script = 'ip link set lo mtu "$0" up && exec "$@"'
    command = ["unshare", "--net", "sh", "-c", script, str(mtu), sys.executable, *sys.argv]
    os.execvpe(command[0], command, os.environ | {INSIDE: "1"})


def has_http3(nginx):
    """Whether there is such a program, and it was built with HTTP/3."""
    if not nginx or not shutil.which(nginx):
        return False
    return "--with-http_v3_module" in subprocess.run([nginx, "-V"], capture_output=True, text=True, check=True).stderr


def start(rig, name, options):
    """One server."""
    port = processes.free_port()
    conf = rig.folder / f"{name}.conf"
    # What is on there by default anyway.
    more = options.directives + (" quic_gso on;" if name == "nginx" else "")
    conf.write_text(CONFIGURATION.format(folder=rig.folder, name=name, port=port, more=more))
    (rig.folder / "logs").mkdir(exist_ok=True)
    command = [rig.programs[name], "-p", str(rig.folder), "-c", str(conf), "-e", str(rig.folder / "error.log")]
    return processes.start(name, command, rig.folder, rig.server_cpu, port)


def measure(server, command, units, options):
    """One round: user, system and all CPU seconds, and what they brought."""
    before = server.cpu()
    ran = subprocess.run(["taskset", "-c", str(options.load_cpu), *command], stdout=subprocess.PIPE, timeout=60, check=True)
    user, system, precise = (after - begin for after, begin in zip(server.cpu(), before))
    return user, system, precise, units(ran.stdout)


def report(loads, results):
    """A line for each; then the ratios."""
    costs = {}
    for (server, name, protocol), rounds in results.items():
        unit = loads[name, protocol][2]
        scale = 1e3 if unit == "ms/MB" else 1e6
        each = [cpu * scale / done for _, _, cpu, done in rounds]
        costs[server, name, protocol] = statistics.median(each)
        user, system = (sum(one[i] for one in rounds) for i in (0, 1))
        print(f"{name:26} {protocol} {server:8} {statistics.median(each):7.3f} {unit} ({min(each):.3f} to {max(each):.3f}), "
              f"{user / max(user + system, 1e-9):.0%} of it user")
    for name in dict.fromkeys(name for name, _ in loads):
        ours = costs["ironweir", name, "h3"]
        ratio = costs["ironweir", name, "h2"] / ours
        wanted = "" if name == "requests" else f", at least {WANTED}: {'met' if ratio >= WANTED else 'missed'}"
        print(f"{name}: HTTP/2's CPU over HTTP/3's {ratio:.2f}{wanted}")
        if ("nginx", name, "h3") in costs:
            print(f"{name}: nginx's CPU over ironweir's, HTTP/3: {costs['nginx', name, 'h3'] / ours:.2f}")


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ironweir", default=TARGET / "release/ironweir", type=pathlib.Path, help="the server")
    parser.add_argument("--nginx", help="an nginx with HTTP/3, to run beside it (its quic_gso is on)")
    parser.add_argument("--mtu", type=int, help="in a network of its own, with packets of at most so many bytes")
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
