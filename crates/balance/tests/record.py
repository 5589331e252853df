#!/usr/bin/env python3
"""Records which peers an installed nginx chooses, for tests/parity.rs. Run: tests/record.py > tests/nginx-choices.tsv

No peer exists, so every try is refused and $upstream_addr lists them in the order of the choices.
Columns: method, servers (name=weight), max_fails, key, chosen peers of one request. Lines of one group are in order.
"""
import http.client
import os
import pathlib
import random
import shutil
import subprocess
import tempfile
import time

PORT = 18970
SERVERS = ["127.0.0.1:1=1", "127.0.0.2:2=2", "127.0.0.3=3", "127.0.0.4:44=1", "unix:/nonexistent/x=2"]
EQUAL = [server.partition("=")[0] + "=1" for server in SERVERS]
SIX = [f"127.0.1.{i}:{i}={weight}" for i, weight in enumerate([3, 1, 4, 1, 5, 9], 1)]


def groups():
    """name, method, method line, servers, max_fails, retry, keys"""
    chance = random.Random(7)
    keys = ["".join(chance.choices("abcdefghij0123456789/-", k=chance.randint(1, 24))) for _ in range(60)]
    v4 = [".".join(str(chance.randint(0, 255)) for _ in range(4)) for _ in range(40)]
    v6 = [":".join(f"{chance.randint(1, 65535):x}" for _ in range(8)) for _ in range(20)]
    plain = [""] * 30
    yield "round_robin", "", ["10.0.0.1:1=5", "10.0.0.2:1=1", "10.0.0.3:1=1"], 0, "off", plain
    yield "round_robin", "", SERVERS, 0, "error", plain
    yield "round_robin", "", ["127.0.0.1:1=9", "127.0.0.2:1=7", "127.0.0.3:1=4"], 4, "off", plain[:12]
    yield "hash", "hash $http_k;", SERVERS, 0, "error", keys
    yield "hash", "hash $http_k;", EQUAL, 0, "error", keys
    yield "consistent", "hash $http_k consistent;", SERVERS, 0, "error", keys
    yield "consistent", "hash $http_k consistent;", SIX, 0, "error", keys
    yield "ip_hash", "ip_hash;", SERVERS, 0, "error", v4 + v6
    yield "ip_hash", "ip_hash;", SIX, 0, "error", v4 + v6
    yield "least_conn", "least_conn;", SERVERS, 0, "error", plain


def configuration(rows):
    upstreams, locations = [], []
    for number, (_, line, servers, max_fails, retry, _) in enumerate(rows):
        lines = [line] if line else []
        for server in servers:
            name, _, weight = server.partition("=")
            lines.append(f"server {name} weight={weight} max_fails={max_fails} fail_timeout=600s;")
        upstreams.append(f"upstream u{number} {{ {' '.join(lines)} }}")
        locations.append(
            f"location /{number} {{ proxy_pass http://u{number}; proxy_next_upstream {retry}; proxy_connect_timeout 50ms;"
            " add_header X-Addr $upstream_addr always; }")
    return f"""
user root; worker_processes 1; daemon off; pid nginx.pid; error_log error.log crit;
events {{ }}
http {{
    access_log off;
    {' '.join(upstreams)}
    server {{
        listen 127.0.0.1:{PORT};
        set_real_ip_from 127.0.0.1; real_ip_header X-Client;
        {' '.join(locations)}
    }}
}}
"""


def address(server):
    name = server.partition("=")[0]
    return name if ":" in name else name + ":80"


def record(rows):
    for number, (method, _, servers, max_fails, _, keys) in enumerate(rows):
        places = {address(server): place for place, server in enumerate(servers)}
        for key in keys:
            client = http.client.HTTPConnection("127.0.0.1", PORT)
            client.request("GET", f"/{number}", headers={"K": key, "X-Client": key} if key else {})
            chosen = client.getresponse().getheader("X-Addr").split(", ")
            client.close()
            tries = [str(places[peer]) for peer in chosen if peer in places]
            print(method, ",".join(servers), max_fails, key, ",".join(tries), sep="\t")


def main():
    rows = list(groups())
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "nginx.conf").write_text(configuration(rows))
    nginx = subprocess.Popen(["nginx", "-p", folder, "-c", folder / "nginx.conf", "-e", folder / "error.log"])
    try:
        while not (folder / "nginx.pid").exists():
            assert nginx.poll() is None, "nginx does not start"
            time.sleep(0.05)
        record(rows)
    finally:
        nginx.terminate()
        nginx.wait()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
