#!/usr/bin/env python3
"""As many subscribers in one process as are asked for, both ends on this machine, with few descriptors.

The clients are one `ironweir stress --hold`; both sides park what waits (docs/push.md), so that neither needs more descriptors than the process may
have. Phases: a ramp; some time with heartbeats; a message to one, to a channel of 1,000, to all. Printed: the bill of `/api/9/ironweir/memory`,
what the machine's memory went to, and how long messages took. Bounded: it ends early when less memory is left than `--keep-gb`, and says so.
`--kind mqtt`: clients of MQTT, each with a subscription; their CONNECT says twice `--heartbeat` as keep-alive. `--storm`: before the messages the worker process
is killed (SIGKILL), and as many clients come again at once: how long until all are back, what failed, the most memory that was taken meanwhile, the kernel's
counts of full accept queues, and what the error log says of them.
Settings of the kernel that it changes are those of a network namespace of its own; `fs.file-max` is put back. See perf/notes.
"""
import argparse
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import held

# Files of the machine, which no namespace has of its own: put back at the end. A worker that is not root is held to it.
FILE_MAX = pathlib.Path("/proc/sys/fs/file-max")
# Local ports for each address, and the queues of a fast ramp.
SYSCTLS = {"net/ipv4/ip_local_port_range": "1024 65535", "net/core/somaxconn": "65535", "net/ipv4/tcp_max_syn_backlog": "65535"}
PORTS = 64_000
# Connections that are not parked yet, or not any more, at a time: what descriptors leave room for. In a storm those that are there and have said nothing
# would otherwise make room for others.
SEATS = 18_000
INSIDE = "HELD_MANY_INSIDE"
SLABS = ("TCP", "sock_inode_cache", "filp", "dentry", "io_kiocb")
CONFIGURATION = """
daemon off; worker_processes 1; pid {dir}/pid; error_log {dir}/error.log notice;
events {{ worker_connections {seats}; }}
http {{ access_log off; nchan_shared_memory_size {channels}; server {{ listen 127.0.0.1:{mqtt} mqtt backlog={backlog}; location = /mqtt {{ nchan_mqtt; }} }}
  server {{ listen 127.0.0.1:{port} backlog={backlog};
  location /pub {{ nchan_publisher; nchan_channel_id $arg_id; nchan_message_buffer_length 1; }}
  location /sub {{ nchan_subscriber; nchan_channel_id all; nchan_subscriber_first_message newest; }}
  location /some {{ nchan_subscriber; nchan_channel_id $arg_id; nchan_subscriber_first_message newest; }}
  location /api {{ api; }} }} }}
"""


def main():
    """Runs all phases and prints one line of JSON for each."""
    options = parse()
    enter_namespace()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with Machine(2 * options.count):
        run(options)


def enter_namespace():
    """Starts the program anew in a network namespace of its own, whose sysctls end with it."""
    if os.environ.get(INSIDE) != "1":
        os.execvpe("unshare", ["unshare", "-n", sys.executable, *sys.argv], {**os.environ, INSIDE: "1"})
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


class Machine:
    """The machine's settings while so many files more are open."""

    def __init__(self, files):
        self.files, self.before = files, FILE_MAX.read_text()

    def __enter__(self):
        for name, value in SYSCTLS.items():
            pathlib.Path(f"/proc/sys/{name}").write_text(value)
        FILE_MAX.write_text(str(max(int(self.before), self.files + 200_000)))

    def __exit__(self, *_):
        FILE_MAX.write_text(self.before)


def parse():
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ironweir", default=str(held.TARGET / "release/ironweir"))
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--kind", choices=["websocket", "sse", "longpoll", "mqtt"], default="websocket")
    parser.add_argument("--ramp", type=int, default=5_000, help="new connections a second")
    parser.add_argument("--heartbeat", default="", help="between two pings of a client, such as 60s")
    parser.add_argument("--keep", type=int, default=30, help="seconds that all are held before messages are published")
    parser.add_argument("--storm", action="store_true", help="kill the worker and have all come again at once")
    parser.add_argument("--backlog", type=int, default=65_535)
    parser.add_argument("--messages", type=int, default=3, help="to all")
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--qos", type=int, choices=[0, 1], default=0, help="of what clients of MQTT subscribe to")
    parser.add_argument("--keep-gb", type=float, default=6.0, help="memory of the machine that is left alone")
    parser.add_argument("--server-cpu", type=int, default=0)
    parser.add_argument("--load-cpu", type=int, default=1)
    return parser.parse_args()


def run(options):
    """Starts both sides and goes through the phases."""
    directory, port, mqtt = pathlib.Path(tempfile.mkdtemp(prefix="held-")), held.free_port(), held.free_port()
    directory.chmod(0o755)
    # Each client of MQTT is billed some of it.
    channels = "2048m" if options.kind == "mqtt" else "512m"
    text = CONFIGURATION.format(dir=directory, port=port, mqtt=mqtt, backlog=options.backlog, channels=channels, seats=SEATS)
    (directory / "nginx.conf").write_text(text)
    server = subprocess.Popen(["taskset", "-c", str(options.server_cpu), options.ironweir, "-p", str(directory), "-c", str(directory / "nginx.conf")])
    holder = None
    try:
        held.wait_for(lambda: held.can_connect(port))
        os.sched_setaffinity(0, {options.load_cpu})
        first = [watch(port, "/sub") for _ in range(5)]
        machine = memory()
        user_kb = held.memory_kb(server.pid)
        url = f"mqtt://127.0.0.1:{mqtt}" if options.kind == "mqtt" else f"{'ws' if options.kind == 'websocket' else 'http'}://127.0.0.1:{port}/sub"
        began = time.monotonic()
        said = directory / "stress.txt"
        holder, lines = hold(options, url, options.ramp, 1, said)
        why = ramp(port, options, holder, lines)
        reached = count(port)
        say("ramp", seconds=round(time.monotonic() - began, 1), subscribers=reached, ended_by=why, held=lines.last)
        end = time.monotonic() + options.keep
        while time.monotonic() < end and available_gb() > options.keep_gb:
            time.sleep(1)
        say("held", seconds=options.keep, subscribers=count(port), held=lines.last, **bill(port, server.pid, user_kb, machine, holder.pid))
        if options.storm:
            holder, lines, said = storm(port, server.pid, options, url, holder, directory)
            first = []
        last = [watch(port, "/sub") for _ in range(5)]
        publish(port, server.pid, options, first + last, lines)
        there = count(port)
        holder.terminate()
        holder.wait()
        say("end", subscribers=there, generator=said.read_text().splitlines()[2:])
    finally:
        for process in (holder, server):
            if process:
                process.terminate()
        server.wait()
        shutil.rmtree(directory)


def hold(options, url, rate, network, said):
    """The clients: their process, and what it says. `network`: the second number of their addresses."""
    sources = max(1, -(-options.count // PORTS))
    bits = 32 - (sources - 1).bit_length() if sources > 1 else 32
    command = ["taskset", "-c", str(options.load_cpu), options.ironweir, "stress", "--hold", str(options.count), "--hold-protocol", options.kind,
               "--ramp", f"{rate}/s", "-d", f"{options.keep + 900}s", "-t1", "--source", f"127.{network}.0.0/{bits}"]
    if options.heartbeat:
        command += ["--heartbeat", options.heartbeat]
    if options.kind == "mqtt":
        command += ["--topic", "all", "--qos", str(options.qos)]
    with open(said, "w") as out:
        holder = subprocess.Popen([*command, url], stdout=out, stderr=subprocess.PIPE, text=True)
    return holder, Lines(holder)


def storm(port, pid, options, url, before, directory):
    """Kills the worker; all clients come again at once. The process of those that came, what it says, and where it says it at its end."""
    worker = held.processes(pid)[-1]
    counts, least = overflows(), [available_gb()]
    began = time.monotonic()
    os.kill(worker, signal.SIGKILL)
    # Other clients than before, since those are told of the end one by one; their addresses are others, so that no port waits for its last packet.
    holder, lines = hold(options, url, 10 * options.count, 2, directory / "storm.txt")
    first_back, there, end = None, 0, time.monotonic() + 600
    while there < options.count and time.monotonic() < end and holder.poll() is None:
        there = count(port)
        first_back = first_back or (there and round(time.monotonic() - began, 2))
        least.append(available_gb())
        if least[-1] < options.keep_gb / 2:
            break
        time.sleep(0.1)
    seconds = round(time.monotonic() - began, 1)
    before.terminate()
    before.wait()
    after = overflows()
    log = [line for line in (directory / "error.log").read_text(errors="replace").splitlines() if "accept queue" in line]
    say("storm", seconds=seconds, first_back_s=first_back, subscribers=there, held=lines.last, least_gb_left=round(min(least), 1),
        kernel={name: after[name] - counts[name] for name in after}, log=log)
    return holder, lines, directory / "storm.txt"


def overflows():
    """What the kernel counts in this network namespace of queues that were full, and of SYNs that had to be sent again."""
    wanted = ("ListenOverflows", "ListenDrops", "TCPReqQFullDoCookies", "TCPTimeouts", "TCPSynRetrans")
    lines = [line.split() for line in pathlib.Path("/proc/net/netstat").read_text().splitlines() if line.startswith("TcpExt: ")]
    # What a CPU's backlog (net.core.netdev_max_backlog) had no room for: loopback loses SYNs there, a card does not come this way.
    lost = sum(int(line.split()[1], 16) for line in pathlib.Path("/proc/net/softnet_stat").read_text().splitlines())
    return {name: int(value) for name, value in zip(*lines[:2]) if name in wanted} | {"softnet_dropped": lost}


def ramp(port, options, holder, lines):
    """Waits until all are there; why it ended."""
    limit = time.monotonic() + options.count / options.ramp * 4 + 60
    while (there := count(port)) < options.count:
        if available_gb() < options.keep_gb:
            return f"memory: {available_gb():.1f} GB are left"
        # What has failed does not come again.
        failed = lines.said("failed")
        if holder.poll() is not None or time.monotonic() > limit or failed and lines.said("held") + failed >= options.count:
            return f"the generator: {lines.last}"
        time.sleep(0.5)
    return f"the goal: {there}"


def publish(port, pid, options, watched, lines):
    """A message to one, to 1,000, and to all."""
    one = [watch(port, "/some?id=one")]
    thousand = [watch(port, "/some?id=thousand") for _ in range(1000)]
    data = b"x" * options.size
    for name, clients in (("one", one), ("thousand", thousand)):
        at = time.monotonic()
        post(port, name, data)
        for client in clients:
            held.read_frame(client, options.size)
        say(f"to {name}", ms=round((time.monotonic() - at) * 1000, 2))
    for number in range(options.messages):
        heard, subscribers, cpu = lines.messages, count(port), sum(held.cpu_seconds(pid))
        at = time.monotonic()
        post(port, "all", data)
        taken = time.monotonic() - at
        times = []
        for client in watched:
            client.settimeout(300)
            held.read_frame(client, options.size)
            times.append(round(time.monotonic() - at, 3))
        held.wait_for(lambda: lines.messages - heard >= subscribers - len(watched), 300)
        all_heard = time.monotonic() - at
        # Heartbeats never let it settle: then what they cost meanwhile is in the figure.
        if not options.heartbeat:
            held.settled(pid)
        cpu = sum(held.cpu_seconds(pid)) - cpu
        say("to all", number=number, subscribers=subscribers, post_s=round(taken, 3), first_s=times[0], last_s=max(times),
            holder_heard_all_s=round(all_heard, 1), with_heartbeats=bool(options.heartbeat), us_cpu_each=round(cpu * 1e6 / subscribers, 3))


def watch(port, target):
    """A subscriber whose handshake is done."""
    held_upgrade = held.UPGRADE.replace("/sub", target)
    client = held.socket.create_connection(("127.0.0.1", port))
    client.settimeout(60)
    client.sendall(held_upgrade.encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += client.recv(1)
    return client


def post(port, channel, data):
    """Publishes a message."""
    urllib.request.urlopen(f"http://127.0.0.1:{port}/pub?id={channel}", data).read()


def count(port):
    """Subscribers of the channel of all."""
    try:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/pub?id=all", headers={"Accept": "text/json"})
        return json.load(urllib.request.urlopen(request, timeout=30))["subscribers"]
    except OSError:
        return 0


def bill(port, pid, user_kb, machine, holder_pid):
    """What it took, by the server's own word and by the machine's."""
    own = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/api/9/ironweir/memory"))
    now, there = memory(), count(port)
    taken = {name: now[name] - machine[name] for name in now}
    each = {f"{name}_bytes_each": round(value / max(there, 1)) for name, value in taken.items()}
    user = (held.memory_kb(pid) - user_kb) * 1024
    return {"server_user_bytes_each": round(user / max(there, 1)), "client_user_bytes_each": round(held.memory_kb(holder_pid) * 1024 / max(there, 1)),
            "both_ends": each, "own_bill": own}


def memory():
    """The machine's memory, bytes: what is used, what the kernel keeps in slabs, and some of those."""
    lines = dict(line.split(":", 1) for line in pathlib.Path("/proc/meminfo").read_text().splitlines())
    kb = {name: int(lines[name].split()[0]) for name in ("MemTotal", "MemAvailable", "SUnreclaim", "Slab")}
    slabs = {}
    for line in pathlib.Path("/proc/slabinfo").read_text().splitlines():
        words = line.split()
        if words[0] in SLABS:
            slabs[words[0]] = int(words[2]) * int(words[3])
    return {"used": (kb["MemTotal"] - kb["MemAvailable"]) * 1024, "slab_unreclaimable": kb["SUnreclaim"] * 1024, **slabs}


def available_gb():
    """What the machine has left."""
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) / 1e6


def say(phase, **facts):
    """One line."""
    print(json.dumps({"phase": phase, **facts}), flush=True)


class Lines:
    """What the generator says each second."""

    def __init__(self, process):
        self.last, self.messages = "", 0
        threading.Thread(target=self.read, args=(process.stderr,), daemon=True).start()

    def read(self, stream):
        """Keeps the last line, and how many messages it tells of."""
        for line in stream:
            self.last = " ".join(line.split())
            self.messages = self.said("messages") or self.messages

    def said(self, name):
        """The number that follows a word of the last line; 0 if there is none."""
        words = self.last.split()
        return int(words[words.index(name) + 1]) if name in words[:-1] else 0


if __name__ == "__main__":
    main()
