#!/usr/bin/env python3
"""What is left of a backend under three times the load that it can carry: good answers a second, Ironweir with `concurrency_limit auto` and without, nginx beside it.

perf/shed.py IRONWEIR [--nginx /usr/sbin/nginx] [--workers 4] [--took 40] [--times 3] [--seconds 15] [--patience 500] [--tries 3]

The backend, a process of its own, has so many workers, each as long (ms) on a request; others wait in a row without end. Its capacity is workers / took: little
enough (100 a second) that this machine is never what bounds it. Requests are offered at a steady rate, whatever becomes of those before; an answer is good if it
is a 200 within the patience (ms) of the time at which it was due. One line for each server, and the share of what the same server carries at nine tenths of the
capacity (`most`). It takes at most 1.4 times --seconds for each server and try.

A run is invalid, and tried again, where requests left late (one in a hundred by more than LATE_MS) or the calm load was not carried.
Exit status 1: with the limit less than nine tenths are left, or no run was valid.
"""
import argparse
import asyncio
import multiprocessing
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

LATE_MS = 50
CALM = 0.9
KEPT = 0.9
START_SECONDS = 10

CONF = """
daemon off; worker_processes 1; user root; pid {folder}/{name}.pid; error_log {folder}/{name}.log error; events {{ worker_connections 8192; }}
http {{
    access_log off;
    upstream app {{ server 127.0.0.1:{backend} max_fails=0; {limit} }}
    server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ proxy_pass http://app; proxy_connect_timeout 5s; }} }}
}}
"""


def backend(workers, took, ports):
    """Workers behind a row without end; tells its port."""
    async def main():
        free = asyncio.Semaphore(workers)

        async def serve(reader, writer):
            try:
                await reader.readuntil(b"\r\n\r\n")
                async with free:
                    await asyncio.sleep(took)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nwell")
                await writer.drain()
            except (OSError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=4096)
        ports.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


async def ask(port, until):
    """Whether a good answer has come by then."""
    async def talk():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"GET / HTTP/1.0\r\nHost: a\r\n\r\n")
            return (await reader.readline()).split(b" ")[1:2] == [b"200"]
        finally:
            writer.close()

    try:
        return await asyncio.wait_for(talk(), until - time.monotonic())
    except (OSError, asyncio.TimeoutError):
        return False


async def offer(port, rate, seconds, patience):
    """Good answers a second over the last two thirds, and by how much the latest of a hundred requests left late, ms."""
    began, asked, late = time.monotonic(), [], []
    for n in range(int(rate * seconds)):
        due = began + n / rate
        if (wait := due - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        late.append(time.monotonic() - due)
        asked.append(asyncio.ensure_future(ask(port, due + patience)))
    good = await asyncio.gather(*asked)
    first = len(good) // 3
    return sum(good[first:]) / (len(good) - first) * rate, sorted(late)[len(late) * 99 // 100] * 1000


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


async def run(name, program, limit, options, folder):
    """The share that is left, and why the run is invalid, if it is."""
    ports = multiprocessing.Queue()
    behind = multiprocessing.Process(target=backend, args=(options.workers, options.took / 1000, ports), daemon=True)
    behind.start()
    numbers = {"backend": ports.get(timeout=START_SECONDS), "port": free_port()}
    conf = pathlib.Path(folder, f"{name}.conf")
    conf.write_text(CONF.format(name=name, folder=folder, limit=limit, **numbers))
    server = subprocess.Popen([program, "-p", folder, "-c", conf, "-e", f"{folder}/{name}.log"])
    try:
        until = time.monotonic() + START_SECONDS
        while not await ask(numbers["port"], time.monotonic() + 1):
            if time.monotonic() > until or server.poll() is not None:
                sys.exit(f"{name} does not serve: {pathlib.Path(folder, f'{name}.log').read_text()}")
            await asyncio.sleep(0.05)
        capacity, patience = options.workers * 1000 / options.took, options.patience / 1000
        calm, calm_late = await offer(numbers["port"], capacity * CALM, options.seconds / 3, patience)
        good, late = await offer(numbers["port"], capacity * options.times, options.seconds, patience)
        most = calm / CALM
        invalid = None
        if max(late, calm_late) > LATE_MS:
            invalid = f"requests left {max(late, calm_late):.0f} ms late"
        elif most < capacity * 0.95:
            invalid = f"of {capacity * CALM:.0f} calm requests a second {calm:.0f} were answered"
        note = f"INVALID: {invalid}" if invalid else f"{good / most:.0%}"
        load = os.getloadavg()[0]
        print(f"{name:15} {good:6.1f} good answers a second of {most:6.1f} at most: {note} (load average {load:.1f}, left {late:.1f} ms late)", flush=True)
        return good / max(most, 1), invalid
    finally:
        server.terminate()
        server.wait()
        behind.terminate()
        behind.join()


async def measure(name, program, limit, options, folder):
    """The first valid run of some; None: there was none."""
    for _ in range(options.tries):
        kept, invalid = await run(name, program, limit, options, folder)
        if not invalid:
            return kept
    return None


async def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ironweir")
    parser.add_argument("--nginx", default="/usr/sbin/nginx")
    for name, value in [("workers", 4), ("took", 40), ("times", 3), ("seconds", 15), ("patience", 500), ("tries", 3)]:
        parser.add_argument(f"--{name}", type=float if name == "times" else int, default=value)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "logs").mkdir()
        kept = await measure("ironweir-limit", options.ironweir, "concurrency_limit auto min=2;", options, folder)
        await measure("ironweir", options.ironweir, "", options, folder)
        if pathlib.Path(options.nginx).exists():
            await measure("nginx", options.nginx, "", options, folder)
    return 0 if kept is not None and kept >= KEPT else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
