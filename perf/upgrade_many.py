#!/usr/bin/env python3
"""Many held connections while the binary and the configuration change: nobody may notice.

Held: long-polls by `ironweir stress --hold`, WebSockets (tunnels over TLS to an echo, a message a second each, by upgrade_echo.go), and some subscribers that count the numbers of
messages. Meanwhile: binary upgrades (`ironweir -s upgrade`) and reloads. Printed: what each took, connections that ended, messages that were lost, came twice or
out of order, the CPU of both workers, the kernel's counters of resets and aborts, how long the old process lived, memory before and after. All in a network namespace of its own.
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

import held
import held_many

CONFIGURATION = """
worker_processes {workers}; pid {dir}/pid; error_log {dir}/error.log notice;
events {{ worker_connections 9000; }}
http {{ access_log off; nchan_shared_memory_size 256m; upstream echo {{ zone echo 64k; server 127.0.0.1:{echo}; }}
  server {{ listen 127.0.0.1:{port} backlog=65535;
    location /pub {{ nchan_publisher; nchan_channel_id $arg_id; nchan_message_buffer_length 20; }}
    location /sub {{ nchan_subscriber; nchan_channel_id all; nchan_subscriber_first_message newest; }} }}
  server {{ listen 127.0.0.1:{tls} ssl; server_name localhost; ssl_certificate {dir}/crt; ssl_certificate_key {dir}/key;
    location /ws {{ proxy_pass http://echo; proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;
      proxy_read_timeout 1h; }} }} }}
"""
COUNTERS = ("TCPAbortOnData", "TCPAbortOnClose", "TCPAbortOnMemory", "TCPAbortOnTimeout", "TCPAbortOnLinger", "TCPAbortFailed", "ListenOverflows", "ListenDrops")


def main():
    """Holds, changes, and says in lines of JSON what happened."""
    options = parse()
    held_many.enter_namespace()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with held_many.Machine(2 * options.polls + 4 * options.tunnels):
        run(options)


def parse():
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ironweir", default=str(held.TARGET / "release/ironweir"))
    parser.add_argument("--polls", type=int, default=200_000)
    parser.add_argument("--tunnels", type=int, default=2_000)
    parser.add_argument("--watched", type=int, default=100, help="subscribers that look at the numbers of messages")
    parser.add_argument("--upgrades", type=int, default=10)
    parser.add_argument("--reloads", type=int, default=50)
    parser.add_argument("--ramp", type=int, default=5_000)
    parser.add_argument("--workers", type=int, default=1, help="threads of the server")
    parser.add_argument("--cpus", type=int, help="CPUs of the server, as many as threads if nothing is said")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two messages to all")
    return parser.parse_args()


def run(options):
    """One run: who is held, what changes, what came of it."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="upgrade-"))
    directory.chmod(0o755)
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30", "-subj", "/CN=localhost",
                    "-keyout", directory / "key", "-out", directory / "crt"], check=True, capture_output=True)
    echo, port, tls = (held.free_port() for _ in range(3))
    (directory / "nginx.conf").write_text(CONFIGURATION.format(dir=directory, workers=options.workers, echo=echo, port=port, tls=tls))
    command = [options.ironweir, "-p", str(directory), "-e", str(directory / "error.log"), "-c", str(directory / "nginx.conf")]
    children = []
    try:
        talker = str(directory / "echo")
        subprocess.run(["go", "build", "-o", talker, pathlib.Path(__file__).with_name("upgrade_echo.go")], check=True)
        children.append(subprocess.Popen([talker, "serve", str(echo)]))
        held.wait_for(lambda: held.can_connect(echo))
        subprocess.run(["taskset", "-c", cpus(options), *command], check=True)
        held.wait_for(lambda: held.can_connect(port))
        tunnels = subprocess.Popen([talker, "clients", str(options.tunnels), str(tls)], stdout=subprocess.PIPE, text=True)
        children.append(tunnels)
        assert tunnels.stdout.readline().split() == ["open", str(options.tunnels)]
        said = open(directory / "stress.txt", "w")
        sources = max(1, -(-options.polls // held_many.PORTS))
        bits = 32 - (sources - 1).bit_length() if sources > 1 else 32
        holder = subprocess.Popen(["taskset", "-c", "1", options.ironweir, "stress", "--hold", str(options.polls), "--hold-protocol", "longpoll", "--ramp", f"{options.ramp}/s",
                                   "-d", "3600s", "-t1", "--source", f"127.1.0.0/{bits}", f"http://127.0.0.1:{port}/sub"], stdout=said, stderr=subprocess.PIPE, text=True)
        children.append(holder)
        lines = held_many.Lines(holder)
        watched = [Watched(port) for _ in range(options.watched)]
        wanted = options.polls + options.watched
        held.wait_for(lambda: held_many.count(port) >= wanted, options.polls / options.ramp * 4 + 60)
        time.sleep(5)
        say("held", polls=held_many.count(port), tunnels=options.tunnels, worker_kb=worker_kb(directory))
        change(options, directory, command, port, lines, watched, tunnels)
        say("end", generator=lines.last)
    finally:
        for child in children:
            child.terminate()
            child.wait()
        pid = directory / "pid"
        if pid.exists():
            os.kill(int(pid.read_text()), signal.SIGTERM)
            held.wait_for(lambda: not pid.exists(), 60)
        shutil.rmtree(directory)


def change(options, directory, command, port, lines, watched, tunnels):
    """Upgrades and reloads between messages; then what came of it."""
    counters, memory, heard = kernel(), worker_kb(directory), lines.messages
    publisher = Publisher(port, options.every)
    upgrades, gone, reloads = [], [], []
    for number in range(options.upgrades):
        for _ in range(options.reloads // options.upgrades):
            at = time.monotonic()
            subprocess.run([*command, "-s", "reload"], check=True, capture_output=True)
            reloads.append(round(time.monotonic() - at, 3))
            time.sleep(0.5)
        old, at = master(directory), time.monotonic()
        before = {pid: cpu_s(pid) for pid in workers(old)}
        latest = dict(before)
        told = subprocess.Popen(["taskset", "-c", cpus(options), *command, "-s", "upgrade"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        upgrades.append(None)
        while upgrades[-1] is None or not is_gone(old):
            latest.update((pid, cpu_s(pid)) for pid in before if not is_gone(pid))
            if upgrades[-1] is None and told.poll() is not None:
                upgrades[-1] = round(time.monotonic() - at, 3)
                assert told.returncode == 0, told.stderr.read()
            assert time.monotonic() < at + 120
            time.sleep(0.01)
        gone.append(round(time.monotonic() - at, 3))
        cpu = [sum(latest.values()) - sum(before.values()), sum(cpu_s(pid) for pid in workers(master(directory)))]
        say("upgrade", number=number, told_s=upgrades[-1], old_gone_s=gone[-1], cpu_s=[round(c, 2) for c in cpu], polls=held_many.count(port), worker_kb=worker_kb(directory),
            holder=lines.last)
    publisher.stop()
    wanted = publisher.number * options.polls
    held.wait_for(lambda: lines.messages - heard >= wanted or publisher.is_late(120), 130)
    time.sleep(3)
    tunnels.send_signal(signal.SIGUSR1)
    after = kernel()
    say("result", reloads=len(reloads), slowest_reload_s=max(reloads, default=0), upgrades=len(upgrades), slowest_upgrade_s=max(upgrades, default=0),
        slowest_end_of_old_s=max(gone, default=0), messages=publisher.number, held_heard=lines.messages - heard, held_should_hear=wanted,
        watched=[sum(w.lost for w in watched), sum(w.twice for w in watched), sum(w.ended for w in watched)],
        watched_heard=sorted({w.heard for w in watched}), tunnels=json.loads(tunnels.stdout.readline()),
        kernel={name: after[name] - counters[name] for name in after if after[name] != counters[name]},
        memory_before_kb=memory, memory_after_kb=worker_kb(directory), holder=lines.last)


def kernel():
    """Counters of this network namespace."""
    found = {}
    for file in ("/proc/net/netstat", "/proc/net/snmp"):
        lines = pathlib.Path(file).read_text().splitlines()
        for names, values in zip(lines[::2], lines[1::2]):
            found.update(zip(names.split()[1:], values.split()[1:]))
    return {name: int(found[name]) for name in (*COUNTERS, "EstabResets", "OutRsts", "AttemptFails") if name in found}


def master(directory):
    """Who is in charge."""
    return int((directory / "pid").read_text())


def workers(pid):
    """Processes of a master."""
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def cpu_s(pid):
    """What a process took so far; a tick is 10 ms."""
    try:
        return sum(int(ticks) for ticks in pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()[11:13]) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0


def cpus(options):
    """Where the server runs."""
    return f"0-{(options.cpus or options.workers) - 1}"


def is_gone(pid):
    """Whether a process has ended, be it that nobody has asked for its status."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].startswith("Z")
    except OSError:
        return True


def worker_kb(directory):
    """Resident memory of its worker."""
    return sum(int(line.split()[1]) for child in workers(master(directory)) for line in pathlib.Path(f"/proc/{child}/status").read_text().splitlines() if line.startswith("VmRSS"))


def say(phase, **facts):
    """One line."""
    print(json.dumps({"phase": phase, **facts}), flush=True)


class Publisher:
    """A numbered message to all, again and again."""

    def __init__(self, port, every):
        self.port, self.every, self.number, self.over, self.ended_at = port, every, 0, threading.Event(), 0.0
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self):
        """Until it is over."""
        while not self.over.is_set():
            held_many.post(self.port, "all", b"number %d" % (self.number + 1))
            self.number += 1
            self.over.wait(self.every)

    def stop(self):
        """No more messages."""
        self.over.set()
        self.thread.join()
        self.ended_at = time.monotonic()

    def is_late(self, seconds):
        """Whether the last message was so long ago."""
        return time.monotonic() - self.ended_at > seconds


class Watched:
    """A WebSocket subscriber that looks at the numbers."""

    def __init__(self, port):
        self.client = held_many.watch(port, "/sub")
        self.client.settimeout(None)
        self.heard, self.lost, self.twice, self.ended = 0, 0, 0, 0
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        """All messages."""
        while True:
            head = self.take(2)
            if head is None:
                self.ended = 1
                return
            word = self.take(head[1]).split()[-1]
            if head[0] != 0x81:
                self.ended = 1
                return
            number = int(word)
            self.lost += max(0, number - self.heard - 1)
            self.twice += number <= self.heard
            self.heard = max(self.heard, number)

    def take(self, count):
        """So many bytes, or none at the end."""
        data = b""
        while len(data) < count:
            piece = self.client.recv(count - len(data))
            if not piece:
                return None
            data += piece
        return data


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    main()
