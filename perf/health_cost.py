#!/usr/bin/env python3
"""What health checks cost: CPU of the server while it checks many peers, less what it uses with the same peers unchecked.

perf/health_cost.py IRONWEIR [--peers 1000] [--interval 1s] [--seconds 20] [--rounds 3]

Peers are addresses of one nginx on another core, which counts what arrives: a busy machine checks late, and that must not look cheap. The
kinds are measured in turns, so that what the machine does meanwhile is in all of them. Prints microseconds for a check, and what a core
spends on all of them; 1,000 peers a second are to cost under 5 percent.
"""
import argparse
import pathlib
import statistics
import tempfile
import time
import urllib.request

from rig import processes

SERVER_CPU, BACKEND_CPU = 0, 1
START_SECONDS = 3
CHECKED = {
    "tcp": "health_check interval=@I@ fails=1000 type=tcp;",
    "http": "health_check interval=@I@ fails=1000;",
    "http, kept": "health_check interval=@I@ fails=1000 keepalive_time=1h;",
}


def ports_of(count):
    """Addresses of 127.0.0.0/8 with one free port: a thousand ports in a row are seldom free."""
    port = processes.free_port()
    return [f"127.1.{i // 250}.{i % 250 + 1}:{port}" for i in range(count)], port


def backend(folder, addresses, port):
    """An nginx that answers on all addresses."""
    listens = "".join(f"listen {a};" for a in addresses)
    (folder / "backend.conf").write_text(
        f"daemon off; master_process off; worker_rlimit_nofile 65536; pid {folder}/backend.pid; error_log /dev/null;"
        f"events {{ worker_connections 20000; }} http {{ access_log off; keepalive_timeout 1h; keepalive_requests 1000000;"
        f"server {{ listen 127.0.0.1:{port}; {listens} location / {{ return 200 ok; }} location /count {{ stub_status; }} }} }}")
    return processes.start("backend", ["nginx", "-c", str(folder / "backend.conf")], folder, BACKEND_CPU, port)


def server(program, folder, name, addresses, check):
    """Ironweir with a group of all peers."""
    port = processes.free_port()
    servers = "".join(f"server {a};" for a in addresses)
    (folder / "server.conf").write_text(
        f"daemon off; worker_processes 1; pid {folder}/server.pid; error_log {folder}/{name}.log notice; events {{}}"
        f"http {{ access_log off; upstream u {{ zone u 16m; {servers} }} server {{ listen 127.0.0.1:{port};"
        f"location / {{ proxy_pass http://u; {check} }} }} }}")
    command = [str(program), "-p", str(folder), "-c", str(folder / "server.conf")]
    return processes.start("server", command, folder, SERVER_CPU, port)


def arrived(port):
    """Connections and requests that the backend has seen."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/count") as answer:
        accepted, _, requests = map(int, answer.read().split(b"\n")[2].split())
    return accepted, requests


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--peers", type=int, default=1000)
    parser.add_argument("--interval", default="1s")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    program = options.program.resolve()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        folder.chmod(0o755)
        addresses, port = ports_of(options.peers)
        backend(folder, addresses, port)
        used, costs = [], {kind: [] for kind in CHECKED}
        for _ in range(options.rounds):
            for kind, check in {"unchecked": "", **CHECKED}.items():
                running = server(program, folder, "server", addresses, check.replace("@I@", options.interval))
                time.sleep(START_SECONDS)
                before, counted, began = running.cpu(), arrived(port), time.monotonic()
                time.sleep(options.seconds)
                user, system, cpu = (b - a for a, b in zip(before, running.cpu()))
                seconds = time.monotonic() - began
                connections, requests = (b - a for a, b in zip(counted, arrived(port)))
                running.stop()
                if kind == "unchecked":
                    used.append(cpu / seconds)
                    continue
                checks = (connections if kind == "tcp" else requests) - 1
                costs[kind].append((cpu - used[-1] * seconds) / checks)
                print(f"{kind:10} {checks / seconds:6.0f} checks a second, {costs[kind][-1] * 1e6:6.1f} us for each, "
                      f"{system / (user + system) * 100:.0f} % of it the kernel's", flush=True)
        rate = options.peers / (float(options.interval.rstrip("ms")) / (1000 if options.interval.endswith("ms") else 1))
        print(f"{options.peers} peers, {rate:.0f} checks a second; unchecked {statistics.median(used) * 100:.2f} % of a core")
        for kind, cost in costs.items():
            cost = statistics.median(cost)
            print(f"{kind:10} {cost * rate * 100:6.2f} % of a core, {cost * 1e6:6.1f} us for a check")


if __name__ == "__main__":
    main()
