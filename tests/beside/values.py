#!/usr/bin/env python3
"""Holds what Ironweir says of single directives against what nginx says: right and wrong values, too many, too few, twice, in every place.

usage: tests/beside/values.py NGINX IRONWEIR [--only REGEX]

Prints the cases in which the first error differs, alike ones together with one example. What is not supported here, or was not built into that
nginx, is left out. All directives take a quarter of an hour on two CPUs. Exit status 1: something differs.
"""
import argparse
import collections
import concurrent.futures
import functools
import pathlib
import re
import subprocess
import sys
import tempfile

TABLE = pathlib.Path(__file__).parents[2] / "crates/conf/src/directives/nginx.tsv"
# Where a directive stands; %s is its text.
PLACES = {
    "main": "%s\nevents {}\n",
    "events": "events {\n%s\n}\n",
    "http": "events {}\nhttp {\n%s\n}\n",
    "server": "events {}\nhttp { server {\n%s\n} }\n",
    "location": "events {}\nhttp { server { location / {\n%s\n} } }\n",
    "if-in-location": "events {}\nhttp { server { location / { if ($uri) {\n%s\n} } } }\n",
    "if-in-server": "events {}\nhttp { server { if ($uri) {\n%s\n} } }\n",
    "limit_except": "events {}\nhttp { server { location / { limit_except GET {\n%s\n} } } }\n",
    "upstream": "events {}\nhttp { upstream u {\n%s\nserver 127.0.0.1:9; } }\n",
    "stream": "events {}\nstream {\n%s\n}\n",
    "stream-server": "events {}\nstream { server { listen 9;\n%s\n} }\n",
    "stream-upstream": "events {}\nstream { upstream u {\n%s\nserver 127.0.0.1:9; } }\n",
}
WORDS = ["x", "on", "off", "0", "1", "-1", "10", "1m", "10s", "1k", "1g", "$uri", "$nosuch", "99999999999999999999", "a=b", "/path",
         "http://127.0.0.1:1", "127.0.0.1:80", "any", '""', "1.5", "1s500ms", "10r/s", "unix:/x", "~^a", "=200", "200", "404", "zone=a:1m", "zone=a",
         "$uri$args", '"a b"', "default", "none", "all",
         "x y", "1 2", "4 8k", "10s 20s", "/a b", "$uri 1", "zone=a:1m x", "a on", "200 x", "404 /x", "on on", "off off", "x always", "zone=z burst=5",
         "x if=$uri", "http off", "127.0.0.1:80 weight=0", "127.0.0.1 max_fails=x", "/tmp/f buffer=4k", "/tmp/f nofmt", "a b=c", "8 0", "0 8k", "1h x",
         "x y z", "1 2 3", "4 8k 16k", "$uri zone=q:10m rate=1r/s", "404 =200 /x", "/a b last", "/a b nosuch", "200 302 1h", "X-A b always",
         "/tmp/f keys_zone=k:1m levels=1:2", "127.0.0.1:80 weight=2 down", "on off on"]
TWICE = ["on", "1", "10s", "x", "x y"]
BODIES = ["{ }", "{ x; }", "{ x y; }", "{ default 1; }", "{ x y z; }", "{ deny all; }"]
ANYWHERE = ["x", "on"]


def cases(only):
    """Of each directive: its name, a place, and its text."""
    for row in TABLE.read_text().splitlines():
        if row.startswith("#") or not row.strip():
            continue
        name, places, arguments = row.split("\t")[:3]
        known = [place for place in places.split() if place in PLACES]
        if not known or name in ("include", "load_module") or not re.fullmatch(only, name):
            continue
        usual = next((place for place in ("location", "server") if place in known), known[-1])
        ends = [f" {body}" for body in BODIES] if "block" in arguments else [";"]
        for words in ["", *WORDS]:
            for end in ends:
                yield name, usual, f"{name} {words}".strip() + end
        if "block" not in arguments:
            for words in TWICE:
                yield name, usual, f"{name} {words};\n{name} {words};"
        for place in PLACES:
            for words in ANYWHERE:
                yield name, place, f"{name} {words}{ends[0]}"


def first_error(program, folder, text):
    """What it says first, without time, process and file."""
    file = pathlib.Path(folder, "nginx.conf")
    file.write_text(text)
    run = subprocess.run([program, "-t", "-q", "-p", folder, "-c", str(file)], capture_output=True, text=True, errors="replace")
    lines = [line for line in run.stderr.splitlines() if re.search(r"\[(emerg|alert|crit)\]", line)]
    said = re.sub(r"^.*?\[\w+\] (\d+#\d+: )?", "", lines[0]) if lines else f"accepted ({run.returncode})"
    return said.replace(folder, "FOLDER")


def both(programs, case):
    """The first errors of both for a case."""
    name, place, text = case
    with tempfile.TemporaryDirectory(prefix="values-") as folder:
        pathlib.Path(folder, "logs").mkdir()
        return tuple(first_error(program, folder, PLACES[place] % text).replace(f'"{name}"', '"@"') for program in programs)


def main():
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nginx")
    parser.add_argument("ironweir")
    parser.add_argument("--only", default=".*")
    options = parser.parse_args()
    asked, kinds = list(cases(options.only)), collections.defaultdict(list)
    with concurrent.futures.ProcessPoolExecutor() as pool:
        said = pool.map(functools.partial(both, (options.nginx, options.ironweir)), asked, chunksize=20)
        for case, (nginx, ironweir) in zip(asked, said):
            if nginx != ironweir and "not supported" not in ironweir and "unknown directive" not in nginx:
                kinds[tuple(re.sub(r'"[^"@]*"|\d+', "_", text) for text in (nginx, ironweir))].append((case, nginx, ironweir))
    for found in sorted(kinds.values(), key=len, reverse=True):
        (_, place, text), nginx, ironweir = found[0]
        names = sorted({case[0] for case, _, _ in found})
        print(f"{len(found)} times ({' '.join(names)[:200]}), in {place}: {text!r}\n  nginx:    {nginx}\n  ironweir: {ironweir}")
    print(f"{len(asked)} cases; {sum(map(len, kinds.values()))} differ, in {len(kinds)} ways")
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
