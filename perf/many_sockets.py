#!/usr/bin/env python3
"""What `ironweir doctor` costs on a machine with many sockets.

Makes connections over loopback in a network namespace, in steps, by processes that each hold as many as they have descriptors for, and measures
the CPU time of `ironweir doctor --json` (user and system, of the process). Said is whether its sums are those of /proc/net/sockstat, the cost of each
socket by the slope between the steps, and what a million cost, or would cost by that slope. Root, for the namespace. A million sockets take 6 GB.

Beside it stands the kernel's own floor: two bare dumps that only read, of all connections and of the sample (one port of eight, crates/machine/src/sample.rs)
that the doctor asks for where there are more than 100,000.
"""
import argparse
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
SPACE = "doctor-sockets"
# Both ends of a connection are one process's; descriptors that are none of them.
OTHERS = 100
HOLD = """
import resource, socket, sys
count, number = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
server = socket.socket(); server.bind(("127.0.0.%d" % (number + 1), 8000)); server.listen(4096)
held = []
for _ in range(count):
    client = socket.socket(); client.connect(server.getsockname()); held += [client, server.accept()[0]]
print("held", flush=True)
sys.stdin.read()
"""

BARE = """
import resource, socket, struct, sys
ports = [(block * 4096, block * 4096 + 511) for block in range(16)]
part = 20 * len(ports)
end = 2 * part + 4
code = b""
for least, most, behind in ((2, 3, part), (4, 5, 2 * part)):
    for first, last in ports:
        here = len(code)
        code += struct.pack("=BBHBBHBBHBBHBBH", least, 8, behind - here, 0, 0, first, most, 8, 12, 0, 0, last, 1, 4, end - here - 16)
code += struct.pack("=BBH", 1, 4, 8)
stream, room = socket.socket(16, socket.SOCK_RAW, 4), bytearray(65536)
for name, more in (("all", b""), ("sample", struct.pack("=HH", len(code) + 4, 1) + code)):
    used = lambda: sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    began, count = used(), 0
    for family in (2, 10):
        body = struct.pack("=BBBBI", family, 6, 0, 0, 0x1bfe) + bytes(48) + more
        stream.sendto(struct.pack("=IHHII", 16 + len(body), 20, 0x301, 1, 0) + body, (0, 0))
        while True:
            size = stream.recv_into(room)
            count += size
            kind = struct.unpack_from("=H", room, 4)[0]
            if kind == 2:
                sys.exit("the kernel refuses: %d" % struct.unpack_from("=i", room, 16))
            if kind == 3 or struct.unpack_from("=H", room, size - 16)[0] == 3 or size < 24:
                break
    print("%s %.3f s (%d bytes)" % (name, used() - began, count), end="; ")
print()
"""


def inside(*words, **more):
    return subprocess.Popen(["ip", "netns", "exec", SPACE, *map(str, words)], **more)


def cost(options):
    """CPU seconds of the cheapest of some runs, and the time that the count of sockets itself took."""
    best = None
    for _ in range(options.runs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        # `ip netns exec` becomes the program: its CPU time is the program's.
        out, _ = inside(options.ironweir, "doctor", "--json", "--interval", "100ms", "--record", options.record, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).communicate()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = (after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime)
        best = min(best or spent, spent, key=sum)
    sockets = json.loads(pathlib.Path(options.record).read_text())["machine"]["sockets"]
    return best, sockets


def sums():
    """What the kernel says of the namespace: TCP sockets in use of both families, and in TIME_WAIT."""
    said = subprocess.run(["ip", "netns", "exec", SPACE, "cat", "/proc/net/sockstat", "/proc/net/sockstat6"], capture_output=True, text=True, check=True).stdout
    number = lambda pattern: int(re.search(pattern, said).group(1))
    return number(r"TCP: inuse (\d+)") + number(r"TCP6: inuse (\d+)"), number(r"TCP: .* tw (\d+)")


def main():
    options = parse()
    if os.geteuid() != 0:
        sys.exit("many_sockets.py: a network namespace needs root")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    each = (limit - OTHERS) // 2
    subprocess.run(["ip", "netns", "del", SPACE], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "add", SPACE], check=True)
    subprocess.run(["ip", "netns", "exec", SPACE, "ip", "link", "set", "lo", "up"], check=True)
    holders, points = [], []
    try:
        while True:
            sockets = sum(count for _, count in holders) * 2
            (user, system), told = cost(options)
            points.append((sockets, user + system))
            waits = told["tcp"].get("time_wait", 0)
            counted, kernel = (sum(told["tcp"].values()) - waits, waits), sums()
            agrees = "as sockstat" if counted == kernel else f"MISSED: told {counted}, sockstat {kernel}"
            print(f"{sockets:>8} sockets: {user + system:6.3f} s of CPU ({user:.3f} user, {system:.3f} kernel); the count of sockets took {told['took_us'] / 1000:.1f} ms, "
                  f"one of {told['one_of'] or 1} was looked at; {agrees}", flush=True)
            bare = inside(sys.executable, "-c", BARE, stdout=subprocess.PIPE, text=True).communicate()[0]
            print(f"         bare dumps that only read: {bare.strip().rstrip(';')}", flush=True)
            left = (options.sockets - sockets) // 2
            if left <= 0:
                break
            wanted = min(left, options.step // 2)
            while wanted > 0:
                # As many at once as there are processors: a process makes some 20,000 a second.
                begun = []
                for _ in range(os.cpu_count()):
                    if wanted > 0:
                        count = min(each, wanted)
                        begun.append((inside(sys.executable, "-c", HOLD, count, len(holders) + len(begun), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True), count))
                        wanted -= count
                holders += begun
                for child, _ in begun:
                    if child.stdout.readline() != "held\n":
                        sys.exit("many_sockets.py: the connections cannot be made")
        (first, least), (last, most) = points[0], points[-1]
        slope = (most - least) / max(last - first, 1)
        print(f"{slope * 1e9:.0f} ns for each socket beyond {least:.3f} s for none: 1,000,000 "
              + (f"took {most:.2f} s" if last >= 1_000_000 else f"would take {least + slope * 1e6:.2f} s (extrapolated from {last})"))
    finally:
        for child, _ in holders:
            child.kill()
        for child, _ in holders:
            child.wait()
        pathlib.Path(options.record).unlink(missing_ok=True)
        time.sleep(0.2)
        subprocess.run(["ip", "netns", "del", SPACE], capture_output=True, check=False)
    return 0


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ironweir", type=pathlib.Path, default=TARGET / "release/ironweir")
    parser.add_argument("--sockets", type=int, default=200_000, help="at most")
    parser.add_argument("--step", type=int, default=40_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--record", default="/dev/shm/many-sockets.json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
