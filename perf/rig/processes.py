"""Starting and stopping pinned processes, and what the kernel says they used."""
import atexit
import ctypes
import dataclasses
import os
import pathlib
import signal
import socket
import subprocess
import time

TICKS = os.sysconf("SC_CLK_TCK")
START_SECONDS = 10
STOP_SECONDS = 5
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)
_running = []


class StartError(Exception):
    """A program ended or did not listen; the message holds what it wrote."""


@dataclasses.dataclass
class Running:
    """A program in a session of its own, so that all its processes can be found and ended."""
    name: str
    process: subprocess.Popen
    log: pathlib.Path
    port: int = 0

    def pids(self):
        """Process ids of the session."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _session(pid) == self.process.pid]

    def cpu(self):
        """User and system seconds of all processes and their threads, and the precise sum in seconds."""
        user = system = precise = 0
        for pid in self.pids():
            try:
                fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                threads = list(pathlib.Path(f"/proc/{pid}/task").iterdir())
                precise += sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)
            except OSError:
                continue
            user += int(fields[11])
            system += int(fields[12])
        return user / TICKS, system / TICKS, precise / 1e9

    def memory(self):
        """Proportional and resident bytes of all processes."""
        proportional = resident = 0
        for pid in self.pids():
            try:
                text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
            except OSError:
                continue
            values = {line.split()[0]: int(line.split()[1]) * 1024 for line in text.splitlines()[1:]}
            proportional += values.get("Pss:", 0)
            resident += values.get("Rss:", 0)
        return proportional, resident

    def stop(self):
        """Ends the session's processes; kindly first."""
        if self not in _running:
            return
        _running.remove(self)
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline and self.pids():
            self.process.poll()
            time.sleep(0.02)
        self._signal(signal.SIGKILL)
        self.process.wait()

    def _signal(self, number):
        for pid in self.pids():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass


def be_load(cpu):
    """Makes this process one of those that load the server: on a CPU of theirs, and none takes it from another.

    wrk and the backend stand for other machines. Were they scheduled as usual, each message would wake one of them in the
    place of the other: a server that has little to do then gets its events one by one, and is charged for that.
    """
    be_on(cpu)
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def be_on(cpu):
    """Binds this process to a CPU, and its life to its parent's."""
    os.sched_setaffinity(0, {cpu})
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start(name, command, folder, cpu, port=0, become=be_on):
    """Starts a program on one CPU and waits until it listens on its port (0: does not wait)."""
    log = folder / f"{name}.out"
    with open(log, "ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                   cwd=folder, start_new_session=True, preexec_fn=lambda: become(cpu))
    running = Running(name, process, log, port)
    _running.append(running)
    if port:
        _wait_listening(running)
    return running


def free_port():
    """A port nobody uses now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def cpu_busy(cpu):
    """Seconds a CPU was not idle since boot."""
    for line in pathlib.Path("/proc/stat").read_text().splitlines():
        if line.startswith(f"cpu{cpu} "):
            values = list(map(int, line.split()[1:9]))
            return (sum(values) - values[3] - values[4]) / TICKS
    raise OSError(f"no cpu{cpu}")


def time_wait():
    """Sockets in TIME_WAIT."""
    for line in pathlib.Path("/proc/net/sockstat").read_text().splitlines():
        words = line.split()
        if words[0] == "TCP:":
            return int(words[words.index("tw") + 1])
    return 0


def wait_for_time_wait(most, seconds):
    """Waits until few sockets are in TIME_WAIT, at most so long (it lasts 60 s)."""
    deadline = time.monotonic() + seconds
    while time_wait() > most and time.monotonic() < deadline:
        time.sleep(0.5)


def _wait_listening(running):
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and running.process.poll() is None:
        with socket.socket() as client:
            client.settimeout(1)
            if client.connect_ex(("127.0.0.1", running.port)) == 0:
                return
        time.sleep(0.02)
    running.stop()
    raise StartError(f"{running.name} does not listen: {running.log.read_text(errors='replace')[-2000:].strip()}")


def _session(pid):
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


@atexit.register
def stop_all():
    """Ends whatever is still running."""
    for running in list(_running):
        running.stop()
