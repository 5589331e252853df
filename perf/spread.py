#!/usr/bin/env python3
"""How evenly connections are spread over the worker threads.

Opens 10,000 kept connections over 8 threads and counts what each thread's epoll set watches (from /proc/PID/fdinfo).
The kernel spreads them by a hash of addresses and ports over one listening socket a thread; the promise is that the
busiest thread has at most 1.25 times what the idlest has. Clients are processes of their own: a process may have
20,000 descriptors here, and a connection has two ends. Exit status 1 when the promise is broken.
"""
import argparse
import os
import pathlib
import resource
import socket
import subprocess
import sys
import tempfile
import time

TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", pathlib.Path(__file__).resolve().parent.parent / "target"))
PROMISE = 1.25
CLIENT_CONNECTIONS_MOST = 5_000
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
CONFIGURATION = """
daemon off; pid {dir}/pid; error_log {dir}/error.log warn; worker_processes {threads}; worker_rlimit_nofile 20000;
events {{ worker_connections 20000; }}
http {{ access_log off; keepalive_timeout 1h; server {{ listen 127.0.0.1:{port} backlog=8192; return 200 ok; }} }}
"""


def main():
    """Measures and says the figure."""
    options = parse()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if options.client:
        return client(options.port, options.connections)
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        ratio = measure(options, pathlib.Path(directory))
    return 0 if ratio <= PROMISE else 1


def measure(options, directory):
    """Busiest to idlest, and prints a line."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = CONFIGURATION.format(dir=directory, port=port, threads=options.threads)
    (directory / "nginx.conf").write_text(text)
    server = subprocess.Popen([options.ironweir, "-p", directory, "-c", directory / "nginx.conf"])
    clients = []
    try:
        wait_for(port)
        left = options.connections
        while left > 0:
            count = min(left, CLIENT_CONNECTIONS_MOST)
            command = [sys.executable, __file__, "--client", "--port", str(port), "--connections", str(count)]
            clients.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            left -= count
        for process in clients:
            assert process.stdout.readline() == b"open\n", "a client could not open its connections"
        shares = watched(server.pid, options)
    finally:
        for process in clients:
            process.stdin.close()
            process.wait()
        server.terminate()
        server.wait()
    ratio = max(shares) / min(shares)
    print(f"{options.connections} connections, {options.threads} threads: {shares}, busiest to idlest {ratio:.3f}")
    return ratio


def watched(master, options):
    """What each thread's epoll set watches, fewest first. The sets of threads without connections are left out."""
    worker = pathlib.Path(f"/proc/{master}/task/{master}/children").read_text().split()[0]
    shares = []
    for entry in pathlib.Path(f"/proc/{worker}/fdinfo").iterdir():
        count = entry.read_text().count("tfd:")
        if count > options.connections / options.threads / 4:
            shares.append(count)
    assert len(shares) == options.threads, f"{len(shares)} epoll sets with connections: {shares}"
    return sorted(shares)


def client(port, count):
    """Opens connections from a few addresses, asks once on each, holds them until standard input ends."""
    held = []
    for i in range(count):
        held.append(socket.create_connection(("127.0.0.1", port), source_address=(f"127.0.0.{2 + i % 4}", 0)))
        held[-1].sendall(REQUEST)
    for connection in held:
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    print("open", flush=True)
    sys.stdin.read()
    return 0


def wait_for(port):
    """Until the server accepts."""
    for _ in range(400):
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.025)
    raise SystemExit("the server did not come up")


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ironweir", default=TARGET / "release" / "ironweir")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
