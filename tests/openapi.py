#!/usr/bin/env python3
"""Holds the API against its own OpenAPI document with schemathesis (`make setup` installs it in tests/.venv).

usage: tests/openapi.py path/to/ironweir [options of `schemathesis run`]; without options few calls of each operation, as CI has it

Starts a server with zones, upstreams, keyvals and write access, and lets schemathesis make calls of the document: answers must
have the statuses and forms that it says, and none may be a 5xx. Exit status: schemathesis'.
"""
import os, pathlib, shutil, socket, subprocess, sys, tempfile, time, urllib.request

CONF = """
daemon off; worker_processes 2; pid {dir}/pid; error_log {dir}/error.log info;
events {{}}
http {{
    access_log off;
    limit_req_zone $uri zone=slow:64k rate=1r/s; limit_conn_zone $uri zone=few:64k;
    keyval_zone zone=names:64k; keyval_zone zone=nets:64k type=ip timeout=1h; keyval $arg_a $b zone=names;
    proxy_cache_path {dir}/cache keys_zone=c:1m; resolver 127.0.0.1 status_zone=dns;
    upstream u {{ zone u 4m; server 127.0.0.1:{port}; }} upstream fixed {{ server 127.0.0.1:{port}; }}
    server {{
        listen 127.0.0.1:{port}; status_zone site; client_body_buffer_size 64k;
        location / {{ status_zone all; return 204; }}
        location /api {{ api write=on; }}
    }}
}}
stream {{
    upstream s {{ zone s 4m; server 127.0.0.1:{port}; }}
    server {{ listen 127.0.0.1:{other}; status_zone tcp; proxy_pass s; }}
}}
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main():
    binary = pathlib.Path(sys.argv[1]).resolve()
    tool = shutil.which("schemathesis", path=f"{pathlib.Path(__file__).parent}/.venv/bin:{os.environ['PATH']}")
    if tool is None:
        print("schemathesis is not installed (make setup): left out")
        return 0
    more = sys.argv[2:] or ["--max-examples", "10", "--seed", "1"]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        folder.chmod(0o777)
        port, other = free_port(), free_port()
        (folder / "nginx.conf").write_text(CONF.format(dir=folder, port=port, other=other))
        server = subprocess.Popen([binary, "-p", folder, "-e", folder / "error.log", "-c", folder / "nginx.conf"])
        try:
            base = f"http://127.0.0.1:{port}/api/9"
            for _ in range(500):
                try:
                    urllib.request.urlopen(base + "/nginx").read()
                    break
                except OSError:
                    time.sleep(0.02)
            for plane in ("http", "stream"):
                # Something to change, and to remove.
                for i in range(3):
                    data = b'{"server": "127.0.0.1:1%d"}' % i
                    group = {"http": "u", "stream": "s"}[plane]
                    urllib.request.urlopen(f"{base}/{plane}/upstreams/{group}/servers", data).read()
            checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
            # One thread: Python 3.11 miscounts the depth of syntax trees that two parse at once ("AST constructor recursion
            # depth mismatch"), and hypothesis parses its own source.
            return subprocess.call([tool, "run", f"{base}/openapi.json", "--url", base, "--checks", checks,
                                    "--workers", "1", *more], cwd=folder)
        finally:
            server.terminate()
            server.wait()
            log = (folder / "error.log").read_text()
            if "given up" in log:
                print(log)
                sys.exit("a call made the server panic")


if __name__ == "__main__":
    sys.exit(main())
