#!/usr/bin/env python3
"""Golden cases: what nginx answered and logged, kept, so that every run of the tests holds Ironweir against it without an nginx.

usage: tests/beside/golden.py record NGINX IRONWEIR [--first SEED] [--count N] [--requests N]     writes golden.jsonl beside this file
       tests/beside/golden.py replay IRONWEIR [--port PORT]                                     exit status 1: something differs

A line of golden.jsonl is a configuration drawn by chance (configs.py) and requests (asking.py), each with nginx's answer and the variables of its line in the
access log. Recorded is only what comes out the same each time it is asked. PORT and the next one are used, on 127.0.0.0/8.
"""
import argparse
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile

import asking
import backend
import compare
import configs

KEPT = pathlib.Path(__file__).with_name("golden.jsonl")
# A longer body is kept as its hash.
MAX_BODY = 300
# How often a case must come out the same to be recorded.
ROUNDS = 3


def run(server, configuration, requests, port):
    """What the server answers and logs; None: it does not take the configuration, or loses a line."""
    if server.configure(configuration, port):
        return None
    server.start()
    def plain(text):
        text = re.sub(rf"(?<!\d){port}(?!\d)", "UPSTREAM_PORT", server.plain(text))
        return re.sub(rf"(?<!\d){server.address[1]}(?!\d)", "PORT", text)

    answers = [tuple(map(plain, asking.ask(server.address, asked))) for asked in requests]
    lines = [plain(line) for line in server.stop()]
    if len(lines) != len(requests):
        return None
    return [{"head": head, "body": kept(body), "log": log} for (head, body), log in zip(answers, lines)]


def kept(body):
    """A body as it is recorded."""
    return body if len(body) <= MAX_BODY else f"sha256 {hashlib.sha256(body.encode('latin1')).hexdigest()}"


def record(nginx, ironweir, options):
    """Writes the cases of the seeds in which both servers are the same each time."""
    cases = 0
    with KEPT.open("w") as out:
        for seed in range(options.first, options.first + options.count):
            text, requests = configs.Draw(seed).text(), asking.draw(seed, options.requests)
            rounds = [run(server, text, requests, options.port + 1) for server in [nginx, ironweir] for _ in range(ROUNDS)]
            if None in rounds:
                continue
            same = [all(seen[i] == rounds[0][i] for seen in rounds) for i in range(len(requests))]
            chosen = [dict(dataclasses.asdict(asked), body=asked.body.decode("latin1"), seen=rounds[0][i])
                      for i, asked in enumerate(requests) if same[i]]
            cases += len(chosen)
            out.write(json.dumps({"seed": seed, "configuration": text, "cases": chosen}) + "\n")
            print(f"seed {seed}: {len(chosen)} of {len(requests)}; {cases} in all", flush=True)


def replay(ironweir, options):
    """How many cases differ; they are printed."""
    cases = different = 0
    for line in KEPT.read_text().splitlines():
        golden = json.loads(line)
        requests = [asking.Asked(c["method"], c["target"], c["version"], c["headers"], c["body"].encode("latin1")) for c in golden["cases"]]
        seen = run(ironweir, golden["configuration"], requests, options.port + 1)
        if seen is None:
            print(f"seed {golden['seed']}: the configuration is refused, or requests have no line in the access log")
            different += len(requests)
            continue
        for case, asked, now in zip(golden["cases"], requests, seen):
            cases += 1
            if now != case["seen"]:
                different += 1
                print(f"seed {golden['seed']}: {asked}")
                for name in ("head", "body"):
                    if now[name] != case["seen"][name]:
                        print(f"  {name}\n    nginx:    {case['seen'][name]!r}\n    ironweir: {now[name]!r}")
                for name, theirs, ours in zip(configs.LOGGED, case["seen"]["log"].split("|"), now["log"].split("|")):
                    if ours != theirs:
                        print(f"  ${name}\n    nginx:    {theirs}\n    ironweir: {ours}")
    print(f"{cases} cases, {different} differ")
    return different


def main():
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "replay"])
    parser.add_argument("programs", nargs="+")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--requests", type=int, default=30)
    parser.add_argument("--port", type=int, default=18280)
    options = parser.parse_args()
    # Answers have lengths: ports have five digits, addresses and folders always the same length.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="golden-", dir="/tmp"))
    folder.chmod(0o755)
    net, names = 100 + options.port % 100, ["nginx", "ironweir"][-len(options.programs):]
    servers = [compare.Server(name, os.path.abspath(program), folder, (f"127.2.{net}.{i + 1}", options.port))
               for i, (name, program) in enumerate(zip(names, options.programs))]
    backend.start(options.port + 1)
    try:
        return record(*servers, options) if options.what == "record" else int(replay(*servers, options) > 0)
    finally:
        for server in servers:
            if hasattr(server, "process") and server.process.poll() is None:
                server.process.kill()
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
