#!/usr/bin/env python3
"""What requests through single modules cost, beside nginx: CPU for a request, in turns.

perf/modules.py IRONWEIR [--before OTHER] [--nginx PATH] [--floor PATH] [--rounds 3] [--seconds 3] [--cases proxy10k,sub_filter,...]

proxy10k    a body of 10 kB from a kept backend        sub_filter  the same with a word replaced in it
uwsgi       a program under real uWSGI                 memcached   a value of 1 kB from a real memcached
brotli      10 kB of text compressed for the request   headers     `more_set_headers` and `more_clear_headers` on an answer

All servers read the same configuration; nginx loads Debian's modules for `brotli` and `headers`, so these need Debian's nginx. The server has one
CPU, wrk and the backends the other. The ratio is nginx's CPU over ours; `asked` is what the project demands. With `--floor` (target/release/floor)
cases that only pass bytes on are asked of that as well: what it needs is the least there is, and a ratio that it does not reach either is at the
floor. Exit status 1: some answer was wrong or a ratio is missed.
"""
import argparse
import dataclasses
import pathlib
import shutil
import socket
import statistics
import sys
import tempfile
import urllib.request

from rig import load, processes

SERVER_CPU, LOAD_CPU = 0, 1
MODULES = pathlib.Path("/usr/lib/nginx/modules")
TEXT = ("<p>A line of a page that says one thing or another, number 1234.</p>\n" * 160)[:10240]


@dataclasses.dataclass(frozen=True)
class Case:
    """One location, in the words that `rig.load` asks for."""
    name: str
    asked: float
    location: str
    holds: str  # a piece of the right answer
    module: str = ""  # what nginx has to load for it
    accept: str = ""  # an encoding that is asked for, and expected
    connections: int = 64
    close: bool = False
    pipelined: int = 1
    passes: bool = False  # bytes as they are, which the floor can do as well

    @property
    def path(self):
        """Where it is asked for."""
        return f"/{self.name}"

    @property
    def headers(self):
        """Lines of the request."""
        return (f"Accept-Encoding: {self.accept}",) if self.accept else ()


PROXY = 'proxy_pass http://backend/page; proxy_http_version 1.1; proxy_set_header Connection "";'
CASES = {case.name: case for case in [
    Case("proxy10k", 1.2, PROXY, "number 1234", passes=True),
    Case("sub_filter", 1.2, f"{PROXY} sub_filter 'number 1234' 'number 5678'; sub_filter_once off;", "number 5678"),
    Case("uwsgi", 1.0, "include {folder}/uwsgi_params; uwsgi_pass 127.0.0.1:{uwsgi};", "hello"),
    Case("memcached", 1.0, "set $memcached_key page; memcached_pass cached;", "vvvv"),
    Case("brotli", 1.0, "alias {folder}/page.html; brotli on; brotli_types *; default_type text/html;", "", "brotli_filter", "br"),
    Case("headers", 1.0, "more_set_headers 'X-One: 1' 'X-Two: $host'; more_clear_headers 'X-Three'; return 200 hello;", "hello",
         "headers_more_filter"),
]}

CONF = """
{modules}
daemon off; worker_processes 1; user root; pid {folder}/{name}.pid; error_log {folder}/{name}.log error;
events {{ worker_connections 4096; }}
http {{
    access_log off; keepalive_requests 100000000; keepalive_timeout 1h; sendfile on; default_type text/html;
    upstream backend {{ server 127.0.0.1:{backend}; keepalive 128; keepalive_requests 100000000; }}
    upstream cached {{ server 127.0.0.1:{memcached}; keepalive 128; keepalive_requests 100000000; }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
{locations}
    }}
}}
"""
BACKEND = """
daemon off; master_process off; pid {folder}/backend.pid; error_log /dev/null; events {{ worker_connections 4096; }}
http {{ access_log off; keepalive_requests 100000000; server {{ listen 127.0.0.1:{port}; root {folder};
    default_type text/html; location = /page {{ alias {folder}/page.html; }}
    # What the floor is asked for comes by the name of the case.
    location = /proxy10k {{ alias {folder}/page.html; }} }} }}
"""
PROGRAM = """
def application(environ, start_response):
    start_response('200 OK', [('Content-Type', 'text/plain'), ('Content-Length', '5')])
    return [b'hello']
"""


def backends(folder, nginx):
    """What stands behind the cases: their ports by name, and the processes."""
    (folder / "page.html").write_text(TEXT)
    (folder / "program.py").write_text(PROGRAM)
    shutil.copy("/etc/nginx/uwsgi_params", folder / "uwsgi_params")
    ports = {name: processes.free_port() for name in ("backend", "uwsgi", "memcached")}
    (folder / "backend.conf").write_text(BACKEND.format(folder=folder, port=ports["backend"]))
    commands = {
        "backend": [nginx, "-c", str(folder / "backend.conf")],
        "uwsgi": ["uwsgi", "--plugin", "python3", "--uwsgi-socket", f"127.0.0.1:{ports['uwsgi']}", "--wsgi-file", str(folder / "program.py"),
                  "--disable-logging", "--listen", "100", "--die-on-term"],
        "memcached": ["memcached", "-u", "root", "-l", "127.0.0.1", "-p", str(ports["memcached"]), "-t", "1", "-c", "4096"],
    }
    running = [processes.start(name, command, folder, LOAD_CPU, ports[name], processes.be_load) for name, command in commands.items()]
    with socket.create_connection(("127.0.0.1", ports["memcached"]), timeout=5) as client:
        client.sendall(b"set page 0 0 1024\r\n" + b"v" * 1024 + b"\r\n")
        if not client.recv(100).startswith(b"STORED"):
            sys.exit("memcached did not take the value")
    return ports, running


def start(name, program, chosen, folder, ports):
    """A server with all chosen cases' locations."""
    port = processes.free_port()
    if name == "floor":
        return processes.start(name, [str(program), "proxy", str(port), str(ports["backend"])], folder, SERVER_CPU, port)
    wanted = sorted({case.module for case in chosen if case.module})
    modules = "".join(f"load_module {MODULES}/ngx_http_{module}_module.so;" for module in wanted) if name == "nginx" else ""
    locations = "\n".join(
        f"        location = {case.path} {{ {case.location.replace('{folder}', str(folder)).replace('{uwsgi}', str(ports['uwsgi']))} }}"
        for case in chosen)
    conf = folder / f"{name}.conf"
    conf.write_text(CONF.format(modules=modules, name=name, folder=folder, port=port, locations=locations, **ports))
    command = [str(program), "-p", str(folder), "-c", str(conf), "-e", str(folder / f"{name}.log")]
    return processes.start(name, command, folder, SERVER_CPU, port)


def check(server, case):
    """One request by another client: the right answer, encoded if that is the case. Exits if it is not."""
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{case.path}", headers={"Accept-Encoding": case.accept or "identity"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        body, encoding = answer.read(), answer.headers.get("Content-Encoding", "")
    if encoding != case.accept or case.holds.encode() not in body or not body:
        sys.exit(f"{server.name} {case.name}: {encoding!r} {body[:80]!r}")


def main():
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--before", type=pathlib.Path, help="another binary of Ironweir")
    parser.add_argument("--nginx", default=shutil.which("nginx") or "/usr/sbin/nginx")
    parser.add_argument("--floor", type=pathlib.Path, help="the floor's program (cargo build --release -p floor)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--cases", default=",".join(CASES))
    options = parser.parse_args()
    programs = {"nginx": options.nginx, "ironweir": options.program.resolve()}
    if options.before:
        programs["before"] = options.before.resolve()
    if options.floor:
        programs["floor"] = options.floor.resolve()
    chosen = [CASES[name] for name in options.cases.split(",")]
    missing = [c for c in chosen if c.module and not (MODULES / f"ngx_http_{c.module}_module.so").exists()]
    for case in missing:
        print(f"nginx has no module {case.module} here: {case.name} is left out")
        chosen.remove(case)
    costs, failed = {}, False
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        folder = pathlib.Path(folder)
        folder.chmod(0o755)
        ports, behind = backends(folder, programs["nginx"])
        servers = {name: start(name, program, chosen, folder, ports) for name, program in programs.items()}
        for number in range(options.rounds):
            for case in chosen:
                for name, server in servers.items():
                    if name == "floor" and not case.passes:
                        continue
                    if number == 0:
                        check(server, case)
                        load.run(server, case, 1, folder, SERVER_CPU, LOAD_CPU)
                    one = load.run(server, case, options.seconds, folder, SERVER_CPU, LOAD_CPU)
                    failed |= bool(one.errors) or one.requests == 0
                    costs.setdefault((case, name), []).append(one.cpu_us)
                    trouble = f", {one.errors}" if one.errors else ""
                    print(f"{case.name:10} {name:9} {one.cpu_us:8.2f} us, {one.requests} requests{trouble}", flush=True)
        for server in [*servers.values(), *behind]:
            server.stop()
    ratios = "nginx/ironweir | nginx/floor | asked" if options.floor else "nginx/ironweir | asked"
    print("\n| case | " + " | ".join(f"{name}, us" for name in programs) + f" | {ratios} |\n|" + "---|" * (len(programs) + 3))
    for case in chosen:
        medians = {name: statistics.median(costs[case, name]) for name in programs if (case, name) in costs}
        ratio = medians["nginx"] / medians["ironweir"]
        failed |= ratio < case.asked
        cells = [f"{medians[name]:.2f}" if name in medians else "" for name in programs] + [f"{ratio:.2f}"]
        if options.floor:
            cells.append(f"{medians['nginx'] / medians['floor']:.2f}" if "floor" in medians else "")
        print(f"| {case.name} | " + " | ".join(cells) + f" | {case.asked} |")
    sys.exit(failed)


if __name__ == "__main__":
    main()
