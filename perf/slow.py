#!/usr/bin/env python3
"""slowhttptest's three attacks (slow heads, slow bodies, slow reads) against Ironweir with least rates: is service available, is memory bounded?

perf/slow.py IRONWEIR [--connections 10000] [--rate 1000] [--seconds 40] [--grace 20] [--attacks heads,bodies,reads]

Each attack opens so many connections, as many as the limit of descriptors lets it, and keeps them as long as the server lets it: for the grace, so that there are
10,000 at a time only if that many are opened within it. Meanwhile a page is asked for every 100 ms from another address. One line for each attack: connections
that the server had, answers, the slowest, the server's memory (what is its own: no pages of its file) before and at most, and the kernel's for sockets, which is
that of the whole machine.

Exit status 1: an answer was missing or took longer than a second, or a connection took more than 40 kB of the server's memory.
"""
import argparse
import http.client
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

from rig import processes

CONF = """
daemon off; worker_processes 1; user root; worker_rlimit_nofile {files}; pid {folder}/ironweir.pid; error_log {folder}/error.log error;
events {{ worker_connections {files}; }}
http {{
    access_log off; client_header_min_rate 200 grace={grace}s; client_body_min_rate 1k grace={grace}s; send_min_rate 1k grace={grace}s;
    slow_connections_per_address 20000;
    server {{
        listen 127.0.0.1:{port} backlog=4096 sndbuf=64k; root {folder}; client_max_body_size 1g;
        location / {{ }}
        location = /page {{ return 200 fine; }}
        location /form {{ client_body_buffer_size 16k; proxy_pass http://127.0.0.1:1; }}
    }}
}}
"""
ATTACKS = {
    "heads": ["-H", "-i", "2", "-x", "8", "-u", "http://127.0.0.1:{port}/page"],
    "bodies": ["-B", "-i", "2", "-x", "8", "-s", "8192", "-u", "http://127.0.0.1:{port}/form"],
    "reads": ["-X", "-w", "512", "-y", "1024", "-n", "5", "-z", "32", "-k", "3", "-u", "http://127.0.0.1:{port}/large"],
}
SLOWEST_S = 1
EACH_KB = 40


def ask(port):
    """Seconds until the page has come; None: it has not."""
    began = time.monotonic()
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=10, source_address=("127.0.0.9", 0))
    try:
        client.request("GET", "/page")
        answer = client.getresponse()
        return time.monotonic() - began if answer.read() == b"fine" else None
    except OSError:
        return None
    finally:
        client.close()


def kernel_memory():
    """kB that the kernel has for all TCP sockets of this machine."""
    words = next(line.split() for line in pathlib.Path("/proc/net/sockstat").read_text().splitlines() if line.startswith("TCP:"))
    return int(words[words.index("mem") + 1]) * 4


def own(server):
    """The server's descriptors, and the kB of memory that are its own."""
    descriptors = memory = 0
    for pid in server.pids():
        try:
            descriptors += len(os.listdir(f"/proc/{pid}/fd"))
            text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        memory += next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Anonymous:")), 0)
    return descriptors, memory


def run(name, port, server, options):
    for _ in range(20):
        ask(port)
    (base, before), kernel_before = own(server), kernel_memory()
    words = [word.format(port=port) for word in ATTACKS[name]]
    attack = subprocess.Popen(["slowhttptest", *words, "-c", str(options.connections), "-r", str(options.rate), "-l", str(options.seconds), "-p", "10"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    took, most, most_open, most_kernel = [], before, 0, 0
    until = time.monotonic() + options.seconds + 30
    while attack.poll() is None and time.monotonic() < until:
        took.append(ask(port))
        opened, memory = own(server)
        most, most_open = max(most, memory), max(most_open, opened - base)
        most_kernel = max(most_kernel, kernel_memory() - kernel_before)
        time.sleep(0.1)
    attack.kill()
    attack.wait()
    missing, slowest = took.count(None), max((t for t in took if t is not None), default=0)
    print(f"{name:7} {most_open:6} connections at most; {len(took)} answers, {missing} missing, the slowest {slowest * 1000:.0f} ms; "
          f"the server's memory {before} kB, {most} kB at most; the kernel's {most_kernel} kB", flush=True)
    return missing == 0 and slowest <= SLOWEST_S and most - before <= max(EACH_KB * most_open, 4096)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    for name, value in [("connections", 10000), ("rate", 1000), ("seconds", 40), ("grace", 20)]:
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--attacks", default="heads,bodies,reads")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    options.connections = min(options.connections, hard - 1000)
    fine = True
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        folder, port = pathlib.Path(folder), processes.free_port()
        (folder / "large").write_bytes(b"x" * (1 << 20))
        (folder / "ironweir.conf").write_text(CONF.format(folder=folder, port=port, files=hard, grace=options.grace))
        command = [str(options.program.resolve()), "-p", str(folder), "-c", str(folder / "ironweir.conf"), "-e", str(folder / "error.log")]
        for name in options.attacks.split(","):
            server = processes.start("ironweir", command, folder, 0, port, lambda _: None)
            fine &= run(name, port, server, options)
            server.stop()
    print(f"load average {os.getloadavg()[0]:.1f}")
    sys.exit(not fine)


if __name__ == "__main__":
    main()
