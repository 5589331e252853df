#!/usr/bin/env python3
"""Compares what a request costs nginx, HAProxy, the floor and Ironweir, in one interleaved run on one machine.

See perf/README.md for how to read the figures. Needs nginx, haproxy, wrk and two CPUs; run as root.
"""
import argparse
import os
import pathlib
import signal
import sys

from rig import load, processes, report, servers
from rig.cases import CASES

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
# Sockets in TIME_WAIT that are few enough to begin a case of short connections, and how long to wait for that.
TIME_WAIT_MOST = 1000
TIME_WAIT_SECONDS = 65


def main():
    """Runs the chosen cases and writes the report. Exit status 1 if a cell is invalid."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rig = servers.Rig(options.ironweir, options.floor, options.server_cpu, options.load_cpu, options.before)
    chosen = [name for name in options.servers if rig.available(name)]
    for name in set(options.servers) - set(chosen):
        print(f"{name}: not found ({rig.programs[name]}), left out", file=sys.stderr)
    run = {
        "machine": report.machine(rig.versions()), "servers": chosen, "rounds": options.rounds,
        "seconds": options.seconds, "warm_up": options.warm_up, "server_cpu": options.server_cpu,
        "load_cpu": options.load_cpu, "cases": {},
    }
    try:
        backend = rig.backend()
        for name in options.cases:
            run["cases"][name] = run_case(rig, CASES[name], chosen, backend.port, options)
        backend.stop()
    finally:
        processes.stop_all()
        rig.close()
    if options.write:
        print(f"written: {report.write(run, options.output)}", file=sys.stderr)
    print(report.markdown(run))
    cells = [cell for case in run["cases"].values() for cell in case.values()]
    sys.exit(1 if any(cell["invalid"] for cell in cells) else 0)


def run_case(rig, case, chosen, backend_port, options):
    """All rounds of one case; the servers take turns. Returns the cells by server."""
    if case.close:
        processes.wait_for_time_wait(TIME_WAIT_MOST, TIME_WAIT_SECONDS)
    rounds = {name: [] for name in chosen if name not in case.without}
    trouble, running = {}, {}
    for name in rounds:
        try:
            running[name] = rig.start(name, case, backend_port)
            load.check(running[name], case)
            load.run(running[name], case, options.warm_up, rig.folder, rig.server_cpu, rig.load_cpu)
        except (processes.StartError, ValueError) as error:
            trouble[name] = str(error)
    for number in range(options.rounds):
        for name in rounds:
            if name not in trouble:
                one_round(rig, case, running[name], rounds[name], trouble, options)
        print(f"{case.name}: round {number + 1} of {options.rounds}: " + progress(rounds), file=sys.stderr)
    for server in running.values():
        server.stop()
    return {name: report.cell(rounds[name], trouble.get(name)) for name in rounds}


def one_round(rig, case, server, rounds, trouble, options):
    """One server's window, again if others disturbed it; a failure ends the server's part in the case."""
    try:
        for _ in range(1 + options.patience):
            one = load.run(server, case, options.seconds, rig.folder, rig.server_cpu, rig.load_cpu)
            logs = [rig.folder / f"{case.name}-{server.name}" / "access.log", server.log]
            if case.logged and server.name != "floor" and not any(log.exists() and log.stat().st_size for log in logs):
                raise ValueError("nothing was logged")
            empty_logs(*logs)
            if one.foreign <= report.FOREIGN_SHARE * one.seconds:
                break
        rounds.append(one)
    except (ValueError, OSError) as error:
        trouble[server.name] = str(error)


def empty_logs(*logs):
    """Memory is not endless. (Servers append, so the next line is written at the start.)"""
    for log in logs:
        if log.exists():
            os.truncate(log, 0)


def progress(rounds):
    """The last round in a line."""
    return ", ".join(f"{name} {done[-1].cpu_us:.2f} us" for name, done in rounds.items() if done)


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=words(CASES), default=list(CASES), metavar="NAME,...", help=", ".join(CASES))
    parser.add_argument("--servers", type=words(servers.SERVERS), default=servers.SERVERS, metavar="NAME,...",
                        help=", ".join(servers.SERVERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3, help="length of a round")
    parser.add_argument("--warm-up", type=int, default=1, help="seconds before the first round")
    parser.add_argument("--patience", type=int, default=2, help="times to repeat a round that others disturbed")
    parser.add_argument("--ironweir", type=pathlib.Path, default=TARGET / "release/ironweir")
    parser.add_argument("--before", type=pathlib.Path, metavar="PATH",
                        help="another binary of Ironweir that takes its turns too: what a change costs")
    parser.add_argument("--floor", type=pathlib.Path, default=TARGET / "release/floor")
    parser.add_argument("--server-cpu", type=int, default=0)
    parser.add_argument("--load-cpu", type=int, default=1)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "perf/runs")
    parser.add_argument("--no-write", dest="write", action="store_false", help="only print")
    options = parser.parse_args()
    if options.before:
        options.servers = [*options.servers, "before"]
    if not options.floor.exists():
        parser.error(f"{options.floor} is missing: cargo build --release -p floor")
    return options


def words(known):
    """A type of the command line: known words, separated by commas."""
    def parse_words(text):
        found = text.split(",")
        for word in found:
            if word not in known:
                raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(known)}")
        return found
    return parse_words


if __name__ == "__main__":
    main()
