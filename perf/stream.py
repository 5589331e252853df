#!/usr/bin/env python3
"""What a proxied connection and a relayed MB of TCP cost nginx `stream`, HAProxy and Ironweir, in microseconds of CPU, in one interleaved run.

A connection: it is opened, says one byte, hears one byte, and is closed by the server behind. A MB: one connection brings many, from a server
that sends from memory; both ends of the proxy are plain, so that what can splice(2) may. One worker, one thread each; only the CPU of the
proxy's own processes counts (/proc/PID/task/*/schedstat). Medians of the rounds.
Asked for: at most theirs, in both.
"""
import argparse
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODULE = pathlib.Path("/usr/lib/nginx/modules/ngx_stream_module.so")
NGINX = """{module}daemon off; pid {folder}/{name}.pid; error_log {folder}/{name}.log crit; worker_processes 1; {user}
events {{ worker_connections 1024; }}
stream {{ server {{ listen 127.0.0.1:{port}; proxy_pass 127.0.0.1:{server}; }} }}
"""
HAPROXY = """global
    nbthread 1
    maxconn 1024
defaults
    mode tcp
    option splice-auto
    timeout connect 5s
    timeout client 1m
    timeout server 1m
listen relay
    bind 127.0.0.1:{port}
    server one 127.0.0.1:{server}
"""
MB = 1_000_000
NAMES = ["nginx", "haproxy", "ironweir"]


def main():
    """Measures in rounds, prints a line for each round, then medians and ratios."""
    options = parse()
    server = socket.create_server(("127.0.0.1", 0), backlog=1024)
    threading.Thread(target=serve, args=(server,), daemon=True).start()
    found = {(name, what): [] for name in NAMES for what in ("connection", "MB")}
    with tempfile.TemporaryDirectory() as folder:
        proxies = {}
        try:
            for name in NAMES:
                proxies[name] = start(options, name, pathlib.Path(folder), server.getsockname()[1])
            for n in range(options.rounds):
                for name, (child, port) in proxies.items():
                    found[name, "connection"].append(cost(child.pid, options.connections, lambda p=port: connections(p, options.connections)))
                    found[name, "MB"].append(cost(child.pid, options.mb, lambda p=port: relay(p, options.mb)))
                print(f"round {n + 1}: " + ", ".join(f"{name} {what} {all_[-1]:.1f}" for (name, what), all_ in found.items()), flush=True)
        finally:
            for child, _ in proxies.values():
                child.terminate()
                child.wait()
    report(found)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ironweir", type=pathlib.Path, default=ROOT / "target/release/ironweir")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=3000, help="in each round")
    parser.add_argument("--mb", type=int, default=500, help="in each round")
    return parser.parse_args()


def serve(listener):
    """One octet decides: what is heard comes back, or so many MB come."""
    block = b"x" * MB

    def bring(connection, wanted):
        with connection:
            for _ in range(wanted):
                connection.sendall(block)

    while True:
        connection, _ = listener.accept()
        said = connection.recv(16)
        if said.startswith(b"m"):
            threading.Thread(target=bring, args=(connection, int(said[1:])), daemon=True).start()
            continue
        if said:
            connection.sendall(said)
        connection.close()


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def start(options, name, folder, server):
    port = free_port()
    conf = folder / f"{name}.conf"
    if name == "haproxy":
        conf.write_text(HAPROXY.format(port=port, server=server))
        words = ["haproxy", "-db", "-q", "-f", conf]
    else:
        module = f"load_module {MODULE};\n" if name == "nginx" and MODULE.exists() else ""
        conf.write_text(NGINX.format(module=module, folder=folder, name=name, user="user root;" if os.getuid() == 0 else "", port=port, server=server))
        words = ["nginx" if name == "nginx" else options.ironweir, "-p", folder, "-c", conf]
    child = subprocess.Popen(words)
    end = time.monotonic() + 10
    while True:
        try:
            connections(port, 200)
            return child, port
        except OSError:
            if time.monotonic() > end or child.poll() is not None:
                sys.exit(f"{name} does not serve")
            time.sleep(0.05)


def connections(port, count):
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(b"c")
            if connection.recv(16) != b"c" or connection.recv(16) != b"":
                raise ConnectionError("another answer")


def relay(port, mb):
    got, room = 0, bytearray(1 << 20)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"m%d" % mb)
        while n := connection.recv_into(room):
            got += n
    if got != mb * MB:
        raise ConnectionError(f"{got} bytes of {mb * MB}")


def processes(pid):
    children = subprocess.run(["pgrep", "-P", str(pid)], stdout=subprocess.PIPE, text=True, check=False).stdout.split()
    return [pid, *map(int, children)]


def used(pids):
    tasks = [task for pid in pids for task in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1000


def cost(pid, count, work):
    pids = processes(pid)
    before = used(pids)
    work()
    return (used(pids) - before) / count


def report(found):
    for what in ("connection", "MB"):
        median = {name: statistics.median(found[name, what]) for name in NAMES}
        others = ", ".join(f"{median['ironweir'] / median[name]:.2f} of {name}'s" for name in NAMES[:2])
        print(f"{what}: " + ", ".join(f"{name} {us:.1f} us" for name, us in median.items()) + f"; ironweir {others} (asked for: at most 1.00)")
    print(f"load average {os.getloadavg()[0]:.1f} of {os.cpu_count()} CPUs")


main()
