#!/usr/bin/env python3
"""What health checks cost: CPU of the server while it checks many peers, less what it uses with the same peers unchecked.

perf/health_cost.py IRONWEIR [--floor FLOOR] [--peers 1000] [--interval 1s] [--seconds 20] [--rounds 3]

Peers are addresses of one nginx on another core, which counts what arrives: a busy machine checks late, and that must not look cheap. The
kinds are measured in turns, so that what the machine does meanwhile is in all of them. Prints microseconds for a check, and what a core
spends on all of them; 1,000 peers a second are to cost under 5 percent. FLOOR (`cargo build --release -p floor`) makes the same calls
and does nothing else. On the loopback interface the kernel does the peers' side of a connection on the caller's time as well.
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
    "half-open": "health_check interval=@I@ fails=1000 type=tcp_half_open;",
    "tcp": "health_check interval=@I@ fails=1000 type=tcp;",
    "http": "health_check interval=@I@ fails=1000;",
    "http, kept": "health_check interval=@I@ fails=1000 keepalive_time=1h;",
}
FLOORS = {"tcp": "tcp", "http": "http", "http, kept": "kept"}


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


def measure(start, port, seconds):
    """CPU seconds a second of what `start` starts, its part in the kernel, and connections and requests a second."""
    running = start()
    time.sleep(START_SECONDS)
    before, counted, began = running.cpu(), arrived(port), time.monotonic()
    time.sleep(seconds)
    user, system, cpu = (b - a for a, b in zip(before, running.cpu()))
    passed = time.monotonic() - began
    connections, requests = (b - a for a, b in zip(counted, arrived(port)))
    running.stop()
    # One of each is the question itself.
    return cpu / passed, system / max(user + system, 0.01), (connections - 1) / passed, (requests - 1) / passed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--floor", type=pathlib.Path)
    parser.add_argument("--peers", type=int, default=1000)
    parser.add_argument("--interval", default="1s")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", default=",".join(CHECKED).replace(", ", " "), help="of: %(default)s")
    options = parser.parse_args()
    program = options.program.resolve()
    kinds = {k: c for k, c in CHECKED.items() if k.replace(", ", " ") in options.kinds.split(",")}
    interval_ms = float(options.interval.rstrip("ms")) * (1 if options.interval.endswith("ms") else 1000)
    rate = options.peers / interval_ms * 1000
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        folder.chmod(0o755)
        addresses, port = ports_of(options.peers)
        backend(folder, addresses, port)
        used, costs = [], {}
        for _ in range(options.rounds):
            own = lambda check: server(program, folder, "server", addresses, check.replace("@I@", options.interval))
            used.append(measure(lambda: own(""), port, options.seconds)[0])
            for kind, check in kinds.items():
                tries = [("ironweir", lambda: own(check), used[-1])]
                if options.floor and kind in FLOORS:
                    command = [str(options.floor.resolve()), "check", FLOORS[kind], str(port), str(options.peers), str(int(interval_ms))]
                    tries.append(("floor", lambda: processes.start("floor", command, folder, SERVER_CPU, 0), 0))
                for who, start, idle in tries:
                    cpu, kernel, connections, requests = measure(start, port, options.seconds)
                    # A half-open check is no connection to the backend: what was to be done stands for what was.
                    checks = {"tcp": connections, "half-open": rate}.get(kind, requests)
                    costs.setdefault((kind, who), []).append((cpu - idle) / checks)
                    print(f"{kind:10} {who:8} {checks:6.0f} checks a second, {costs[kind, who][-1] * 1e6:6.1f} us for each, "
                          f"{kernel * 100:.0f} % of it the kernel's", flush=True)
        print(f"{options.peers} peers, {rate:.0f} checks a second; unchecked {statistics.median(used) * 100:.2f} % of a core")
        for (kind, who), cost in costs.items():
            cost = statistics.median(cost)
            print(f"{kind:10} {who:8} {cost * rate * 100:6.2f} % of a core, {cost * 1e6:6.1f} us for a check")


if __name__ == "__main__":
    main()
