"""Starting each of the servers for a case."""
import pathlib
import shutil
import tempfile

from . import cases, processes

SERVERS = ["nginx", "haproxy", "floor", "ironweir"]
# Where files are served from and logs are written to: no disk takes part.
MEMORY = pathlib.Path("/dev/shm")


class Rig:
    """The programs' paths, the CPUs and a temporary folder, removed by `close`."""

    def __init__(self, ironweir, floor, server_cpu, load_cpu, before=None):
        self.programs = {"nginx": "nginx", "haproxy": "haproxy", "floor": str(floor), "ironweir": str(ironweir)}
        if before:
            self.programs["before"] = str(before)
        self.server_cpu = server_cpu
        self.load_cpu = load_cpu
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="side-by-side-", dir=MEMORY))

    def versions(self):
        """Commands that tell the versions."""
        return {"nginx": [self.programs["nginx"], "-v"], "haproxy": [self.programs["haproxy"], "-v"],
                "ironweir": [self.programs["ironweir"], "-v"], "wrk": ["wrk", "-v"]}

    def available(self, name):
        """Whether the program is there."""
        return shutil.which(self.programs[name]) is not None

    def backend(self):
        """The backend of the proxied cases, on the load's CPU."""
        port = processes.free_port()
        command = [self.programs["floor"], "answer", str(port)]
        return processes.start("backend", command, self.folder, self.load_cpu, port, processes.be_load)

    def start(self, name, case, backend_port):
        """Starts one server on the server's CPU. Raises StartError."""
        port = processes.free_port()
        folder = self.folder / f"{case.name}-{name}"
        folder.mkdir(exist_ok=True)
        (folder / "file").write_text("x")
        return processes.start(name, self._command(name, case, port, backend_port, folder), folder, self.server_cpu,
                               port)

    def close(self):
        """Removes the folder. The servers must have been stopped."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _command(self, name, case, port, backend_port, folder):
        program = self.programs[name]
        if name == "floor":
            if case.proxied:
                return [program, "proxy", str(port), str(backend_port)]
            # The floor is the least that is known: for new connections that is deferred accepting, asked for or not.
            log = ["--log", str(folder / "access.log")] if case.logged else []
            return [program, "answer", str(port)] + (["--defer"] if case.close else log)
        conf = folder / f"{name}.conf"
        if name == "haproxy":
            conf.write_text(cases.haproxy(case, port, backend_port, folder))
            return [program, "-db", "-f", str(conf)]
        conf.write_text(cases.nginx(case, port, backend_port, folder))
        return [program, "-p", str(folder), "-c", str(conf), "-e", str(folder / "error.log")]
