#!/usr/bin/env python3
"""What a program in Lua costs beside `return`, on one pinned core, interleaved; beside Debian's ngx_lua where that is given.

    perf/lua.py target/quick/ironweir [--rounds 5] [--seconds 3] [--cases say,incr]
                [--nginx /usr/sbin/nginx --modules DIR]   DIR: ndk_http_module.so and ngx_http_lua_module.so

Prints CPU microseconds for a request of each location, and its multiple of the same server's own `return`: the median of the rounds'
own ratios. Needs wrk and two CPUs.
"""
import argparse
import os
import pathlib
import re
import signal
import statistics
import subprocess
import tempfile
import time

CASES = {
    "return": 'return 200 "hello\\n";',
    "say": 'content_by_lua_block { ngx.say("hello") }',
    "512": 'content_by_lua_block { ngx.header.content_length = 512 ngx.print(("x"):rep(512)) }',
    "access": 'access_by_lua_block { if ngx.var.arg_no then return ngx.exit(403) end } content_by_lua_block { ngx.say("hello") }',
    "incr": 'content_by_lua_block { ngx.say(ngx.shared.d:incr("n", 1, 0)) }',
    "match": 'content_by_lua_block { ngx.say(ngx.re.match("hello, 1234", "([0-9])([0-9]+)", "jo")[2]) }',
    "json": 'content_by_lua_block { ngx.say(require("cjson").encode({ name = "hello", list = { 1, 2, 3 }, more = { a = true } })) }',
    "capture": 'content_by_lua_block { ngx.print(ngx.location.capture("/return").body) }',
    "sleep": 'content_by_lua_block { ngx.sleep(0) ngx.say("hello") }',
}

CONF = """{modules}daemon off; master_process off; worker_processes 1; pid {dir}/pid; error_log {dir}/error.log error;
events {{ worker_connections 1024; }}
http {{ access_log off; keepalive_requests 100000000; lua_shared_dict d 1m; {more}
  server {{ listen 127.0.0.1:{port}; default_type text/plain; {locations} }} }}
"""


class Server:
    """One server on a core of its own."""

    def __init__(self, program, port, cpu, modules=None):
        self.folder = tempfile.TemporaryDirectory()
        self.port = port
        locations = "\n".join(f"location = /{name} {{ {text} }}" for name, text in CASES.items())
        loads, more = "", ""
        if modules:
            names = ("ndk_http_module.so", "ngx_http_lua_module.so")
            loads = "".join(f"load_module {modules}/{name};\n" for name in names)
            more = f'lua_package_path "{modules}/lua/?.lua;;";'
        path = pathlib.Path(self.folder.name) / "nginx.conf"
        path.write_text(CONF.format(modules=loads, dir=self.folder.name, port=port, locations=locations, more=more))
        command = ["taskset", "-c", str(cpu), program, "-p", self.folder.name, "-c", str(path), "-e", self.folder.name + "/error.log"]
        self.process = subprocess.Popen(command)
        time.sleep(1.5)
        assert self.process.poll() is None, "the server did not start"

    def cpu_seconds(self):
        """What the process has used."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def measure(self, case, seconds, cpu):
        """CPU microseconds for a request."""
        before = self.cpu_seconds()
        url = f"http://127.0.0.1:{self.port}/{case}"
        out = subprocess.run(["taskset", "-c", str(cpu), "wrk", "-t1", "-c64", f"-d{seconds}s", url], capture_output=True, text=True, check=True)
        used = self.cpu_seconds() - before
        assert "Non-2xx" not in out.stdout, out.stdout
        return used * 1e6 / int(re.search(r"(\d+) requests in", out.stdout)[1])

    def stop(self):
        """Ends it."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        self.folder.cleanup()


def main():
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ironweir")
    parser.add_argument("--nginx")
    parser.add_argument("--modules")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--cases", default=",".join(name for name in CASES if name != "return"))
    options = parser.parse_args()
    servers = {"ironweir": Server(options.ironweir, 18431, 0)}
    if options.nginx:
        servers["nginx"] = Server(options.nginx, 18432, 0, options.modules)
    cases = options.cases.split(",")
    costs = {(server, case): [] for server in servers for case in [*cases, "return"]}
    ratios = {key: [] for key in costs}
    try:
        for _ in range(options.rounds):
            for name, server in servers.items():
                for case in cases:
                    plain = server.measure("return", options.seconds, 1)
                    cost = server.measure(case, options.seconds, 1)
                    costs[name, "return"].append(plain)
                    costs[name, case].append(cost)
                    ratios[name, case].append(cost / plain)
    finally:
        for server in servers.values():
            server.stop()
    print("case | " + " | ".join(f"{s} us | times its return [min..max]" for s in servers))
    for case in ["return", *cases]:
        cells = []
        for server in servers:
            middle = statistics.median(costs[server, case])
            r = ratios[server, case] or [1.0]
            cells.append(f"{middle:.2f} | {statistics.median(r):.2f} [{min(r):.2f}..{max(r):.2f}]")
        print(f"{case} | " + " | ".join(cells))


if __name__ == "__main__":
    main()
