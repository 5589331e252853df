#!/usr/bin/env python3
"""What it costs a request that its time is kept in parts (crates/server/src/status/spent.rs), in instructions.

A worker under callgrind answers so many requests on one kept connection, then more of them in a second run; the difference is what requests cost, and
of that what was inlined from spent.rs, with what it calls itself (the clock, the counters): by the stack of inlined functions of each instruction.
Needs valgrind, addr2line and a binary with line tables (a release build has them).
"""
import argparse
import collections
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
CONF = """
worker_processes 1; master_process off; daemon off; error_log {dir}/error.log; pid {dir}/pid; events {{ worker_connections 256; }}
http {{ access_log off; upstream app {{ zone app 64k; server 127.0.0.1:{peer}; keepalive 4; }}
  server {{ listen 127.0.0.1:{port}; keepalive_requests 1000000; location /return {{ return 200 ok; }}
    location /proxy {{ proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection ""; }} }} }}
"""
PEER = """
worker_processes 1; master_process off; daemon off; error_log {dir}/peer.log; pid {dir}/peer.pid; events {{ worker_connections 256; }}
http {{ access_log off; server {{ listen 127.0.0.1:{peer}; keepalive_requests 1000000; location / {{ return 200 hello; }} }} }}
"""
PART = "/status/spent.rs:"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def connected(port):
    end = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def drive(port, path, count):
    """Requests one after the other on one connection."""
    with connected(port) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: a\r\n\r\n".encode()
        for _ in range(count):
            s.sendall(request)
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += s.recv(65536)
            head, body = answer.split(b"\r\n\r\n", 1)
            length = int(re.search(rb"(?i)content-length: (\d+)", head).group(1))
            while len(body) < length:
                body += s.recv(65536)
            assert head.startswith(b"HTTP/1.1 200"), head


def costs(text, binary):
    """Instructions by address of the binary, and of all."""
    by_address, skip, is_own, names = collections.Counter(), False, False, {}
    for line in text.splitlines():
        if skip:
            # The line behind `calls=` is what was called, which stands where it is.
            skip = False
        elif match := re.match(r"(c?)ob=\((\d+)\)(?: (.*))?", line):
            if match[3]:
                names[match[2]] = match[3]
            if not match[1]:
                is_own = names.get(match[2], "") == str(binary)
        elif line.startswith("calls="):
            skip = True
        elif line.startswith("0x"):
            address, *_, count = line.split()
            by_address["all"] += int(count)
            if is_own:
                by_address[int(address, 16)] += int(count)
    return by_address


def inlined(binary, addresses):
    """Those of the addresses whose stack of inlined functions has a line of the file. Callgrind writes addresses as they are in the file."""
    asked = "".join(f"{address:#x}\n" for address in addresses)
    out = subprocess.run(["addr2line", "-a", "-i", "-e", binary], input=asked, capture_output=True, text=True, check=True).stdout
    found, here = set(), None
    for line in out.splitlines():
        if line.startswith("0x"):
            here = int(line, 16)
        elif PART in line:
            found.add(here)
    return found


def run(options, path, count):
    with tempfile.TemporaryDirectory(prefix="parts-", dir="/dev/shm") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        port, peer = free_port(), free_port()
        (folder / "server.conf").write_text(CONF.format(dir=name, port=port, peer=peer))
        (folder / "peer.conf").write_text(PEER.format(dir=name, peer=peer))
        backend = subprocess.Popen([options.ironweir, "-c", folder / "peer.conf"], stderr=subprocess.DEVNULL)
        out = folder / "callgrind.out"
        server = subprocess.Popen(["valgrind", "--tool=callgrind", "--dump-instr=yes", "--compress-pos=no", f"--callgrind-out-file={out}.%p", "--trace-children=yes",
                                   options.ironweir, "-c", folder / "server.conf"], stderr=subprocess.DEVNULL)
        try:
            drive(port, path, count)
        finally:
            server.send_signal(signal.SIGQUIT)
            server.wait(60)
            backend.send_signal(signal.SIGTERM)
            backend.wait(20)
        return sum((costs(file.read_text(), options.ironweir) for file in folder.glob("callgrind.out*")), collections.Counter())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ironweir", type=pathlib.Path, default=TARGET / "release/ironweir")
    parser.add_argument("--requests", type=int, default=2000)
    options = parser.parse_args()
    options.ironweir = options.ironweir.resolve()
    for path in ("/return", "/proxy"):
        few, many = run(options, path, options.requests // 4), run(options, path, options.requests)
        each = {at: (many[at] - few[at]) / (options.requests - options.requests // 4) for at in many}
        whole = each.pop("all")
        part = sum(each[at] for at in inlined(options.ironweir, list(each)))
        print(f"{path:<8} {whole:8.0f} instructions a request in user space, {part:.0f} of them for its time in parts: {part / whole:.2%}", flush=True)


if __name__ == "__main__":
    main()
