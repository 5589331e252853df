#!/usr/bin/env python3
"""What is left of a backend under three times the load that it can carry: good answers a second, Ironweir with `concurrency_limit auto` and without, nginx beside it.

perf/shed.py IRONWEIR [--nginx /usr/sbin/nginx] [--workers 8] [--took 20] [--times 3] [--seconds 15] [--patience 500]

The backend has so many workers, each as long (ms) on a request; others wait in a row. Its capacity is workers / took. Requests are offered at a steady rate,
whatever becomes of those before; an answer is good if it is a 200 within the patience (ms). One line for each server, and the share of the capacity.

Exit status 1: with the limit less than nine tenths of what the same server carries at nine tenths of the capacity are left.
"""
import argparse
import asyncio
import pathlib
import subprocess
import sys
import tempfile
import time

CONF = """
daemon off; worker_processes 1; {user} pid {folder}/{name}.pid; error_log {folder}/{name}.log error; events {{ worker_connections 8192; }}
http {{
    access_log off;
    upstream app {{ server 127.0.0.1:{backend} max_fails=0; {limit} }}
    server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ proxy_pass http://app; proxy_connect_timeout 5s; }} }}
}}
"""


class Backend:
    """Workers behind a row without end."""

    def __init__(self, workers, took):
        self.free, self.took = asyncio.Semaphore(workers), took

    async def start(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0, backlog=4096)
        return self.server.sockets[0].getsockname()[1]

    async def serve(self, reader, writer):
        try:
            await reader.readuntil(b"\r\n\r\n")
            async with self.free:
                await asyncio.sleep(self.took)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nwell")
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


async def ask(port, patience):
    async def talk():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"GET / HTTP/1.0\r\nHost: a\r\n\r\n")
            return (await reader.readline()).split(b" ")[1:2] == [b"200"]
        finally:
            writer.close()

    try:
        return await asyncio.wait_for(talk(), patience)
    except (OSError, asyncio.TimeoutError):
        return False


async def offer(port, rate, seconds, patience):
    """Good answers a second over the last two thirds."""
    began, asked = time.monotonic(), []
    for n in range(int(rate * seconds)):
        due = began + n / rate
        if (wait := due - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        asked.append(asyncio.ensure_future(ask(port, patience)))
    good = await asyncio.gather(*asked)
    first = len(good) // 3
    return sum(good[first:]) / (seconds * 2 / 3)


def free_port():
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


async def measure(name, program, limit, options, folder):
    backend = Backend(options.workers, options.took / 1000)
    ports = {"backend": await backend.start(), "port": free_port()}
    conf = pathlib.Path(folder, f"{name}.conf")
    conf.write_text(CONF.format(name=name, folder=folder, limit=limit, user="user root;", **ports))
    server = subprocess.Popen([program, "-p", folder, "-c", conf, "-e", f"{folder}/{name}.log"])
    try:
        for _ in range(200):
            if await ask(ports["port"], 1):
                break
            await asyncio.sleep(0.05)
        capacity = options.workers * 1000 / options.took
        calm = await offer(ports["port"], capacity * 0.9, options.seconds / 3, options.patience / 1000) / 0.9
        good = await offer(ports["port"], capacity * options.times, options.seconds, options.patience / 1000)
        print(f"{name:22} {good:7.1f} good answers a second of {calm:.1f} at most: {good / max(calm, 1):.0%}", flush=True)
        return good / max(calm, 1)
    finally:
        server.terminate()
        server.wait()
        backend.server.close()


async def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ironweir")
    parser.add_argument("--nginx", default="/usr/sbin/nginx")
    for name, value in [("workers", 8), ("took", 20), ("times", 3), ("seconds", 15), ("patience", 500)]:
        parser.add_argument(f"--{name}", type=float if name == "times" else int, default=value)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "logs").mkdir()
        kept = await measure("ironweir-limit", options.ironweir, "concurrency_limit auto min=2;", options, folder)
        await measure("ironweir", options.ironweir, "", options, folder)
        if pathlib.Path(options.nginx).exists():
            await measure("nginx", options.nginx, "", options, folder)
    return 0 if kept >= 0.9 else 1


sys.exit(asyncio.run(main()))
