#!/usr/bin/env python3
"""How many instructions a request costs that runs a program in Lua, in user space, beside Debian's ngx_lua: the cases of lua.py, counted by
valgrind's callgrind. Counts do not depend on what else the machine does.

    perf/lua_instructions.py target/quick/ironweir [--cases say,capture] [--requests 200] [--keep DIR]
                [--nginx /usr/sbin/nginx --modules DIR]   DIR: ndk_http_module.so and ngx_http_lua_module.so

Each case is asked for on one kept connection, 100 times before and then as often as is counted; all of the process counts. `--keep` leaves
callgrind's files (`callgrind_annotate FILE`) there.
"""
import argparse
import http.client
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile

import lua

# Requests before those that are counted: programs are compiled, pools are filled.
BEFORE = 100


class Counted(lua.Server):
    """One server under callgrind."""

    def __init__(self, program, port, out, modules=None, back=0):
        self.out = out
        super().__init__(program, port, 0, modules, back)

    def begin(self, command):
        """Starts it, without being counted."""
        callgrind = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={self.out}"]
        # The core it runs on does not matter here.
        super().begin([*callgrind, *command[command.index("-c") + 2:]])

    def control(self, *what):
        """Tells callgrind something."""
        subprocess.run(["callgrind_control", *what, str(self.process.pid)], check=True, capture_output=True)

    def count(self, case, requests):
        """Instructions for a request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=lua.PATIENCE_S)

        def ask(times):
            for _ in range(times):
                connection.request("GET", f"/{case}")
                answer = connection.getresponse()
                body = answer.read()
                if answer.status != 200:
                    raise RuntimeError(f"{case}: {answer.status} {body!r}")

        ask(BEFORE)
        self.control("--instr=on")
        ask(requests)
        self.control("--instr=off")
        before = set(self.out.parent.iterdir())
        self.control(f"--dump={case}")
        new = [path for path in self.out.parent.iterdir() if path not in before]
        connection.close()
        if len(new) != 1:
            raise RuntimeError(f"callgrind has written {new}")
        new[0] = new[0].rename(self.out.with_suffix(f".{case}"))
        return int(re.search(r"^totals: (\d+)", new[0].read_text(), re.M)[1]) / requests


def free_port():
    """A port that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    """Counts and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ironweir")
    parser.add_argument("--nginx")
    parser.add_argument("--modules")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--keep", type=pathlib.Path)
    names = [name for name in lua.CASES if not name.endswith("short") and name not in ("proxy", "asleep")]
    parser.add_argument("--cases", default=",".join(names))
    options = parser.parse_args()
    folder = options.keep or pathlib.Path(tempfile.mkdtemp(prefix="lua_instructions"))
    folder.mkdir(parents=True, exist_ok=True)
    cases, servers = options.cases.split(","), []
    try:
        back = lua.Server(options.ironweir, free_port(), 1)
        servers.append(back)
        counted = {"ironweir": Counted(options.ironweir, free_port(), folder / "ironweir", back=back.port)}
        servers += counted.values()
        if options.nginx:
            counted["nginx"] = Counted(options.nginx, free_port(), folder / "nginx", options.modules, back=back.port)
            servers.append(counted["nginx"])
        print("case | " + " | ".join(counted))
        for case in cases:
            print(f"{case} | " + " | ".join(f"{server.count(case, options.requests):,.0f}" for server in counted.values()), flush=True)
    finally:
        for server in servers:
            server.stop()
        if not options.keep:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
