#!/usr/bin/env python3
"""How many connects are slow when one of four real servers stops, while connections are opened at a rate whatever becomes of them.

Needs root rights and a C compiler; all of it happens in network namespaces that this makes: a client, a balancer (`xdp=nat`) and four real servers, each
an Ironweir with a small `return`, on veth pairs of the balancer's. One real server is stopped (SIGSTOP: master and worker) for two
seconds. Connections are opened by connects.c, which keeps its schedule: a connect counts from the time it was due.

  reports       `maglev`, real servers report their accept queues (`xdp_report_to`)
  turns         the same in turns (round robin) with reports
  round_robin   in turns and without reports: what the field has

Asked for: 5,000 connections a second; with reports at most 1 % of the connects of those two seconds take a second or more.
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SERVICE, PORT = "10.9.9.1", 80
TAG = f"l4stop{os.getpid()}"
REALS = ["r1", "r2", "r3", "r4"]
NETS = {"client": "10.9.2", **{name: f"10.9.1{n}" for n, name in enumerate(REALS, 1)}}
# So that no port comes twice in a run: 60,000 for each.
SOURCES = [f"10.9.2.{n}" for n in range(2, 8)]
# Before the stop, stopped, and until the end, seconds.
BEFORE, STOPPED, AFTER = 3, 2, 4
MAIN = """daemon off; pid {folder}/pid; error_log {folder}/error.log info; worker_processes 1; user root;
events {{ worker_connections 4096; }}
"""
BALANCER = MAIN + """stream {{
    xdp_pins {folder}/pins; xdp_interfaces {interfaces}; {reports}
    upstream web {{ zone web 64k; {method} {servers} }}
    server {{ listen {service}:80 xdp=nat; proxy_pass web; }}
}}
"""
REAL = MAIN + """stream {{
    {reports}
    server {{ listen 80 {backlog}; return "{name}\\n"; }}
}}
"""


def main():
    """Measures each, prints a line, then what was asked for."""
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        client = pathlib.Path(folder, "connects")
        subprocess.run(["cc", "-O2", "-o", client, ROOT / "perf/connects.c"], check=True)
        try:
            network()
            # To be sent frames by XDP, the other end of a veth pair needs a program of its own.
            for host in NETS:
                on(host, f"{options.ironweir.resolve()} l4 --pins {folder}/pins-{host} pass eth0")
            lines = [measure(options, pathlib.Path(folder, f"{what}{n}"), client, what) for n in range(options.rounds) for what in options.what.split(",")]
        finally:
            clear(folder)
    report(lines, options)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=5000, help="connections a second")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--what", default="reports,turns,round_robin")
    parser.add_argument("--backlog", type=int, help="of the real servers' sockets; else what Ironweir takes")
    parser.add_argument("--ironweir", type=pathlib.Path, default=ROOT / "target/release/ironweir")
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
    for host in ["balancer", *NETS]:
        subprocess.run(["ip", "netns", "add", name(host)], check=True)
        on(host, "ip link set lo up")
    for setting in ["ip_forward=1", "conf.all.rp_filter=0"]:
        on("balancer", f"sysctl -q -w net.ipv4.{setting}")
    subprocess.run(inside("client", "sysctl", "-q", "-w", "net.ipv4.ip_local_port_range=2000 64000"), check=True)
    for host, net in NETS.items():
        on("balancer", f"ip link add {host} type veth peer name eth0 netns {name(host)}")
        for where, device in [("balancer", host), (host, "eth0")]:
            # Frames that XDP sends carry no mark of a checksum to be made; GRO gives the receiver the NAPI that they need.
            on(where, f"ethtool -K {device} tx off gro on")
            on(where, f"ip link set {device} up")
        on("balancer", f"ip addr add {net}.1/24 dev {host}")
        on(host, f"ip addr add {net}.2/24 dev eth0")
        on(host, f"ip route add default via {net}.1")
    for source in SOURCES[1:]:
        on("client", f"ip addr add {source}/24 dev eth0")
    on("balancer", f"ip addr add {SERVICE}/32 dev lo")


def clear(folder):
    for host in ["balancer", *NETS]:
        found = subprocess.run(["ip", "netns", "pids", name(host)], stdout=subprocess.PIPE, text=True, check=False).stdout
        for pid in found.split():
            subprocess.run(["kill", "-9", pid], check=False)
    for mount in [*pathlib.Path(folder).glob("pins-*"), *pathlib.Path(folder).glob("*/pins")]:
        subprocess.run(["umount", "-l", mount], stderr=subprocess.DEVNULL, check=False)
    for host in ["balancer", *NETS]:
        subprocess.run(["ip", "netns", "del", name(host)], stderr=subprocess.DEVNULL, check=False)


def start(options, host, folder, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "nginx.conf").write_text(text)
    return subprocess.Popen(inside(host, options.ironweir.resolve(), "-p", folder, "-c", folder / "nginx.conf"))


def measure(options, folder, client, what):
    """One of the three, servers and all anew."""
    hears = "" if what == "round_robin" else "xdp_reports {}:7000 key=only-for-this-measurement;"
    says = "" if what == "round_robin" else "xdp_report_to {}:7000 key=only-for-this-measurement;"
    backlog = f"backlog={options.backlog}" if options.backlog else ""
    children = []
    try:
        for host in REALS:
            text = REAL.format(folder=folder / host, name=host, backlog=backlog, reports=says.format(SERVICE))
            children.append(start(options, host, folder / host, text))
        servers = " ".join(f"server {NETS[host]}.2:80;" for host in REALS)
        text = BALANCER.format(folder=folder, interfaces=" ".join(NETS), servers=servers, service=SERVICE,
                               method="maglev;" if what == "reports" else "", reports=hears.format(SERVICE))
        children.append(start(options, "balancer", folder, text))
        wait_for(lambda: forwarded(options, folder, client) > 0, "nothing comes through the kernel")
        line = {"what": what, "asked": options.rate, **load(options, client, children[REALS.index("r2")].pid)}
        window = line["window"]
        late = window["due"] - window["connected"] + window["slow"]
        line["slow_percent"] = round(100 * late / max(window["due"], 1), 2)
        print(json.dumps(line), flush=True)
        return line
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait()


def forwarded(options, folder, client):
    """Packets that the program has sent to real servers, after some connects. Until it is there the ordinary proxy serves. Each address
    connects, since the first answer to one whose link address is not known yet is lost."""
    subprocess.run(inside("client", client, SERVICE, PORT, 100, 0.2, 0, 0, *SOURCES), stdout=subprocess.DEVNULL, check=False)
    words = inside("balancer", options.ironweir.resolve(), "l4", "--pins", folder / "pins", "--stats")
    text = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("forwarded ")), 0)


def load(options, client, master):
    """The connections, and the stop in their midst."""
    # `nsenter` becomes the master.
    worker = int(subprocess.run(["pgrep", "-P", str(master)], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[0])
    window = [BEFORE * 1000, (BEFORE + STOPPED) * 1000]
    words = inside("client", client, SERVICE, PORT, options.rate, BEFORE + STOPPED + AFTER, *window, *SOURCES)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "begun\n"
        begun = time.monotonic()
        sleep_until(begun + BEFORE)
        try:
            for pid in (worker, master):
                os.kill(pid, signal.SIGSTOP)
            stopped = time.monotonic() - begun
            sleep_until(begun + BEFORE + STOPPED)
        finally:
            for pid in (master, worker):
                os.kill(pid, signal.SIGCONT)
        went_on = time.monotonic() - begun
        said = json.loads(child.stdout.readline())
    return {**said, "stopped_at_s": round(stopped, 3), "for_s": round(went_on - stopped, 3)}


def sleep_until(at):
    time.sleep(max(0, at - time.monotonic()))


def wait_for(what, problem, seconds=20):
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            sys.exit(problem)
        time.sleep(0.2)


def report(lines, options):
    for line in lines:
        window, everything = line["window"], line["all"]
        print(f"{line['what']}: {line['rate']:,} connections a second (asked for: {options.rate:,}), at most {line['late_ms']} ms behind; {line['slow_percent']} % of the {window['due']:,} that were due while "
              f"the server stood took a second or more (asked for: at most 1 with reports); of all {everything['due']:,}: {everything['slow']} slow, {everything['failed']} failed, {line['never']} never; "
              f"half in {line['p50_us']} us, 99 % in {line['p99_us']} us")
    print(f"load average {os.getloadavg()[0]:.1f} of {os.cpu_count()} CPUs")


main()
