#!/usr/bin/env python3
"""CPU per request of `ironweir stress` beside wrk's: the same target, the same core, in turns.

perf/stress_cost.py IRONWEIR URL [ROUNDS] [--short]

Pin the target to another core. Prints microseconds of CPU per request (user + system) and the ratio; at most 1.0 is asked for.
"""
import re
import resource
import statistics
import subprocess
import sys

CORE = "1"
SECONDS = 2


def cost(command):
    """Requests a second, and CPU microseconds for each."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    out = subprocess.run(["taskset", "-c", CORE] + command, capture_output=True, text=True, check=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    requests = int(re.search(r"(\d+) requests in", out).group(1))
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return requests / SECONDS, cpu / requests * 1e6


def main():
    arguments = [a for a in sys.argv[1:] if a != "--short"]
    if len(arguments) < 2:
        sys.exit(__doc__)
    program, url, rounds = arguments[0], arguments[1], int(arguments[2]) if len(arguments) > 2 else 7
    load = ["-t1", "-c64", f"-d{SECONDS}s"]
    short = "--short" in sys.argv
    ours = [program, "stress", "-q", "--no-preflight"] + load + (["--close", "server"] if short else []) + [url]
    wrk = ["wrk"] + load + (["-H", "Connection: close"] if short else []) + [url]
    ratios = []
    for _ in range(rounds):
        (a, own), (b, other) = cost(ours), cost(wrk)
        ratios.append(own / other)
        print(f"stress {own:6.2f} us at {a:9.0f}/s   wrk {other:6.2f} us at {b:9.0f}/s   ratio {own / other:.2f}", flush=True)
    print(f"ratio, median: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
