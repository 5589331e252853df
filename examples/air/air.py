#!/usr/bin/env python3
"""An air quality monitor for a Dylos DC1100 on a serial line: reads, keeps, shows, compares before and after a purifier.

    air.py read    --db air.db --port /dev/ttyUSB0
    air.py serve   --db air.db --http 3010
    air.py load    --db air.db readings.csv
    air.py mark    --db air.db 'purifier on'
    air.py compare --db air.db ['purifier on']
"""
import argparse
import json
import signal
import sys
import threading
import time

import dylos
import web
from store import Store, compare


def read(arguments, over):
    store = Store(arguments.db)
    before = store.fact("noise")
    for at, small, large, noise in dylos.readings(arguments.port, over.is_set):
        store.add(at, small, large)
        store.note("noise", before + noise)
        print(f"{time.strftime('%H:%M:%S', time.localtime(at))} small {small} large {large}", flush=True)


def serve(arguments, over):
    server = web.server(arguments.db, arguments.http)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    over.wait()
    server.shutdown()


def load(arguments, _):
    with sys.stdin if arguments.file == "-" else open(arguments.file, newline="") as file:
        print(f"{Store(arguments.db).load(file)} readings")


def mark(arguments, _):
    Store(arguments.db).mark(time.time(), arguments.text)


def compare_marks(arguments, _):
    store = Store(arguments.db)
    marks = [m for m in store.marks(0, 1 << 40) if arguments.text in (None, m[1])]
    if not marks:
        raise ValueError("there is no such mark")
    print(json.dumps({"mark": marks[-1][1]} | compare(store, marks[-1][0], arguments.hours), indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    parts = {}
    for name, run in (("read", read), ("serve", serve), ("load", load), ("mark", mark), ("compare", compare_marks)):
        parts[name] = commands.add_parser(name)
        parts[name].add_argument("--db", required=True)
        parts[name].set_defaults(run=run)
    parts["read"].add_argument("--port", required=True)
    parts["serve"].add_argument("--http", type=int, required=True)
    parts["load"].add_argument("file")
    parts["mark"].add_argument("text")
    parts["compare"].add_argument("text", nargs="?")
    parts["compare"].add_argument("--hours", type=float, default=6)
    arguments = parser.parse_args()
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    try:
        arguments.run(arguments, over)
    except ValueError as wrong:
        sys.exit(f"air: {wrong}")


if __name__ == "__main__":
    main()
