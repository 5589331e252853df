"""The cases: what is asked, how each server is configured for it, and the ratio the project requires."""
import dataclasses

FEW, MANY = 64, 512
PIPELINED = 16


@dataclasses.dataclass(frozen=True)
class Case:
    """One way of asking."""
    name: str
    says: str
    path: str
    required: float  # nginx's CPU for a request over ironweir's
    connections: int = FEW
    close: bool = False  # a new connection for each request
    deferred: bool = False
    pipelined: int = 1
    proxied: bool = False
    logged: bool = False
    without: tuple = ()  # servers that cannot do this
    headers: tuple = ()  # lines of the request besides its own


CASES = {case.name: case for case in [
    Case("file", "a file of one byte, kept connections", "/file", 1.4, without=("haproxy",)),
    Case("return", "`return 200`, kept connections", "/return", 1.1),
    Case("proxy64", "proxied, 64 kept connections", "/proxied", 1.25, proxied=True),
    Case("proxy512", "proxied, 512 kept connections, `keepalive 200`", "/proxied", 1.8, MANY, proxied=True),
    Case("short", "a new connection for each request", "/return", 1.3, close=True),
    Case("short_deferred", "the same with `listen ... deferred`", "/return", 1.05, close=True, deferred=True),
    Case("pipelined", f"{PIPELINED} requests in one write", "/return", 4.0, pipelined=PIPELINED),
    Case("access_log", "`return 200` with an access log", "/return", 1.3, logged=True),
]}


def nginx(case, port, backend, folder):
    """The configuration nginx and ironweir both read. Each has its own folder and port; nothing else differs."""
    return f"""user root;
worker_processes 1;
worker_rlimit_nofile 20000;
daemon off;
pid {folder}/pid;
error_log {folder}/error.log crit;
events {{
    worker_connections 19900;
}}
http {{
    default_type text/plain;
    sendfile on;
    tcp_nopush on;
    access_log {f"{folder}/access.log" if case.logged else "off"};
    keepalive_requests 1000000000;
    keepalive_timeout 3600s;
    upstream backend {{
        server 127.0.0.1:{backend};
        keepalive 200;
        keepalive_requests 1000000000;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=16384{" deferred" if case.deferred else ""};
        root {folder};
        location = /return {{
            return 200 "x";
        }}
        location = /proxied {{
            proxy_pass http://backend;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
        }}
    }}
}}
"""


def haproxy(case, port, backend, folder):
    """The same for HAProxy. It keeps idle connections to the backend by itself."""
    log = "log global\n    option httplog" if case.logged else ""
    answer = 'http-request return status 200 content-type text/plain string "x"'
    return f"""global
    nbthread 1
    maxconn 8192
    {"log stdout format raw local0" if case.logged else ""}
defaults
    mode http
    {log}
    timeout connect 5s
    timeout client 3600s
    timeout server 60s
frontend clients
    bind 127.0.0.1:{port} backlog 16384{" defer-accept" if case.deferred else ""}
    {"default_backend backend" if case.proxied else answer}
{f'''backend backend
    http-reuse always
    server b 127.0.0.1:{backend}
''' if case.proxied else ""}"""
