#!/usr/bin/env python3
"""What a flood of SYNs does to those who are there and to those who come: cookies of the balancer beside the kernel's own.

Needs root rights; all of it happens in network namespaces that this makes: a client, an attacker, a balancer and a real server, each on a
veth pair of the balancer's. SYNs of addresses that are nobody's are made in the kernel (crates/l4/examples/flood.rs), at the rate that is
asked for or as fast as it goes, for seconds only. Meanwhile 50 connections that were there talk, and new ones are opened, 50 a second.

  ironweir   `xdp_syn_cookies 20000r/s`, real servers behind it
  kernel     the same address on a socket of the machine's own: net.ipv4.tcp_syncookies
  quiet      the first without a flood

Asked for: 500,000 SYNs a second leave both alone.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEER = ROOT / "tests/l4_peer.py"
SERVICE, PORT = "10.9.9.1", 80
HERE = 50
TAG = f"l4flood{os.getpid()}"
HOSTS = {"client": "10.9.2", "attacker": "10.9.3", "server": "10.9.1"}
CONF = """daemon off; pid {folder}/pid; error_log {folder}/error.log warn; worker_processes 1;
events {{}}
stream {{
    xdp_pins {folder}/pins; xdp_interfaces client attacker server;
    upstream web {{ zone web 64k; maglev; server 10.9.1.2:80; }}
    server {{ listen {service}:80 xdp=nat; xdp_syn_cookies 20000r/s; proxy_pass web; }}
}}
"""


def main():
    """Measures each, prints a line, then what was asked for."""
    options = parse()
    cargo = ["cargo", "build", "-q", "--workspace", "--locked"] + (["--release"] if options.release else [])
    if not flood_program(options).exists():
        subprocess.run([*cargo, "--example", "flood"], cwd=ROOT, check=True)
    if not options.ironweir:
        subprocess.run([*cargo, "--bin", "ironweir"], cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        try:
            network()
            lines = [measure(options, folder, what) for what in ("quiet", "ironweir", "kernel")]
        finally:
            clear(folder)
    report(lines, options)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=500_000, help="SYNs a second (at most 2,000,000)")
    parser.add_argument("--seconds", type=int, default=4, help="at most 10")
    parser.add_argument("--ironweir", help="server that is measured; nothing is built but the sender, if it is nowhere")
    parser.add_argument("--release", action="store_true", help="the release build; packets take the same way in both")
    return parser.parse_args()


def name(host):
    return f"{TAG}-{host}"


def inside(host, *words):
    # Not `ip netns exec`: what is mounted for one program is to be seen by the others.
    return ["nsenter", f"--net=/run/netns/{name(host)}", "--", *words]


def on(host, line):
    return subprocess.run(inside(host, *line.split()), check=True, stdout=subprocess.PIPE, text=True).stdout


def network():
    """Stars around the balancer: each link is named after who is at its other end."""
    for host in ["balancer", *HOSTS]:
        subprocess.run(["ip", "netns", "add", name(host)], check=True)
        on(host, "ip link set lo up")
    for setting in ["ip_forward=1", "conf.all.rp_filter=0", "tcp_syncookies=1", "tcp_max_syn_backlog=1024"]:
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
    # What answers SYNs of nobody goes back to where they came from.
    on("balancer", "ip route add 10.77.0.0/16 via 10.9.3.2 dev attacker")
    # The attacker's end hears nothing, questions for its link address included.
    far = json.loads(on("attacker", "ip -j link show eth0"))[0]["address"]
    on("balancer", f"ip neigh replace 10.9.3.2 lladdr {far} dev attacker nud permanent")


def clear(folder):
    for host in ["balancer", *HOSTS]:
        found = subprocess.run(["ip", "netns", "pids", name(host)], stdout=subprocess.PIPE, text=True, check=False).stdout
        for pid in found.split():
            subprocess.run(["kill", "-9", pid], check=False)
    for mount in sorted(pathlib.Path(folder).glob("pins*")):
        subprocess.run(["umount", "-l", mount], stderr=subprocess.DEVNULL, check=False)
    for host in ["balancer", *HOSTS]:
        subprocess.run(["ip", "netns", "del", name(host)], stderr=subprocess.DEVNULL, check=False)


class Asker:
    """The client's end: see tests/l4_peer.py."""

    def __init__(self):
        self.child = subprocess.Popen(inside("client", sys.executable, str(PEER), "ask"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, line):
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()

    def hear(self):
        return json.loads(self.child.stdout.readline())

    def ask(self, line):
        self.tell(line)
        return self.hear()

    def end(self):
        self.child.kill()
        self.child.wait()


def build(options):
    return ROOT / "target" / ("release" if options.release else "debug")


def server(options):
    return pathlib.Path(options.ironweir).resolve() if options.ironweir else build(options) / "ironweir"


def flood_program(options):
    """Beside the server that is named, or this tree's."""
    beside = server(options).parent / "examples/flood"
    return beside if beside.exists() else build(options) / "examples/flood"


def serve(host):
    child = subprocess.Popen(inside(host, sys.executable, str(PEER), "serve", host, "4", str(PORT)), stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    return child


def measure(options, folder, what):
    """One of the three."""
    children = [serve("balancer" if what == "kernel" else "server")]
    if what != "kernel":
        conf = pathlib.Path(folder, "nginx.conf")
        conf.write_text(CONF.format(folder=folder, service=SERVICE))
        children.append(subprocess.Popen(inside("balancer", str(server(options)), "-p", folder, "-c", str(conf))))
        # To be sent frames by XDP, the other end of a veth pair needs a program of its own.
        if what == "quiet":
            for host in ("client", "server"):
                on(host, f"{server(options)} l4 --pins {folder}/pins-{host} pass eth0")
    old, new, more = Asker(), Asker(), Asker()
    try:
        # Until the program is there the ordinary proxy serves.
        wait_for(lambda: more.ask(f"open 1 {SERVICE} {PORT}") in (["server"], ["balancer"]) and (what == "kernel" or counted(folder, what, options, "forwarded") > 0))
        opened = old.ask(f"open {HERE} {SERVICE} {PORT}")
        before = counted(folder, what, options)
        flood = None if what == "quiet" else subprocess.Popen(inside("attacker", str(flood_program(options)), "eth0", mac(), SERVICE, str(PORT), str(options.rate), str(options.seconds)), stdout=subprocess.PIPE, text=True)
        time.sleep(0.5)
        new.tell(f"rate 50 {options.seconds - 1} {SERVICE} {PORT}")
        talks, begun = [], time.monotonic()
        while time.monotonic() - begun < options.seconds - 1:
            at = time.monotonic()
            lost = sum(is_now != was for was, is_now in zip(opened, old.ask("talk")))
            talks.append(((time.monotonic() - at) / HERE * 1e6, lost))
        fresh = new.hear()
        sent = {"sent": 0, "seconds": 1}
        if flood:
            sent = json.loads(flood.communicate()[0])
        answered = counted(folder, what, options) - before
        line = {"what": what, "syns_per_s": round(sent["sent"] / sent["seconds"]), "cookies_per_s": round(answered / sent["seconds"]),
                "word_us": round(sorted(t for t, _ in talks)[len(talks) // 2]), "words": len(talks) * HERE, "words_lost": sum(lost for _, lost in talks),
                "new": fresh["all"], "new_slow": fresh["slow"], "new_longest_s": round(fresh["longest"], 3)}
        print(json.dumps(line), flush=True)
        return line
    finally:
        for asker in (old, new, more):
            asker.end()
        for child in children:
            child.terminate()
            child.wait()


def mac():
    return json.loads(on("balancer", "ip -j link show attacker"))[0]["address"]


def counted(folder, what, options, event="cookie"):
    """Cookies that were sent, or another event of the program's."""
    if what == "kernel":
        lines = on("balancer", "cat /proc/net/netstat").splitlines()
        names, numbers = lines[0].split(), lines[1].split()
        return int(numbers[names.index("SyncookiesSent")])
    words = inside("balancer", server(options), "l4", "--pins", f"{folder}/pins", "--stats")
    text = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(event + " ")), 0)


def wait_for(what, seconds=20):
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            sys.exit("nothing comes through")
        time.sleep(0.2)


def report(lines, options):
    for line in lines:
        print(f"{line['what']}: {line['syns_per_s']:,} SYNs a second (asked for: {options.rate:,}), {line['cookies_per_s']:,} answered with a cookie; "
              f"a word of a connection that was there {line['word_us']} us, {line['words_lost']} of {line['words']} lost; "
              f"new ones: {line['new_slow']} of {line['new']} took a second or more, the longest {line['new_longest_s']} s")
    print(f"load average {os.getloadavg()[0]:.1f} of {os.cpu_count()} CPUs")


main()
