#!/usr/bin/env python3
"""What a program in Lua costs beside `return`, on one pinned core, interleaved; beside Debian's ngx_lua where that is given, and in the
field's rows (512 bytes, kept and short) beside Go's own server.

    perf/lua.py target/release/ironweir [--rounds 5] [--seconds 3] [--cases say,incr]
                [--nginx /usr/sbin/nginx --modules DIR]   DIR: ndk_http_module.so and ngx_http_lua_module.so
                [--go /usr/bin/go]                        builds lua_field.go

Prints CPU microseconds for a request of each location, and its multiple of the same server's own `return`: the median of the rounds'
own ratios. Needs wrk and two CPUs.
"""
import argparse
import os
import pathlib
import re
import resource
import signal
import socket
import statistics
import subprocess
import tempfile
import time

CASES = {
    "return": 'return 200 "hello\\n";',
    "return512": f'return 200 "{"x" * 512}";',
    "return512short": f'return 200 "{"x" * 512}";',
    "proxy": "proxy_pass http://back/return;",
    "say": 'content_by_lua_block { ngx.say("hello") }',
    "512": 'content_by_lua_block { ngx.header.content_length = 512 ngx.print(("x"):rep(512)) }',
    "512short": 'content_by_lua_block { ngx.header.content_length = 512 ngx.print(("x"):rep(512)) }',
    "access": 'access_by_lua_block { if ngx.var.arg_no then return ngx.exit(403) end } proxy_pass http://back/return;',
    "get": 'content_by_lua_block { ngx.shared.d:add("k", "hello") ngx.say(ngx.shared.d:get("k")) }',
    "incr": 'content_by_lua_block { ngx.say(ngx.shared.d:incr("n", 1, 0)) }',
    "match": 'content_by_lua_block { ngx.say(ngx.re.match("hello, 1234", "([0-9])([0-9]+)", "jo")[2]) }',
    "json": """content_by_lua_block { local list = {} for n = 1, 40 do list[n] = { id = n, name = "a name of some length", on = true } end
        ngx.say(require("cjson").encode({ list = list })) }""",
    "capture": 'content_by_lua_block { ngx.print(ngx.location.capture("/return").body) }',
    "socket": """content_by_lua_block { local s = ngx.socket.tcp() assert(s:connect("127.0.0.1", @BACK@))
        assert(s:send("GET /return HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")) while s:receive() ~= "" do end ngx.print(s:receive(6)) s:setkeepalive() }""",
    "sleep": 'content_by_lua_block { ngx.sleep(0) ngx.say("hello") }',
    "phases": """set $x ""; rewrite_by_lua_block { ngx.ctx.begun = ngx.now() ngx.var.x = "hello" }
        access_by_lua_block { if ngx.var.arg_no then return ngx.exit(403) end }
        content_by_lua_block { ngx.say(ngx.var.x) }
        header_filter_by_lua_block { ngx.header["X-Phases"] = "5" }
        log_by_lua_block { ngx.ctx.took = ngx.now() - ngx.ctx.begun }""",
    "asleep": 'content_by_lua_block { ngx.sleep(30) ngx.say("hello") }',
}
# What a case is compared with, if it is not `return`.
BESIDE = {"512": "return512", "512short": "return512", "access": "proxy"}
# What the server in Go has.
FIELD = {"512", "512short", "return512", "return512short"}
# Not measured by themselves.
PLAIN = {"return", "return512", "return512short", "proxy", "asleep"}

CONF = """{modules}daemon off; master_process off; worker_processes 1; pid {dir}/pid; error_log {dir}/error.log error;
worker_rlimit_nofile 20000;
events {{ worker_connections 16384; }}
http {{ access_log off; keepalive_requests 100000000; lua_shared_dict d 1m; {more}
  upstream back {{ server 127.0.0.1:{back}; keepalive 64; }}
  server {{ listen 127.0.0.1:{port} backlog=8192; default_type text/plain; proxy_http_version 1.1; proxy_set_header Connection "";
    {locations} }} }}
"""

# A measurement that takes so much longer than it should has hung.
PATIENCE_S = 30


class Server:
    """One server on a core of its own."""

    def __init__(self, program, port, cpu, modules=None, back=0):
        self.folder = tempfile.TemporaryDirectory()
        self.port = port
        texts = {name: text.replace("@BACK@", str(back)) for name, text in CASES.items() if back or name in PLAIN}
        locations = "\n".join(f"location = /{name} {{ {text} }}" for name, text in texts.items())
        loads, more = "", ""
        if modules:
            names = ("ndk_http_module.so", "ngx_http_lua_module.so")
            loads = "".join(f"load_module {modules}/{name};\n" for name in names)
            more = f'lua_package_path "{modules}/lua/?.lua;;";'
        folder = pathlib.Path(self.folder.name)
        path = folder / "nginx.conf"
        path.write_text(CONF.format(modules=loads, dir=folder, port=port, back=back or 1, locations=locations, more=more))
        self.cases = set(texts)
        self.begin(["taskset", "-c", str(cpu), program, "-p", str(folder), "-c", str(path), "-e", str(folder / "error.log")])

    def begin(self, command):
        """Starts it, and waits until it listens."""
        folder = pathlib.Path(self.folder.name)
        # Its output goes nowhere that whoever waits for ours would wait for.
        self.said = open(folder / "said", "wb")
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.said, stderr=self.said)
        try:
            self.wait_until_it_listens()
        except Exception:
            said = "".join((folder / name).read_text() for name in ("said", "error.log") if (folder / name).exists())
            self.stop()
            raise RuntimeError(f"{' '.join(command)} did not start:\n{said}") from None

    def wait_until_it_listens(self):
        """Raises if it ends before, or takes too long."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if self.process.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError("it does not listen")

    def cpu_seconds(self):
        """What the process has used."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def own_kb(self):
        """Its private memory."""
        rollup = pathlib.Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        return sum(int(kb) for kb in re.findall(r"Private_\w+:\s+(\d+) kB", rollup))

    def measure(self, case, seconds, cpu):
        """CPU microseconds for a request."""
        before = self.cpu_seconds()
        url = f"http://127.0.0.1:{self.port}/{case}"
        short = ["-H", "Connection: close"] if case.endswith("short") else []
        command = ["taskset", "-c", str(cpu), "wrk", "-t1", "-c64", f"-d{seconds}s", *short, url]
        out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + PATIENCE_S)
        used = self.cpu_seconds() - before
        count = int(re.search(r"(\d+) requests in", out.stdout)[1])
        if "Non-2xx" in out.stdout or count == 0:
            raise RuntimeError(f"{case}: {out.stdout}")
        return used * 1e6 / count

    def memory_asleep(self, count):
        """Bytes of private memory for a request that sleeps."""
        self.measure("say", 1, 1)
        before = self.own_kb()
        sleepers = []
        try:
            for _ in range(count):
                sleeper = socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)
                sleeper.sendall(b"GET /asleep HTTP/1.1\r\nHost: x\r\n\r\n")
                sleepers.append(sleeper)
            time.sleep(2)
            return (self.own_kb() - before) * 1024 / count
        finally:
            for sleeper in sleepers:
                sleeper.close()

    def stop(self):
        """Ends it, whatever it does."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.said.close()
        self.folder.cleanup()


class GoServer(Server):
    """The field's rows by net/http, with one thread for programs as the others have."""

    def __init__(self, go, port, cpu):
        self.folder = tempfile.TemporaryDirectory()
        self.port, self.cases = port, FIELD
        program = str(pathlib.Path(self.folder.name) / "field")
        source = str(pathlib.Path(__file__).with_name("lua_field.go"))
        subprocess.run([go, "build", "-o", program, source], check=True)
        self.begin(["taskset", "-c", str(cpu), "env", "GOMAXPROCS=1", program, str(port)])


def whole_seconds(text):
    """What wrk takes as a duration."""
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of whole seconds, which is all that wrk knows")
    return int(text)


def main():
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ironweir")
    parser.add_argument("--nginx")
    parser.add_argument("--modules")
    parser.add_argument("--go")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=whole_seconds, default=3)
    parser.add_argument("--cases", default=",".join(name for name in CASES if name not in PLAIN))
    parser.add_argument("--asleep", type=int, default=0, metavar="N", help="also the memory of N requests in ngx.sleep")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    cases = options.cases.split(",")
    servers, back = {}, None
    try:
        # Proxies and sockets have the same server behind them, on the other core.
        back = Server(options.ironweir, 18433, 1)
        servers["ironweir"] = Server(options.ironweir, 18431, 0, back=18433)
        if options.nginx:
            servers["nginx"] = Server(options.nginx, 18432, 0, options.modules, back=18433)
        if options.go:
            servers["go"] = GoServer(options.go, 18434, 0)
        measure(servers, cases, options)
        if options.asleep:
            for name, server in servers.items():
                if "asleep" not in server.cases:
                    continue
                print(f"{options.asleep} requests asleep, {name}: {server.memory_asleep(options.asleep):.0f} bytes each")
    finally:
        for server in [*servers.values(), *([back] if back else [])]:
            server.stop()


def measure(servers, cases, options):
    """Measures the cases in rounds and prints a table."""
    beside = [BESIDE.get(case, "return") + ("short" if case.endswith("short") else "") for case in cases]
    rows = [*dict.fromkeys(beside), *cases]
    costs = {(server, case): [] for server in servers for case in rows}
    ratios = {key: [] for key in costs}
    for _ in range(options.rounds):
        for name, server in servers.items():
            for case, plain_case in zip(cases, beside):
                if case not in server.cases:
                    continue
                plain = server.measure(plain_case, options.seconds, 1)
                cost = server.measure(case, options.seconds, 1)
                costs[name, plain_case].append(plain)
                costs[name, case].append(cost)
                ratios[name, case].append(cost / plain)
    print("case | " + " | ".join(f"{s} us | times its {{return, return512, proxy}} [min..max]" for s in servers))
    for case in rows:
        cells = []
        for server in servers:
            if not costs[server, case]:
                cells.append("- | -")
                continue
            middle = statistics.median(costs[server, case])
            r = ratios[server, case] or [1.0]
            cells.append(f"{middle:.2f} | {statistics.median(r):.2f} [{min(r):.2f}..{max(r):.2f}]")
        print(f"{case} | " + " | ".join(cells), flush=True)


if __name__ == "__main__":
    main()
