#!/usr/bin/env python3
"""What a connection that waits costs in the server's user memory.

Opens many connections from a few addresses of 127.0.0.0/8, sends one request on each (or nothing, or the beginning of a
head), leaves them idle, and compares the server's memory (PSS and RSS of all its processes) with what it was before. Ends
with status 1 where Ironweir takes more than it may (BARS). See perf/README.md.
"""
import argparse
import json
import os
import pathlib
import resource
import signal
import socket
import ssl
import sys
import time

import storm
from rig import load, processes, servers
from rig.cases import CASES

TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", pathlib.Path(__file__).resolve().parent.parent / "target"))
# A process may have 20,000 descriptors here; some are the server's and the client's own.
CONNECTIONS_MOST = 19_500
SOURCES = 4
# Connections opened and closed before the first look, so that what a server allocates once is not counted.
WARM_UP = 100
REQUEST = b"GET /return HTTP/1.1\r\nHost: localhost\r\n\r\n"
# The same over HTTP/2: the preface, empty SETTINGS, and HEADERS of stream 1 (RFC 9113, RFC 7541: GET, https, /, localhost).
HEADERS = b"\x82\x87\x84\x41\x09localhost"
REQUEST2 = (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
            + bytes([0, 0, len(HEADERS), 1, 5, 0, 0, 0, 1]) + HEADERS)
# What answers end with: the body `x`, behind an empty line or in a DATA frame that ends the stream.
END, END2 = b"\r\n\r\nx", bytes([0, 0, 1, 0, 1, 0, 0, 0, 1]) + b"x"
# The beginning of a head.
PART = REQUEST[:30]
# So long the kernel keeps connections to itself that say nothing (deferred accept), in seconds, and some time to take them.
DEFERRED = 4
# What a connection to Ironweir may take at most, bytes of PSS, by what was sent on it; of fewer than some 10,000 each has more of what
# there is once.
BARS = {"request": 1150, "nothing": 1200, "part": 9000}
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def main():
    """Measures each server in turn and prints a line (or JSON) for each."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rig = servers.Rig(options.ironweir, options.floor, options.server_cpu, options.load_cpu)
    os.sched_setaffinity(0, {options.load_cpu})
    results = {}
    try:
        for name in options.servers:
            if not rig.available(name):
                print(f"{name}: not found ({rig.programs[name]}), left out", file=sys.stderr)
                continue
            results[name] = measure(rig, name, options)
            if not options.json:
                print(text(name, results[name]))
    finally:
        processes.stop_all()
        rig.close()
    if options.json:
        print(json.dumps(results, indent=1))
    taken, most = results.get("ironweir", {}).get("pss_per_connection", 0), BARS[options.sent]
    if taken > most and not options.tls:
        sys.exit(f"{taken:.0f} B for a connection, {most} are allowed")


def measure(rig, name, options):
    """One server: bytes for a connection while they are held, and what is left when they are gone."""
    server = start(rig, name, options)
    close_all(open_all(server.port, WARM_UP, options))
    settle(server, options.settle)
    before, kernel_before = server.memory(), kernel_memory()
    held = open_all(server.port, options.connections, options)
    if options.sent == "nothing":
        time.sleep(DEFERRED)
    settle(server, options.settle)
    during, kernel = server.memory(), kernel_memory()
    still_open = sum(alive(connection) for connection in held)
    close_all(held)
    settle(server, options.settle)
    after = server.memory()
    server.stop()
    return {
        "connections": options.connections, "still_open": still_open,
        "pss_before": before[0], "pss_held": during[0], "pss_after": after[0],
        "pss_per_connection": (during[0] - before[0]) / options.connections,
        "rss_per_connection": (during[1] - before[1]) / options.connections,
        "kernel_per_connection": (kernel - kernel_before) / options.connections,
    }


def start(rig, name, options):
    """One server, that speaks TLS or not."""
    if options.tls:
        storm.certificate(rig.folder, "p256")
        return storm.start(rig, name, ("p256", "aes128"), listen="http2" if options.http2 else "")
    server = rig.start(name, CASES["return"], 1)
    load.check(server, CASES["return"])
    return server


def open_all(port, count, options):
    """Connections that have each had an answer, unless something else is to be held."""
    connections = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = VERSIONS.get(options.tls, ssl.TLSVersion.MAXIMUM_SUPPORTED)
    context.set_alpn_protocols(["h2" if options.http2 else "http/1.1"])
    request, end = (REQUEST2, END2) if options.http2 else (REQUEST, END)
    for number in range(count):
        connection = socket.socket()
        connection.settimeout(60)
        connection.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT: a port for each destination
        connection.bind((f"127.0.0.{2 + number % SOURCES}", 0))
        # Who was sent no ticket would wait with its request for the delayed ACK of its Finished.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.connect(("127.0.0.1", port))
        connections.append(connection)
        if options.sent == "nothing":
            continue
        if options.tls:
            connections[-1] = connection = context.wrap_socket(connection)
        if options.sent == "part":
            connection.sendall(PART)
            continue
        connection.sendall(request)
        answer = b""
        while end not in answer:
            part = connection.recv(4096)
            if not part:
                raise ConnectionError(f"closed at connection {number} after {answer!r}")
            answer += part
    return connections


def alive(connection):
    """Whether the server still holds the connection."""
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        return False


def close_all(connections):
    """Ends all of them."""
    for connection in connections:
        connection.close()


def settle(server, seconds):
    """Waits until the server's memory has not changed for half a second, at most so long."""
    deadline = time.monotonic() + seconds
    last = None
    while time.monotonic() < deadline:
        now = server.memory()
        if now == last:
            return
        last = now
        time.sleep(0.5)


def kernel_memory():
    """Bytes of the kernel's slabs, where sockets, files and epoll entries live: both ends of all connections."""
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Slab:"):
            return int(line.split()[1]) * 1024
    return 0


def text(name, result):
    """The result in a line."""
    return (f"{name}: {result['connections']} held ({result['still_open']} still open), "
            f"{result['pss_per_connection']:.0f} B of PSS each, {result['rss_per_connection']:.0f} B of RSS; "
            f"PSS {result['pss_before'] / 1024:.0f} kB before, {result['pss_held'] / 1024:.0f} held, "
            f"{result['pss_after'] / 1024:.0f} after; kernel, both ends, about {result['kernel_per_connection']:.0f} B")


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=15_000, help=f"at most {CONNECTIONS_MOST}")
    parser.add_argument("--servers", type=lambda names: names.split(","), default=["nginx", "ironweir"])
    parser.add_argument("--tls", choices=VERSIONS, nargs="?", const="1.3", help="with TLS, of this version (1.3)")
    parser.add_argument("--http2", action="store_true", help="over HTTP/2; with --tls")
    parser.add_argument("--sent", choices=BARS, default="request",
                        help="what was sent on each: a request (answered), nothing, part of a head")
    parser.add_argument("--settle", type=float, default=10, help="seconds to wait for memory to settle, at most")
    parser.add_argument("--ironweir", type=pathlib.Path, default=TARGET / "release/ironweir")
    parser.add_argument("--floor", type=pathlib.Path, default=TARGET / "release/floor")
    parser.add_argument("--server-cpu", type=int, default=0)
    parser.add_argument("--load-cpu", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not 0 < options.connections <= CONNECTIONS_MOST:
        parser.error(f"--connections: 1 to {CONNECTIONS_MOST}")
    if options.http2 and options.sent == "part":
        parser.error("--http2: not with --sent part")
    if options.http2 and not options.tls:
        parser.error("--http2: only with --tls")
    return options


if __name__ == "__main__":
    main()
