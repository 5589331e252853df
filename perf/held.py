#!/usr/bin/env python3
"""What a message to many subscribers costs, beside nchan.

One channel, many WebSocket subscribers (held by `ironweir stress --hold`), messages at a rate: CPU time of the server for each message
that it delivers, the time until the first and the last of some watched subscribers have one, and memory for each subscriber. The server is on one
processor, all else on another. The servers take turns, `--rounds` times. `--channels N`: N channels with one subscriber each instead, messages to them in
turn (nchan gets as many workers as its descriptors take, on the same processor). See perf/notes.
"""
import argparse
import http.client
import json
import math
import os
import pathlib
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", pathlib.Path(__file__).resolve().parent.parent / "target"))
NCHAN = "/usr/lib/nginx/modules/ngx_nchan_module.so"
TICK = os.sysconf("SC_CLK_TCK")
UPGRADE = ("GET /sub HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
           "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
KINDS = {"websocket": UPGRADE, "eventsource": "GET /sub HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\n\r\n",
         "longpoll": "GET /sub HTTP/1.1\r\nHost: a\r\n\r\n"}
CONFIGURATION = """
daemon off; worker_processes {workers}; worker_rlimit_nofile 20000; pid {dir}/pid; error_log {dir}/error.log warn; {load}
events {{ worker_connections 19000; }}
http {{ access_log {log}; keepalive_requests 1000000; nchan_shared_memory_size 1024m; server {{ listen 127.0.0.1:{port};
  location /pub {{ nchan_publisher; nchan_channel_id a; }}
  location /sub {{ nchan_subscriber; nchan_channel_id a; nchan_subscriber_first_message newest; }}
  location /own {{ nchan_subscriber; nchan_channel_id $connection; nchan_subscriber_first_message newest; }}
  location /to {{ nchan_publisher; nchan_channel_id $arg_id; nchan_message_buffer_length 1; }}
  location /number {{ return 200 $connection; }}
  location /status {{ nchan_stub_status; }} }} }}
"""
# Subscribers of one worker of nchan: its descriptors end at 20,000.
EACH_WORKER = 15_000
# Messages that are sent before the answers are read; one of them goes to a channel that is watched.
BATCH = 16
PORTS = 25_000


def main():
    """Measures each server in turn and prints a line of JSON for each, then the medians."""
    options = parse()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    os.sched_setaffinity(0, {options.load_cpu})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.memory:
        for name in options.servers:
            print(json.dumps({"server": name, "bytes_each": {kind: hold(name, kind, options) for kind in KINDS}}), flush=True)
        return
    rows = {}
    for _ in range(options.rounds):
        for name in options.servers:
            row = measure_channels(name, options) if options.channels else measure(name, options)
            rows.setdefault(name, []).append(row)
            print(json.dumps({"server": name, **row}), flush=True)
    for name, all_rows in rows.items():
        keys = [k for k in all_rows[0] if all(isinstance(r[k], (int, float)) for r in all_rows)]
        print(json.dumps({"server": name, "median": {k: round(statistics.median(r[k] for r in all_rows), 3) for k in keys}}))


def parse():
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ironweir", default=str(TARGET / "release/ironweir"))
    parser.add_argument("--servers", nargs="+", default=["nchan", "ironweir"])
    parser.add_argument("--subscribers", type=int, default=10_000)
    parser.add_argument("--channels", type=int, default=0, help="so many channels with one subscriber each")
    parser.add_argument("--rate", type=float, default=20, help="messages a second")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--watched", type=int, default=20, help="subscribers whose delays are measured")
    parser.add_argument("--log", default="off", help="the access log")
    parser.add_argument("--memory", action="store_true", help="only what subscribers of each kind take, opened one after the other")
    parser.add_argument("--server-cpu", type=int, default=0)
    parser.add_argument("--load-cpu", type=int, default=1)
    return parser.parse_args()


def measure(name, options):
    """Starts a server, subscribes, publishes, and says what it cost."""
    directory, port, server = start(name, options)
    holder = None
    try:
        watched = [subscribe(port) for _ in range(options.watched)]
        publish(port, b"x" * options.size)
        for client in watched:
            read_frame(client, options.size)
        before_kb = memory_kb(server.pid)
        count = options.subscribers - options.watched
        holder = subprocess.Popen(
            ["taskset", "-c", str(options.load_cpu), options.ironweir, "stress", "--hold", str(count), "--ramp", "2000/s", "-d", "600s",
             f"ws://127.0.0.1:{port}/sub"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: subscribers(port) >= options.subscribers, 120)
        time.sleep(1)
        held_kb = memory_kb(server.pid) - before_kb
        return {"bytes_each": held_kb * 1024 // count, **fan_out(port, server.pid, watched, options)}
    finally:
        for process in (holder, server):
            if process:
                process.terminate()
        server.wait()
        shutil.rmtree(directory)


def measure_channels(name, options):
    """The same with a channel for each subscriber: what a message costs, and when it is there."""
    directory, port, server = start(name, options, -(-options.channels // EACH_WORKER) if name == "nchan" else 1)
    holder = None
    try:
        # Channels are named by the numbers of connections, which follow each other.
        watched = [(number_of_next(port), subscribe(port, "/own")) for _ in range(options.watched)]
        before_kb, first = memory_kb(server.pid), number_of_next(port)
        count = options.channels - options.watched
        bits = 32 - (-(-count // PORTS) - 1).bit_length()
        holder = subprocess.Popen(
            ["taskset", "-c", str(options.load_cpu), options.ironweir, "stress", "--hold", str(count), "--ramp", "2500/s", "-d", "900s", "-t1", "--no-preflight",
             "--source", f"127.1.0.0/{bits}", f"ws://127.0.0.1:{port}/own"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: all_subscribers(port) >= options.channels, 60 + count / 500)
        held_kb = memory_kb(server.pid) - before_kb
        return {"bytes_each": held_kb * 1024 // count, **to_each(port, server.pid, watched, range(first, first + count), options)}
    finally:
        for process in (holder, server):
            if process:
                process.terminate()
        server.wait()
        shutil.rmtree(directory)


def number_of_next(port):
    """The number of the connection that is made next."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/number")
    return int(connection.getresponse().read()) + 1


def all_subscribers(port):
    """How many all channels have."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/status")
    lines = connection.getresponse().read().decode().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("subscribers:"))


def to_each(port, pid, watched, names, options):
    """A message to one channel after the other, in batches at a rate."""
    client = socket.create_connection(("127.0.0.1", port))
    client.settimeout(60)
    data, delays, heard, late, at = b"x" * options.size, [], 0, 0, 0
    batches = int(options.rate * options.seconds / BATCH)
    post = lambda name: b"POST /to?id=%d HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (name, len(data), data)
    # Far apart, as messages of a real day are; the step has no common factor with the count.
    step = next(s for s in range(len(names) * 5 // 8, len(names)) if math.gcd(s, len(names)) == 1)
    reader = client.makefile("rb")
    cpu, began = cpu_seconds(pid), time.monotonic()
    for number in range(batches):
        pause = began + number * BATCH / options.rate - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        else:
            late += 1
        name, watcher = watched[number % len(watched)]
        all_names = []
        for _ in range(BATCH - 1):
            at = (at + step) % len(names)
            all_names.append(names[at])
        all_names.insert(BATCH // 2, name)
        sent = time.monotonic()
        client.sendall(b"".join(map(post, all_names)))
        read_frame(watcher, options.size)
        delays.append((time.monotonic() - sent) * 1000)
        heard += sum(answered(reader) == 201 for _ in all_names)
    settled(pid)
    user, system = (now - before for now, before in zip(cpu_seconds(pid), cpu))
    delays.sort()
    return {"channels": options.channels, "messages": batches * BATCH, "delivered": heard, "us_cpu_each": round((user + system) * 1e6 / max(heard, 1), 2),
            "us_user_each": round(user * 1e6 / max(heard, 1), 2), "ms_p50": round(delays[len(delays) // 2], 3),
            "ms_p99": round(delays[int(len(delays) * 0.99)], 3), "late": late}


def answered(reader):
    """The status of the next answer."""
    status, length = int(reader.readline().split()[1]), 0
    while (line := reader.readline()) != b"\r\n":
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    reader.read(length)
    return status


def start(name, options, workers=1):
    """A server on its processor: its directory, port and process."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="held-"))
    port = free_port()
    load = f"load_module {NCHAN};" if name == "nchan" else ""
    (directory / "nginx.conf").write_text(CONFIGURATION.format(dir=directory, port=port, load=load, log=options.log, workers=workers))
    program = options.ironweir if name == "ironweir" else "/usr/sbin/nginx"
    command = ["taskset", "-c", str(options.server_cpu), program, "-p", str(directory), "-c", str(directory / "nginx.conf")]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: can_connect(port))
    return directory, port, server


def hold(name, kind, options):
    """Bytes of memory that the server has more for each subscriber of a kind."""
    directory, port, server = start(name, options)
    try:
        clients = [open_one(port, kind) for _ in range(100)]
        before_kb = memory_kb(server.pid)
        clients += [open_one(port, kind) for _ in range(options.subscribers)]
        wait_for(lambda: subscribers(port) >= len(clients), 60)
        return (memory_kb(server.pid) - before_kb) * 1024 // options.subscribers
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(directory)


def open_one(port, kind):
    """A subscriber; one that gets a head has it."""
    client = socket.create_connection(("127.0.0.1", port))
    client.settimeout(60)
    client.sendall(KINDS[kind].encode())
    if kind != "longpoll":
        client.recv(4096)
    return client


def fan_out(port, pid, watched, options):
    """Publishes at a rate; CPU of the server for each message delivered, and delays of those who are watched."""
    count = int(options.rate * options.seconds)
    connection = http.client.HTTPConnection("127.0.0.1", port)
    cpu, began, delays, late = cpu_seconds(pid), time.monotonic(), [], 0
    for number in range(count):
        due = began + number / options.rate
        pause = due - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        else:
            late += 1
        at = time.monotonic()
        connection.request("POST", "/pub", b"x" * options.size)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 201, answer.status
        for client in watched:
            read_frame(client, options.size)
        delays.append((time.monotonic() - at) * 1000)
    settled(pid)
    user, system = (now - before for now, before in zip(cpu_seconds(pid), cpu))
    delays.sort()
    delivered = count * options.subscribers
    return {"subscribers": options.subscribers, "messages": count, "us_cpu_each": round((user + system) * 1e6 / delivered, 3),
            "us_user_each": round(user * 1e6 / delivered, 3),
            "ms_to_all_watched_p50": round(delays[len(delays) // 2], 2), "ms_p99": round(delays[int(len(delays) * 0.99)], 2), "late": late}


def settled(pid):
    """Waits until the server does nothing more."""
    last = None
    while (now := cpu_seconds(pid)) != last:
        last = now
        time.sleep(0.3)


def processes(pid):
    """A process and what it started."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid] + [p for child in children for p in processes(int(child))]


def cpu_seconds(pid):
    """User and system time of a server, s."""
    fields = [pathlib.Path(f"/proc/{p}/stat").read_text().rsplit(")", 1)[1].split() for p in processes(pid)]
    return sum(int(f[11]) for f in fields) / TICK, sum(int(f[12]) for f in fields) / TICK


def memory_kb(pid):
    """Memory of its own and shared memory that a server has touched (nchan keeps messages there)."""
    total = 0
    for process in processes(pid):
        for line in pathlib.Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith(("RssAnon:", "RssShmem:")):
                total += int(line.split()[1])
    return total


def subscribers(port):
    """How many the channel has."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/pub", headers={"Accept": "text/json"})
    answer = connection.getresponse()
    body = answer.read()
    return json.loads(body)["subscribers"] if answer.status == 200 else 0


def publish(port, data):
    """Publishes one message on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/pub", data)
    connection.getresponse().read()


def subscribe(port, target="/sub"):
    """A subscriber whose handshake is done."""
    client = socket.create_connection(("127.0.0.1", port))
    client.settimeout(60)
    client.sendall(UPGRADE.replace("/sub", target).encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += client.recv(1)
    return client


def read_frame(client, size):
    """A frame with a message of that size."""
    left = size + (2 if size < 126 else 4)
    while left:
        left -= len(client.recv(left))


def free_port():
    """A port that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def can_connect(port):
    """Whether somebody does."""
    try:
        socket.create_connection(("127.0.0.1", port)).close()
        return True
    except OSError:
        return False


def wait_for(condition, seconds=20):
    """Waits until something holds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(str(condition))
        time.sleep(0.1)


if __name__ == "__main__":
    main()
