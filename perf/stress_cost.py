#!/usr/bin/env python3
"""CPU per request of `ironweir stress` beside wrk's, or h2load's: the same target, the same core, in turns.

perf/stress_cost.py IRONWEIR URL [ROUNDS] [--short | --http2 CONNECTIONS STREAMS]

Pin the target to another core. Prints microseconds of CPU per request (user + system), requests a second, and the ratios of both: at most
1.0 is asked for of the first, and 0.97 to 1.03 of the second where the target sets the pace and neither tool is at its limit.
"""
import argparse
import re
import resource
import statistics
import subprocess

CORE = "1"
SECONDS = 2


def cost(command, pattern):
    """Requests a second, and CPU microseconds for each."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    out = subprocess.run(["taskset", "-c", CORE] + command, capture_output=True, text=True, check=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    requests = int(re.search(pattern, out).group(1))
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return requests / SECONDS, cpu / requests * 1e6


def commands(arguments):
    """Ours and the other's, with what finds the number of requests in their output."""
    ours = [arguments.program, "stress", "-q", "--no-preflight", "-t1", f"-d{SECONDS}s"]
    if arguments.http2:
        connections, streams = arguments.http2
        ours += [f"-c{connections}", "--http", "2", "--streams", streams, arguments.url]
        other = ["h2load", "-t1", f"-c{connections}", f"-m{streams}", f"-D{SECONDS}", arguments.url]
        return ours, ("h2load", other, r"requests: (\d+) total")
    wrk = ["wrk", "-t1", "-c64", f"-d{SECONDS}s"] + (["-H", "Connection: close"] if arguments.short else [])
    ours += ["-c64"] + (["--close", "server"] if arguments.short else [])
    return ours + [arguments.url], ("wrk", wrk + [arguments.url], r"(\d+) requests in")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("url")
    parser.add_argument("rounds", nargs="?", type=int, default=7)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--short", action="store_true")
    how.add_argument("--http2", nargs=2, metavar=("CONNECTIONS", "STREAMS"))
    ours, (name, other, pattern) = commands(arguments := parser.parse_args())
    costs, rates = [], []
    for _ in range(arguments.rounds):
        (a, own), (b, peer) = cost(ours, r"(\d+) requests in"), cost(other, pattern)
        costs.append(own / peer)
        rates.append(a / b)
        figures = f"stress {own:6.2f} us at {a:9.0f}/s   {name} {peer:6.2f} us at {b:9.0f}/s"
        print(f"{figures}   ratios {own / peer:.2f} and {a / b:.3f}", flush=True)
    print(f"ratios, medians: CPU {statistics.median(costs):.2f}, rate {statistics.median(rates):.3f}")


if __name__ == "__main__":
    main()
