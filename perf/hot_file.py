#!/usr/bin/env python3
"""What a hot file waits while cold ones come from a slow disk: with `aio off` and with `aio threads`.

The server runs in a control group whose reads the kernel throttles (cgroup v1 `blkio.throttle`, cgroup v2 `io.max`; needs root and a disk of
one of these). Some clients take large files that are not in memory, one asks for a small one that is, over and over; its percentiles are
said for each mode. One worker thread, so that who waits for the disk keeps everybody. See perf/README.md.
"""
import argparse
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
V1, V2 = pathlib.Path("/sys/fs/cgroup/blkio"), pathlib.Path("/sys/fs/cgroup")
MODES = ("off", "threads")
PIECE = 1 << 20
# A hot file's client asks again after so long, in seconds: what it waits is the thread's answer, not its own load.
PAUSE = 0.01
START_MOST = 10
CONF = """
daemon off; pid logs/pid; error_log logs/error.log; worker_processes 1; user root;
events {{}}
http {{
    access_log off; sendfile on; sendfile_max_chunk 2m;
    server {{ listen 127.0.0.1:{port}; location / {{ root files; {aio} }} }}
}}
"""


class Throttle:
    """A control group whose reads of a disk are bounded, while it is open."""

    def __init__(self, directory, rate):
        disk = whole_disk(os.stat(directory).st_dev)
        name = f"hot-file-{os.getpid()}"
        if (V1 / "blkio.throttle.read_bps_device").exists() or V1.is_dir():
            self.group = V1 / name
            self.group.mkdir()
            (self.group / "blkio.throttle.read_bps_device").write_text(f"{disk} {rate}")
        else:
            self.group = V2 / name
            self.group.mkdir()
            (self.group / "io.max").write_text(f"{disk} rbps={rate}")

    def join(self):
        """For the child, before it becomes the server."""
        (self.group / "cgroup.procs").write_text(str(os.getpid()))

    def close(self):
        # Processes that have just ended are counted for a moment.
        for _ in range(100):
            try:
                return self.group.rmdir()
            except OSError:
                time.sleep(0.05)


def whole_disk(device):
    """`major:minor` of the disk that a file system's device is, or is a part of."""
    entry = pathlib.Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    return ((entry.parent if (entry / "partition").exists() else entry) / "dev").read_text().strip()


def make_files(folder, count, size):
    folder.mkdir()
    (folder / "hot").write_bytes(b"h" * 4096)
    for number in range(count):
        with open(folder / f"cold{number}", "wb") as file:
            for _ in range(size // PIECE):
                file.write(os.urandom(PIECE))
            file.flush()
            os.fsync(file.fileno())


def forget(folder):
    """The cold files leave the page cache."""
    for path in folder.glob("cold*"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def take_cold(port, number, taken, over):
    """Reads one file after the other until it is told to stop."""
    while not over.is_set():
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(0.2)
            client.sendall(f"GET /cold{number} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
            while not over.is_set():
                try:
                    piece = client.recv(PIECE)
                except TimeoutError:
                    continue
                if not piece:
                    break
                taken[number] += len(piece)


def ask_hot(port, seconds):
    """What each answer took, in seconds."""
    took, end = [], time.monotonic() + seconds
    with socket.create_connection(("127.0.0.1", port)) as client:
        while time.monotonic() < end:
            began = time.monotonic()
            client.sendall(b"GET /hot HTTP/1.1\r\nHost: a\r\n\r\n")
            answer = b""
            while not answer.endswith(b"h" * 4096):
                piece = client.recv(PIECE)
                if not piece:
                    sys.exit("the server has closed the connection of the hot file")
                answer += piece
            took.append(time.monotonic() - began)
            time.sleep(PAUSE)
    return sorted(took)


def measure(program, work, mode, options):
    port = free_port()
    (work / "nginx.conf").write_text(CONF.format(port=port, aio=f"aio {mode};"))
    forget(work / "files")
    throttle = Throttle(work, options.rate)
    server = subprocess.Popen([program, "-p", work, "-c", "nginx.conf"], preexec_fn=throttle.join)
    over, taken = threading.Event(), [0] * options.clients
    clients = [threading.Thread(target=take_cold, args=(port, n, taken, over)) for n in range(options.clients)]
    try:
        end = time.monotonic() + START_MOST
        while socket.socket().connect_ex(("127.0.0.1", port)):
            if server.poll() is not None or time.monotonic() > end:
                sys.exit(f"{program} does not start")
            time.sleep(0.05)
        ask_hot(port, 0.2)
        for client in clients:
            client.start()
        took = ask_hot(port, options.seconds)
    finally:
        over.set()
        for client in clients:
            if client.ident:
                client.join()
        server.terminate()
        server.wait()
        throttle.close()
    at = lambda part: took[min(len(took) - 1, int(len(took) * part))] * 1000
    print(f"{pathlib.Path(program).name:10} aio {mode:8} hot file: {len(took):6} answers, p50 {at(0.5):9.2f} ms, p99 {at(0.99):9.2f} ms, "
          f"most {at(1):9.2f} ms; cold files: {sum(taken) / options.seconds / 1e6:6.1f} MB/s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", default=[ROOT / "target/release/ironweir"], help="servers to compare (nginx, ironweir)")
    parser.add_argument("--rate", type=int, default=20_000_000, help="bytes the disk gives in a second")
    parser.add_argument("--clients", type=int, default=4, help="clients of cold files, each of its own")
    parser.add_argument("--size", type=int, default=1 << 30, help="bytes of a cold file")
    parser.add_argument("--seconds", type=float, default=10, help="how long each mode is looked at")
    parser.add_argument("--directory", default=ROOT / "target", help="where the files are made: on the disk that is throttled")
    options = parser.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="hot-file-", dir=options.directory))
    try:
        (work / "logs").mkdir()
        make_files(work / "files", options.clients, options.size)
        for program in options.programs:
            for mode in MODES:
                measure(program, work, mode, options)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
