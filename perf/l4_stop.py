#!/usr/bin/env python3
"""What one real server of four that stops does to new connections: the balancer that hears of accept queues, and turns beside it.

Needs root rights; all of it happens in network namespaces that this makes: a client, a balancer, four real servers, each on a veth pair of the
balancer's. The real servers are Ironweirs that report to the balancer every 5 ms. While new connections are opened at the rate that is asked for,
one of them is stopped (SIGSTOP) for two seconds and goes on (SIGCONT). Counted are the connections that began meanwhile, and those of them
that took a second or more: the time after which a SYN that nobody answered is sent again.

  reports   `xdp_reports`, in turns
  turns     the same without

Asked for: 5,000 connections a second; with reports at most 1 % take a second or more, beside about 25 % in turns.
"""
import argparse
import json
import os
import pathlib
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SERVICE, PORT = "10.9.9.1", 80
KEY = "0123456789abcdef"
STOP_S, AFTER_S = 2.0, 4.0
SLOW_S, GIVEN_UP_S = 1.0, 8.0
TAG = f"l4stop{os.getpid()}"
REALS = ["r1", "r2", "r3", "r4"]
HOSTS = {"client": "10.9.20"} | {real: f"10.9.{at}" for at, real in enumerate(REALS, 21)}
HEAD = "daemon off; pid {folder}/pid; error_log {folder}/error.log warn; worker_processes 1;\nevents {{ worker_connections 8192; }}\n"
BALANCER = HEAD + """stream {{
    xdp_pins {folder}/pins; xdp_interfaces client r1 r2 r3 r4; xdp_flows 100000; {reports}
    upstream web {{ zone web 64k; {servers} }}
    server {{ listen {service}:80 xdp=nat; proxy_pass web; proxy_timeout 30s; }}
}}
"""
REAL = HEAD + """stream {{
    xdp_report_to {net}.1:7700 key={key};
    server {{ listen {net}.2:80; return ok; }}
}}
"""


def main():
    """Measures both, prints a line for each, then what was asked for."""
    if sys.argv[1:2] == ["connect"]:
        return connect(int(sys.argv[2]))
    options = parse()
    if not options.ironweir:
        subprocess.run(["cargo", "build", "-q", "--workspace", "--locked", "--bin", "ironweir"], cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        try:
            network()
            lines = [measure(options, pathlib.Path(folder), what) for what in ("reports", "turns")]
        finally:
            clear(folder)
    for line in lines:
        print(f"{line['what']}: {line['begun']:,} connections while a real server stood, {line['rate']:,} a second (asked for: {options.rate:,}): "
              f"{line['slow']:,} took a second or more, {line['slow_percent']} %; half of them {line['half_ms']} ms, the longest {line['longest_s']} s, failed {line['failed']}")
    print(f"load average {os.getloadavg()[0]:.1f} of {os.cpu_count()} CPUs")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=5000, help="connections a second (at most 10,000)")
    parser.add_argument("--ironweir", help="server that is measured; without it this tree's is built")
    return parser.parse_args()


def name(host):
    return f"{TAG}-{host}"


def inside(host, *words):
    # Not `ip netns exec`: what is mounted for one program is to be seen by the others.
    return ["nsenter", f"--net=/run/netns/{name(host)}", "--", *map(str, words)]


def on(host, line):
    return subprocess.run(inside(host, *line.split()), check=True, stdout=subprocess.PIPE, text=True).stdout


def network():
    """A star around the balancer: each link is named after who is at its other end."""
    for host in ["balancer", *HOSTS]:
        subprocess.run(["ip", "netns", "add", name(host)], check=True)
        on(host, "ip link set lo up")
    for setting in ["ip_forward=1", "conf.all.rp_filter=0"]:
        on("balancer", f"sysctl -q -w net.ipv4.{setting}")
    for host, net in HOSTS.items():
        on("balancer", f"ip link add {host} type veth peer name eth0 netns {name(host)}")
        for where, device in [("balancer", host), (host, "eth0")]:
            # Frames that XDP sends carry no mark of a checksum to be made; GRO gives the receiver the NAPI that they need.
            on(where, f"ethtool -K {device} tx off gro on")
            on(where, f"ip link set {device} up")
        on("balancer", f"ip addr add {net}.1/24 dev {host}")
        on(host, f"ip addr add {net}.2/24 dev eth0")
        on(host, f"ip route add default via {net}.1")
    on("balancer", f"ip addr add {SERVICE}/32 dev lo")


def clear(folder):
    for host in ["balancer", *HOSTS]:
        found = subprocess.run(["ip", "netns", "pids", name(host)], stdout=subprocess.PIPE, text=True, check=False).stdout
        for pid in found.split():
            subprocess.run(["kill", "-9", pid], check=False)
    for mount in sorted(pathlib.Path(folder).glob("*/*/pins*")):
        subprocess.run(["umount", "-l", mount], stderr=subprocess.DEVNULL, check=False)
    for host in ["balancer", *HOSTS]:
        subprocess.run(["ip", "netns", "del", name(host)], stderr=subprocess.DEVNULL, check=False)


def start(options, host, folder, text):
    """Ironweir on a host."""
    folder.mkdir(parents=True)
    conf = folder / "nginx.conf"
    conf.write_text(text)
    server = pathlib.Path(options.ironweir).resolve() if options.ironweir else ROOT / "target/debug/ironweir"
    return subprocess.Popen(inside(host, server, "-p", folder, "-c", conf))


def measure(options, folder, what):
    """One of the two."""
    folder = folder / what
    servers = " ".join(f"server {HOSTS[real]}.2:80;" for real in REALS)
    # One address hears all: each real server knows it by the address of its own link.
    reports = f"xdp_reports 0.0.0.0:7700 key={KEY};" if what == "reports" else ""
    children = []
    try:
        for real in REALS:
            text = REAL.format(folder=folder / real, net=HOSTS[real], key=KEY)
            children.append(start(options, real, folder / real, text))
        text = BALANCER.format(folder=folder / "balancer", service=SERVICE, servers=servers, reports=reports)
        children.append(start(options, "balancer", folder / "balancer", text))
        wait_for(lambda: forwarded(options, folder) > 0)
        client = subprocess.Popen(inside("client", sys.executable, __file__, "connect", min(options.rate, 10_000)), stdout=subprocess.PIPE, text=True)
        children.append(client)
        assert client.stdout.readline() == "begun\n"
        time.sleep(1)
        stopped = subprocess.run(["ip", "netns", "pids", name("r2")], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
        at = time.monotonic()
        for pid in stopped:
            os.kill(int(pid), signal.SIGSTOP)
        time.sleep(STOP_S)
        for pid in stopped:
            os.kill(int(pid), signal.SIGCONT)
        until = time.monotonic()
        took = [t for begun, t in json.loads(client.communicate()[0]) if at <= begun < until]
        slow = sum(t >= SLOW_S for t in took)
        line = {"what": what, "begun": len(took), "rate": round(len(took) / (until - at)), "slow": slow, "slow_percent": round(slow / len(took) * 100, 2),
                "half_ms": round(sorted(took)[len(took) // 2] * 1000, 2), "longest_s": round(max(took), 2), "failed": sum(t >= GIVEN_UP_S for t in took)}
        print(json.dumps(line), flush=True)
        return line
    finally:
        for child in children:
            child.terminate()
            child.wait()


def forwarded(options, folder):
    """Packets that the program has sent on, after a connection that asked for one."""
    subprocess.run(inside("client", sys.executable, "-c", f"import socket; socket.create_connection(('{SERVICE}', {PORT}), 1)"), stderr=subprocess.DEVNULL, check=False)
    server = pathlib.Path(options.ironweir).resolve() if options.ironweir else ROOT / "target/debug/ironweir"
    words = inside("balancer", server, "l4", "--pins", folder / "balancer/pins", "--stats")
    text = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("forwarded ")), 0)


def wait_for(what, seconds=60):
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            sys.exit("nothing comes through")
        time.sleep(0.2)


def connect(rate):
    """Opens connections at a rate, and says when each began and how long it took. Each is reset at once, so that ports are free again."""
    print("begun", flush=True)
    poll, there, done = select.epoll(), {}, []
    begun = time.monotonic()
    end = begun + 1 + STOP_S + AFTER_S
    opened = 0
    while (now := time.monotonic()) < end + GIVEN_UP_S and (there or now < end):
        due = int((now - begun) * rate) if now < end else opened
        # After a pause of this process it does not catch up all at once.
        opened = max(opened, due - rate // 20)
        while opened < due:
            opened += 1
            one = socket.socket()
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            at = time.monotonic()
            one.connect_ex((SERVICE, PORT))
            there[one.fileno()] = (one, at)
            poll.register(one.fileno(), select.EPOLLOUT)
        for number, _ in poll.poll(0.001):
            one, at = there.pop(number)
            failed = one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            done.append((at, GIVEN_UP_S if failed else time.monotonic() - at))
            poll.unregister(number)
            one.close()
    done.extend((at, GIVEN_UP_S) for _, at in there.values())
    print(json.dumps(done))


main()
