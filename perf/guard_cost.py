#!/usr/bin/env python3
"""What a guard of four limits costs a request that is above none of them: CPU with it against without, in turns.

perf/guard_cost.py IRONWEIR [--before OTHER] [--rounds 7] [--seconds 4] [--cases return,file,proxy]

return  a fixed answer      file  a file of 1 kB      proxy  a page of 1 kB from a kept backend

Both locations are of one server, and a browser's nine headers come with each request. Few addresses ask, so that the lines of the tables
that they share are in the processor's caches: what is measured is the work. The server has one CPU, wrk and the backend the other. The share is the
median over rounds of the difference in a round, over the CPU without; beside it, the difference of the time in user space alone, by the clock's ticks
over all rounds, since the kernel's part of a request swings by more than a guard costs. Nothing else may run on this machine. Exit status 1: some answer was wrong, or a share
is above what is asked (1 % of a request).
"""
import argparse
import dataclasses
import pathlib
import statistics
import sys
import tempfile
import urllib.request

from rig import load, processes

SERVER_CPU, LOAD_CPU = 0, 1
ASKED = 0.01
KINDS = {
    "return": "return 200 hello;",
    "file": "alias {folder}/page.html;",
    "proxy": 'proxy_pass http://backend/page.html; proxy_http_version 1.1; proxy_set_header Connection "";',
}
HEADERS = (
    "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "Accept-Language: en-US,en;q=0.5", "Accept-Encoding: identity",
    "Referer: http://localhost/", "Cookie: session=1234567890abcdef", "Upgrade-Insecure-Requests: 1", "Sec-Fetch-Mode: navigate",
)

CONF = """
daemon off; worker_processes 1; user root; pid {folder}/{name}.pid; error_log {folder}/{name}.log error;
events {{ worker_connections 4096; }}
http {{
    access_log off; keepalive_requests 100000000; keepalive_timeout 1h; sendfile on; default_type text/html;
    upstream backend {{ server 127.0.0.1:{backend}; keepalive 128; keepalive_requests 100000000; }}
    guard site {{
        limit url     1000000r/s burst=1000000 challenge;
        limit address 1000000r/s burst=1000000 challenge;
        limit client  1000000r/s burst=1000000 refuse;
        limit headers 1000000r/s burst=1000000 work;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
{locations}
    }}
}}
"""
BACKEND = """
daemon off; master_process off; pid {folder}/backend.pid; error_log /dev/null; events {{ worker_connections 4096; }}
http {{ access_log off; keepalive_requests 100000000; server {{ listen 127.0.0.1:{port}; root {folder}; default_type text/html; }} }}
"""


@dataclasses.dataclass(frozen=True)
class Case:
    """One location, in the words that `rig.load` asks for."""
    name: str
    headers: tuple = HEADERS
    connections: int = 64
    close: bool = False
    pipelined: int = 1

    @property
    def path(self):
        """Where it is asked for."""
        return f"/{self.name}"


def start(name, program, chosen, folder, backend):
    """A server with each kind once with the guard, once without."""
    port = processes.free_port()
    both = ((kind, suffix, guard) for kind in chosen for suffix, guard in (("without", ""), ("with", "guard site; ")))
    locations = "\n".join(f"        location = /{kind}-{suffix} {{ {guard}{KINDS[kind].replace('{folder}', str(folder))} }}"
                          for kind, suffix, guard in both)
    conf = folder / f"{name}.conf"
    conf.write_text(CONF.format(name=name, folder=folder, port=port, locations=locations, backend=backend))
    return processes.start(name, [str(program), "-p", str(folder), "-c", str(conf), "-e", str(folder / f"{name}.log")], folder, SERVER_CPU, port)


def check(server, case):
    """One request by another client. Exits unless it is answered."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{case.path}", timeout=5) as answer:
        if answer.status != 200 or not answer.read():
            sys.exit(f"{server.name} {case.name}: {answer.status}")


def main():
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--before", type=pathlib.Path, help="another binary of Ironweir")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--cases", default=",".join(KINDS))
    options = parser.parse_args()
    programs = {"ironweir": options.program.resolve()}
    if options.before:
        programs["before"] = options.before.resolve()
    chosen = options.cases.split(",")
    costs, users, failed = {}, {}, False
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        folder = pathlib.Path(folder)
        folder.chmod(0o755)
        (folder / "page.html").write_text("v" * 1024)
        backend = processes.free_port()
        (folder / "backend.conf").write_text(BACKEND.format(folder=folder, port=backend))
        behind = processes.start("backend", [programs["ironweir"], "-p", folder, "-c", folder / "backend.conf"], folder, LOAD_CPU, backend, processes.be_load)
        servers = {name: start(name, program, chosen, folder, backend) for name, program in programs.items()}
        for number in range(options.rounds):
            for kind in chosen:
                for name, server in servers.items():
                    # Who is first changes, so that neither has the cooler machine.
                    suffixes = ("without", "with") if number % 2 == 0 else ("with", "without")
                    for suffix in suffixes:
                        case = Case(f"{kind}-{suffix}")
                        if number == 0:
                            check(server, case)
                            load.run(server, case, 1, folder, SERVER_CPU, LOAD_CPU)
                        one = load.run(server, case, options.seconds, folder, SERVER_CPU, LOAD_CPU)
                        failed |= bool(one.errors) or one.requests == 0
                        costs.setdefault((kind, name, suffix), []).append(one.cpu_us)
                        own = users.setdefault((kind, name, suffix), [0.0, 0])
                        own[0] += one.user * 1e6
                        own[1] += one.requests
                        trouble = f", {one.errors}" if one.errors else ""
                        print(f"{name:9} {case.name:15} {one.cpu_us:8.3f} us, {one.requests} requests{trouble}", flush=True)
        for server in [*servers.values(), behind]:
            server.stop()
    print("\n| case | program | without, us | with, us | difference, ns | share | rounds from | to | user time alone, ns | share |\n|" + "---|" * 10)
    for kind in chosen:
        for name in programs:
            without, guarded = costs[kind, name, "without"], costs[kind, name, "with"]
            shares = sorted((b - a) / a for a, b in zip(without, guarded))
            share = statistics.median(shares)
            failed |= name == "ironweir" and share > ASKED
            difference = statistics.median(b - a for a, b in zip(without, guarded)) * 1000
            (plain, plain_requests), (more, more_requests) = users[kind, name, "without"], users[kind, name, "with"]
            own = (more / more_requests - plain / plain_requests) * 1000
            print(f"| {kind} | {name} | {statistics.median(without):.3f} | {statistics.median(guarded):.3f} | {difference:.0f} | "
                  f"{share:.2%} | {shares[0]:.2%} | {shares[-1]:.2%} | {own:.0f} | {own / 1000 / statistics.median(without):.2%} |")
    sys.exit(failed)


if __name__ == "__main__":
    main()
