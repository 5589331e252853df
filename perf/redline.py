#!/usr/bin/env python3
"""Does `ironweir redline` find how much a server carries, and do its users notice?

Four servers that carry 500, 1,000, 1,500 and 2,000 requests a second (Ironweir with `limit_req`, each a process of its own) behind a balancer
under open load, in a network namespace. The redline of each is looked for in turn; then a server is stopped, and one is killed, in the middle of
a search. Said is how far each figure is off, what users saw, whether the weights came back, and how long that took after the fault.
Root; changes nothing outside its namespace. See perf/README.md.
"""
import argparse
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
SPACE = "doctor-redline"
CARRIES = [500, 1000, 1500, 2000]
# As an operator would give them: by what is expected of each.
WEIGHTS = [5, 10, 15, 20]
# Every server alone can be driven beyond its limit, and the others carry the rest.
TRAFFIC = 2400
STEP = "3s"
# What the issue asks for.
CLOSE, ERRORS, ABORT = 0.05, 0.0001, 1.0
FRONT = """
worker_processes 1; error_log {dir}/front.log; pid {dir}/front.pid; events {{ worker_connections 4096; }}
http {{
  access_log off;
  upstream app {{ zone app 64k; {servers} keepalive 64; }}
  server {{ listen 7000 backlog=4096; location /api {{ api write=on; }}
    location / {{ proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_read_timeout 1s;
      proxy_next_upstream error timeout http_503 http_500; }} }}
}}
"""
# limit_req is a queue that is emptied at an exact rate: what is beyond it waits, and is refused where a tenth of a second of work waits.
BACK = """
worker_processes 1; error_log {dir}/{port}.log; pid {dir}/{port}.pid; events {{ worker_connections 4096; }}
http {{ access_log off; limit_req_log_level info; limit_req_zone $server_port zone=all:64k rate={rate}r/s;
  server {{ listen {port} backlog=4096; location / {{ limit_req zone=all burst={burst}; empty_gif; }} }} }}
"""


def inside(*words, **more):
    return subprocess.Popen(["ip", "netns", "exec", SPACE, *map(str, words)], **more)


def weights():
    """By a process that is inside all the time: `Asker`."""
    said = ASKER.ask("/api/9/http/upstreams/app")
    return [p["weight"] for p in said["peers"]]


class Asker:
    """Asks the API from within the namespace, over a pipe: no process for each question."""

    CODE = ("import sys,urllib.request\nfor line in sys.stdin:\n try: print(urllib.request.urlopen('http://127.0.0.1:7000'+line.strip(),timeout=5).read().decode().replace('\\n',' '),flush=True)\n"
            " except OSError as e: print('null',flush=True)\n")

    def __init__(self):
        self.child = inside(sys.executable, "-c", self.CODE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, path):
        self.child.stdin.write(path + "\n")
        self.child.stdin.flush()
        return json.loads(self.child.stdout.readline())


ASKER = None


def wait(condition, seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return time.monotonic()
        time.sleep(0.01)
    raise TimeoutError("it did not come to that")


def redline(options, port, **more):
    return inside(options.ironweir, "redline", "--upstream", "app", "--api", "http://127.0.0.1:7000/api", "--server", f"127.0.0.1:{port}", "--step", options.step, "--slower", options.slower,
                  "--json", stdout=subprocess.PIPE, text=True, **more)


def load(options, folder, seconds):
    return inside(options.ironweir, "stress", "-q", "--no-preflight", "-R", options.rate, "-c", 128, "-d", f"{seconds}s", "--timeout", "5s", "--json", folder / "load.json",
                  "http://127.0.0.1:7000/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def end(process):
    """Ends a load early and gives what users saw: answers, and how many failed."""
    process.send_signal(signal.SIGINT)
    process.wait(20)


def users(folder):
    said = json.loads((folder / "load.json").read_text())
    # The load is ended while requests are under way: these have no answer, and are no failures.
    failed = said["errors"].get("total", 0) - said["errors"].get("unanswered", 0)
    if failed:
        print("        failed: " + ", ".join(f"{name} {n}" for name, n in said["errors"].items() if n) + f"; statuses {said['statuses']}")
    return said["requests"], failed, said["latency_us"]["p99"] / 1000


def accuracy(options, folder):
    good = True
    for port, carries in zip(range(7101, 7105), options.carries):
        users_of = load(options, folder, 300)
        time.sleep(2)
        began = time.monotonic()
        out, _ = redline(options, port).communicate(timeout=280)
        took = time.monotonic() - began
        back = weights() == WEIGHTS
        end(users_of)
        requests, failed, p99 = users(folder)
        found = json.loads(out)
        # `limit_req` carries its rate exactly, with a queue that is never empty: `most`. What it does without a queue is less, and is `best`.
        best, most = found["best"] or 0, found["most"] or 0
        off = most / carries - 1
        share = failed / max(requests, 1)
        met = abs(off) <= CLOSE and share <= ERRORS and back
        good &= met
        print(f"{'met   ' if met else 'MISSED'}  {carries:>5}/s: at most {most:7.1f} ({off:+.1%}), without a bend {best:7.1f} ({best / carries - 1:+.1%}), bound by {found['bend']}, {len(found['steps'])} steps in {took:.0f} s; "
              f"users: {requests} answers, {failed} failed ({share:.4%}), p99 {p99:.0f} ms; weights {'restored' if back else weights()}", flush=True)
    return good


def aborts(options, folder, pids):
    good = True
    for name, fault in (("stopped (SIGSTOP)", signal.SIGSTOP), ("killed (SIGKILL)", signal.SIGKILL)):
        users_of = load(options, folder, 120)
        time.sleep(2)
        search = redline(options, 7102)
        # Its second step: what it carries is known.
        wait(lambda: weights() != WEIGHTS, 20)
        before = weights()
        wait(lambda: weights() not in (before, WEIGHTS) and weights()[1] > 1000, 30)
        time.sleep(0.8)
        worker = children(pids[7102])
        at = time.monotonic()
        for one in [*worker, pids[7102]] if fault == signal.SIGKILL else worker:
            os.kill(one, fault)
        try:
            seconds = wait(lambda: weights() == WEIGHTS, 30) - at
        except TimeoutError:
            seconds = float("inf")
        if fault == signal.SIGSTOP:
            for one in worker:
                os.kill(one, signal.SIGCONT)
        out, _ = search.communicate(timeout=60)
        time.sleep(2)
        end(users_of)
        requests, failed, p99 = users(folder)
        said = json.loads(out)
        share = failed / max(requests, 1)
        met = seconds < ABORT and share <= ERRORS
        good &= met
        print(f"{'met   ' if met else 'MISSED'}  a server is {name}: weights are back after {seconds:.2f} s; exit status {search.returncode}, \"{said.get('ended')}\"; "
              f"users: {requests} answers, {failed} failed ({share:.4%}), p99 {p99:.0f} ms", flush=True)
    return good


def children(pid):
    return [int(n) for n in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def main():
    global ASKER
    options = parse()
    if os.geteuid() != 0:
        sys.exit("redline.py: network namespaces need root")
    subprocess.run(["ip", "netns", "del", SPACE], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "add", SPACE], check=True)
    subprocess.run(["ip", "netns", "exec", SPACE, "ip", "link", "set", "lo", "up"], check=True)
    servers = []
    with tempfile.TemporaryDirectory(prefix="redline-", dir="/dev/shm") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        try:
            lines = "".join(f"server 127.0.0.1:{7101 + n} weight={w} max_fails=0; " for n, w in enumerate(WEIGHTS))
            texts = {"front": FRONT.format(dir=name, servers=lines)}
            texts |= {str(7101 + n): BACK.format(dir=name, port=7101 + n, rate=rate, burst=max(rate // 10, 20)) for n, rate in enumerate(options.carries)}
            for which, text in texts.items():
                (folder / f"{which}.conf").write_text(text)
                servers.append(inside(options.ironweir, "-c", folder / f"{which}.conf", "-g", "daemon off;", stderr=subprocess.DEVNULL))
            pid = lambda which: int((folder / f"{which}.pid").read_text())
            wait(lambda: all((folder / f"{which}.pid").exists() and (folder / f"{which}.pid").read_text().strip() for which in texts))
            time.sleep(1)
            ASKER = Asker()
            good = True
            if "accuracy" in options.parts:
                good &= accuracy(options, folder)
            if "abort" in options.parts:
                good &= aborts(options, folder, {7102: pid("7102")})
            return 0 if good else 1
        finally:
            for server in servers:
                with contextlib.suppress(ProcessLookupError):
                    server.send_signal(signal.SIGTERM)
            for server in servers:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    server.wait(5)
            subprocess.run(f"ip netns pids {SPACE} | xargs -r kill -9", shell=True, check=False, capture_output=True)
            subprocess.run(["ip", "netns", "del", SPACE], capture_output=True, check=False)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ironweir", type=pathlib.Path, default=TARGET / "release/ironweir")
    parser.add_argument("--rate", type=int, help=f"what users ask for (default {TRAFFIC}, times the scale)")
    parser.add_argument("--scale", type=float, default=1, help="all rates times this, for a machine that is too slow or too busy for 2,400 requests a second through five servers")
    parser.add_argument("--step", default=STEP)
    # A queue that is emptied at a rate makes some wait long before it overflows; only near its limit does everybody.
    parser.add_argument("--slower", default="10", help="how many times longer than at first answers may take on average")
    parser.add_argument("--parts", default="accuracy,abort")
    options = parser.parse_args()
    options.rate = options.rate or round(TRAFFIC * options.scale)
    options.carries = [round(rate * options.scale) for rate in CARRIES]
    return options


if __name__ == "__main__":
    sys.exit(main())
