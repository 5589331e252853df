#!/usr/bin/env python3
"""What a guard of four limits costs a request that is above none of them, in instructions of user space: the same on a busy machine as on a quiet one.

perf/guard_instructions.py [IRONWEIR] [--requests 4000] [--keep FOLDER]

A server under callgrind answers so many requests of a browser's nine headers on one kept connection, then a quarter of them in another run: the difference is what a request costs. Each
case is asked for without a guard and with one. `calm`: nobody was ever challenged; `challenged`: somebody was, so that there are cookies to look for. `--keep` leaves callgrind's files
there, for `callgrind_annotate`. Needs valgrind.
"""
import argparse
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time

import guard_cost
from rig import processes

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
CONF = """
daemon off; master_process off; user root; pid {folder}/pid; error_log {folder}/error.log error; events {{ worker_connections 256; }}
http {{
    access_log off; keepalive_requests 100000000; keepalive_timeout 1h;
    guard site {{
        limit url     1000000r/s burst=1000000 challenge;
        limit address 1000000r/s burst=1000000 challenge;
        limit client  1000000r/s burst=1000000 refuse;
        limit headers 1000000r/s burst=1000000 work;
    }}
    guard asks {{ limit address 1r/m challenge; }}
    server {{
        listen 127.0.0.1:{port};
        location = /without {{ return 200 hello; }}
        location = /guarded {{ guard site; return 200 hello; }}
        location = /asks {{ guard asks; return 200 hello; }}
    }}
}}
"""
WITHOUT_COOKIE = tuple(line for line in guard_cost.HEADERS if not line.startswith("Cookie:"))
LONG_COOKIE = (*WITHOUT_COOKIE, "Cookie: _ga=GA1.1.123456789.1700000000; _gid=GA1.1.987654321.1700000001; theme=dark; lang=en-US; consent=a%3D1%26b%3D2; session=1234567890abcdef1234567890abcdef")
# The lines, whether somebody was challenged before, and whether the guard's own cookie is sent.
CASES = {
    "calm, a cookie": (guard_cost.HEADERS, False, False),
    "calm, no cookie": (WITHOUT_COOKIE, False, False),
    "challenged, a cookie": (guard_cost.HEADERS, True, False),
    "challenged, six cookies": (LONG_COOKIE, True, False),
    "challenged, its own cookie": (WITHOUT_COOKIE, True, True),
}


def connected(port):
    """A connection, as soon as the server listens."""
    end = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def ask(connection, path, lines):
    """One answer: its head."""
    connection.sendall("\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += connection.recv(65536)
    head, body = answer.split(b"\r\n\r\n", 1)
    length = int(re.search(rb"(?i)content-length: (\d+)", head).group(1))
    while len(body) < length:
        body += connection.recv(65536)
    return head


def challenge(connection):
    """Is challenged; the line with the cookie."""
    heads = [ask(connection, "/asks", ()) for _ in range(2)]
    assert heads[1].startswith(b"HTTP/1.1 302"), heads
    return "Cookie: " + re.search(r"(?i)set-cookie: ([^;]+)", heads[1].decode())[1]


def drive(port, path, case, count):
    """Requests one after the other on one connection."""
    lines, is_challenged, is_own = case
    with connected(port) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        cookie = challenge(connection) if is_challenged else None
        if is_own:
            lines = (*lines, cookie)
        for _ in range(count):
            head = ask(connection, path, lines)
            assert head.startswith(b"HTTP/1.1 200"), head


def run(program, path, case, count, out):
    """Instructions of a server that answers so many, from its start to its end."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        port = processes.free_port()
        pathlib.Path(folder, "c.conf").write_text(CONF.format(folder=folder, port=port))
        server = subprocess.Popen(["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", program, "-p", folder, "-c", f"{folder}/c.conf"],
                                  stderr=subprocess.DEVNULL)
        try:
            drive(port, path, case, count)
        finally:
            server.send_signal(signal.SIGQUIT)
            server.wait(60)
    return int(re.search(r"^(?:summary|totals): (\d+)", out.read_text(), re.MULTILINE)[1])


def main():
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path, nargs="?", default=TARGET / "release/ironweir")
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--cases", default="|".join(CASES))
    parser.add_argument("--keep", type=pathlib.Path)
    options = parser.parse_args()
    program, few = options.program.resolve(), options.requests // 4
    print("| request | without | with | difference |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        folder = options.keep or pathlib.Path(folder)
        for name in options.cases.split("|"):
            each = []
            for path in ("/without", "/guarded"):
                outs = [folder / f"{re.sub('[^a-z]+', '-', name)}{path.replace('/', '-')}.{count}" for count in (few, options.requests)]
                less, more = (run(program, path, CASES[name], count, out) for count, out in zip((few, options.requests), outs))
                each.append((more - less) / (options.requests - few))
            print(f"| {name} | {each[0]:.0f} | {each[1]:.0f} | {each[1] - each[0]:.0f} |", flush=True)


if __name__ == "__main__":
    main()
