"""One run of wrk against one server: requests, errors, and the CPU time the server used for them."""
import dataclasses
import http.client
import json
import subprocess

from . import processes

# The last line of wrk's output is ours: numbers instead of text to be read back.
SCRIPT = """
local pipelined = %d
if pipelined > 1 then
   function init(args)
      local one, all = wrk.format(), {}
      for i = 1, pipelined do all[i] = one end
      all = table.concat(all)
      request = function() return all end
   end
end
function done(summary, latency, requests)
   local e = summary.errors
   io.write(string.format('\\n{"requests":%%d,"micros":%%d,"connect":%%d,"read":%%d,"write":%%d,"status":%%d,'
      .. '"timeout":%%d,"p50_us":%%d,"p99_us":%%d}\\n', summary.requests, summary.duration, e.connect, e.read, e.write,
      e.status, e.timeout, latency:percentile(50), latency:percentile(99)))
end
"""
ERRORS = ("connect", "read", "write", "status", "timeout")


@dataclasses.dataclass
class Round:
    """What one server did in one window."""
    requests: int
    seconds: float
    user: float
    system: float
    precise: float
    foreign: float  # seconds the server's CPU worked for others
    errors: dict
    p50_us: int
    p99_us: int

    @property
    def cpu_us(self):
        """CPU microseconds for a request."""
        return self.precise * 1e6 / self.requests if self.requests else float("nan")


def check(server, case):
    """One request by another client than wrk: the answer must be what all servers are to give. Raises ValueError."""
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        client.request("GET", case.path)
        answer = client.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise ValueError(f"{server.name} {case.name}: {error!r}") from error
    finally:
        client.close()
    if answer.status != 200 or body != b"x":
        raise ValueError(f"{server.name} {case.name}: answered {answer.status} {body[:40]!r}")


def run(server, case, seconds, folder, server_cpu, load_cpu):
    """Loads the server for so many seconds."""
    script = folder / f"wrk{case.pipelined}.lua"
    script.write_text(SCRIPT % case.pipelined)
    command = ["wrk", "-t1", f"-c{case.connections}", f"-d{seconds}s", "-s", str(script)]
    if case.close:
        command += ["-H", "Connection: close"]
    for line in case.headers:
        command += ["-H", line]
    command.append(f"http://127.0.0.1:{server.port}{case.path}")
    user, system, precise = server.cpu()
    busy = processes.cpu_busy(server_cpu)
    outcome = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             timeout=seconds + 30, preexec_fn=lambda: processes.be_load(load_cpu))
    busy = processes.cpu_busy(server_cpu) - busy
    user_after, system_after, precise_after = server.cpu()
    lines = outcome.stdout.strip().splitlines()
    if outcome.returncode or not lines or not lines[-1].startswith("{"):
        raise ValueError(f"wrk: {outcome.stdout[-500:].strip()}")
    said = json.loads(lines[-1])
    spent = precise_after - precise
    return Round(said["requests"], said["micros"] / 1e6, user_after - user, system_after - system, spent,
                 max(0.0, busy - spent), {name: said[name] for name in ERRORS if said[name]}, said["p50_us"],
                 said["p99_us"])
