#!/usr/bin/env python3
"""Builds the binary that packages ship and `make perf` measures: laid out by how it runs (profile-guided optimisation).

  instrumented build -> the cases of side_by_side.py and some with TLS, some seconds each -> merged profile -> build with the profile

Prints the path of the result. Needs rustup's `llvm-tools` (installed if rustup is there), wrk and Python 3. Without
them, use `cargo build --release`: the same program, some percent slower. perf/README.md says what it brings.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys

from rig import load, processes, servers
from rig.cases import CASES

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "optimized"
PROFILES = TARGET / "profiles"
CHECKED_PEERS = 64
# What the cases of side_by_side.py leave out: a profile without it says that it is never used, and lays it out that way.
ENCRYPTED = """user root;
worker_processes 1;
daemon off;
pid {folder}/pid;
error_log {folder}/error.log crit;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    ssl_certificate {folder}/p256.crt;
    ssl_certificate_key {folder}/p256.key;
    proxy_set_header Connection "";
    upstream checked {{ zone checked 1m; keepalive 64; {peers} }}
    upstream encrypted {{ server 127.0.0.1:{port}; keepalive 64; }}
    server {{
        listen 127.0.0.1:{port} ssl;
        listen 127.0.0.1:{port} quic reuseport;
        http2 on;
        location / {{ return 200 "x"; }}
        location /checked {{ proxy_pass http://checked; health_check interval=50ms; }}
        location /encrypted {{ proxy_pass https://encrypted/; }}
        location /http2 {{ proxy_pass https://encrypted/; proxy_http_version 2; }}
    }}
}}
"""
# Arguments of `ironweir stress`, and the path.
LOADS = [
    ("--no-keepalive --no-resumption -c 64", "/"),
    ("--no-keepalive -c 64", "/"),
    ("-c 64", "/"),
    ("-c 64", "/checked"),
    ("-c 64", "/encrypted"),
    ("-c 16 --http 2 --streams 32", "/"),
    ("-c 16 --http 2 --streams 32", "/checked"),
    ("-c 16 --http 2 --streams 32", "/http2"),
    ("-c 16 --http 3 --streams 32", "/"),
]


def main():
    """Builds, trains, builds again."""
    options = parse()
    host = next(line.split()[1] for line in output("rustc", "-vV").splitlines() if line.startswith("host:"))
    tool = profile_tool(host)
    shutil.rmtree(PROFILES, ignore_errors=True)
    PROFILES.mkdir(parents=True)
    train(build(host, f"-Cprofile-generate={PROFILES}"), options)
    raw = [str(path) for path in PROFILES.glob("*.profraw")]
    if not raw:
        sys.exit("the instrumented server wrote no profile")
    merged = PROFILES / "merged.profdata"
    subprocess.run([tool, "merge", "-o", merged, *raw], check=True)
    print(build(host, f"-Cprofile-use={merged}"))


def profile_tool(host):
    """rustc's own llvm-profdata: another version may not read what the program wrote."""
    folder = pathlib.Path(output("rustc", "--print", "sysroot").strip()) / "lib/rustlib" / host / "bin"
    tool = folder / "llvm-profdata"
    if not tool.exists() and shutil.which("rustup"):
        subprocess.run(["rustup", "component", "add", "llvm-tools"], check=True)
    if not tool.exists():
        sys.exit(f"{tool} is missing: it comes with rustup's component llvm-tools")
    return tool


def build(host, flag):
    """Builds with one more flag for rustc; gives the binary. Naming the target keeps the flag from build scripts."""
    flags = " ".join(filter(None, [os.environ.get("RUSTFLAGS"), flag]))
    command = ["cargo", "build", "--release", "--locked", "-p", "ironweir", "--target", host, "--target-dir", TARGET]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "RUSTFLAGS": flags}, stdout=sys.stderr)
    return TARGET / host / "release/ironweir"


def train(binary, options):
    """Runs every case against the instrumented binary. Its profile is written when it ends."""
    rig = servers.Rig(binary, options.floor, options.server_cpu, options.load_cpu)
    try:
        backend = rig.backend()
        for case in CASES.values():
            server = rig.start("ironweir", case, backend.port)
            load.check(server, case)
            done = load.run(server, case, options.seconds, rig.folder, rig.server_cpu, rig.load_cpu)
            print(f"trained with {case.name}: {done.requests} requests", file=sys.stderr)
            server.stop()
        train_encrypted(rig, backend.port, options.seconds)
        backend.stop()
    finally:
        processes.stop_all()
        rig.close()


def train_encrypted(rig, backend, seconds):
    """The same with TLS, HTTP/2 and 3, and with health checks beside; the load is `ironweir stress`, which is trained too."""
    certificate = ["openssl", "req", "-x509", "-nodes", "-days", "30", "-subj", "/CN=localhost", "-newkey", "ec", "-pkeyopt",
                   "ec_paramgen_curve:P-256", "-keyout", rig.folder / "p256.key", "-out", rig.folder / "p256.crt"]
    subprocess.run(certificate, check=True, capture_output=True)
    port, program = processes.free_port(), rig.programs["ironweir"]
    conf = rig.folder / "encrypted.conf"
    conf.write_text(ENCRYPTED.format(folder=rig.folder, port=port, peers=f"server 127.0.0.1:{backend};" * CHECKED_PEERS))
    server = processes.start("ironweir", [program, "-p", rig.folder, "-c", conf], rig.folder, rig.server_cpu, port)
    for load_arguments, path in LOADS:
        command = ["taskset", "-c", str(rig.load_cpu), program, "stress", "-q", "--no-preflight", "-t", "1", "-d", f"{seconds}s",
                   "--json", "-", *load_arguments.split(), f"https://localhost:{port}{path}"]
        done = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout)
        if not done["requests"] or done["errors"]["total"]:
            sys.exit(f"training with {load_arguments} {path}: {done['requests']} requests, {done['errors']}")
        print(f"trained with {load_arguments} {path}: {done['requests']} requests", file=sys.stderr)
    server.stop()


def output(*command):
    """What a command prints."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=2, help="length of each case")
    parser.add_argument("--floor", type=pathlib.Path, default=TARGET.parent / "release/floor", help="the backend")
    parser.add_argument("--server-cpu", type=int, default=0)
    parser.add_argument("--load-cpu", type=int, default=1)
    options = parser.parse_args()
    if not options.floor.exists():
        parser.error(f"{options.floor} is missing: cargo build --release -p floor")
    return options


if __name__ == "__main__":
    main()
