"""From rounds to figures: medians, ratios, the machine, and the files they are written to."""
import datetime
import json
import math
import os
import pathlib
import platform
import re
import statistics
import subprocess

from .cases import CASES

ROOT = pathlib.Path(__file__).resolve().parents[2]
# More of the server's CPU than this used by others makes a round worth repeating and a cell worth a warning.
FOREIGN_SHARE = 0.10
SYSCTLS = ["net/core/somaxconn", "net/ipv4/tcp_max_tw_buckets", "net/ipv4/ip_local_port_range", "net/ipv4/tcp_tw_reuse"]


def machine(programs):
    """What has to be known of the machine to compare figures."""
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s*(\d+)", pathlib.Path("/proc/meminfo").read_text())
    sysctls = {name: pathlib.Path("/proc/sys", name).read_text().split() for name in SYSCTLS}
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "kernel": platform.release(),
        "cpu": cpu.group(1) if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "memory_mib": int(memory.group(1)) // 1024 if memory else None,
        "sysctl": {name: " ".join(words) for name, words in sysctls.items()},
        "load_before": os.getloadavg()[0],
        "versions": {name: version(command) for name, command in programs.items()},
    }


def commit():
    """The work tree's commit, with `-dirty` if code differs from it."""
    def git(*words):
        return subprocess.run(["git", "-C", ROOT, *words], stdout=subprocess.PIPE, text=True).stdout.strip()
    changed = git("status", "--porcelain", "--untracked-files=no", "--", "crates", "perf/floor", "perf/rig")
    return (git("rev-parse", "--short=10", "HEAD") or "unknown") + ("-dirty" if changed else "")


def version(command):
    """The first line with a digit a program says of itself."""
    try:
        said = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown ({error})"
    return next((line.strip() for line in said.splitlines() if any(map(str.isdigit, line))), "unknown")


def cell(rounds, trouble=None):
    """The figures of one server in one case, from its rounds; `invalid` says why there are none to trust."""
    errors = {}
    for one in rounds:
        for name, count in one.errors.items():
            errors[name] = errors.get(name, 0) + count
    trouble = " ".join(trouble.split()) if trouble else None
    figures = {"invalid": trouble or ", ".join(f"{count} {name} errors" for name, count in errors.items()) or None}
    if any(one.requests == 0 for one in rounds):
        figures["invalid"] = figures["invalid"] or "no requests"
    if not rounds:
        return figures

    def median(value):
        return statistics.median(value(one) for one in rounds)
    ticks = median(lambda one: one.user / ((one.user + one.system) or 1))
    total = median(lambda one: one.cpu_us)
    figures |= {
        "cpu_us": total, "user_us": total * ticks, "system_us": total * (1 - ticks),
        "least_us": min(one.cpu_us for one in rounds), "most_us": max(one.cpu_us for one in rounds),
        "requests_per_s": median(lambda one: one.requests / one.seconds),
        "utilisation": median(lambda one: one.precise / one.seconds),
        "foreign": max(one.foreign / one.seconds for one in rounds),
        "p50_us": median(lambda one: one.p50_us), "p99_us": median(lambda one: one.p99_us),
        "rounds": [vars(one) | {"cpu_us": one.cpu_us} for one in rounds],
    }
    return figures


def ratio(cells, above, below):
    """One server's CPU for a request over another's; nan if either is missing or invalid."""
    values = [cells.get(name, {}) for name in (above, below)]
    if any(value.get("invalid") or not value.get("cpu_us") for value in values):
        return math.nan
    return values[0]["cpu_us"] / values[1]["cpu_us"]


def markdown(run):
    """The run as a page."""
    facts = run["machine"]
    lines = [
        f"# Side by side, {facts['date'][:10]}, {facts['commit']}", "",
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_mib']} MiB, Linux {facts['kernel']}; "
        f"load before the run {facts['load_before']:.2f}. " + ", ".join(facts["versions"].values()) + ".", "",
        f"{run['rounds']} interleaved rounds of {run['seconds']} s after {run['warm_up']} s of warm-up; the server on "
        f"CPU {run['server_cpu']}, wrk and backend on CPU {run['load_cpu']}.", "",
        "Server CPU microseconds for a request (user + system): median of the rounds, least and most of them.", "",
        "| case | " + " | ".join(run["servers"]) + " |", "|---|" + "---|" * len(run["servers"])]
    for name, cells in run["cases"].items():
        lines.append(f"| {name} | " + " | ".join(_cpu_text(cells.get(server)) for server in run["servers"]) + " |")
    lines += ["", "Ratios (nginx/ironweir above 1: ironweir needs less).", "",
              "| case | nginx/ironweir | required | haproxy/ironweir | ironweir/floor | nginx/floor | haproxy/floor |",
              "|---|---|---|---|---|---|---|"]
    for name, cells in run["cases"].items():
        ours = ratio(cells, "nginx", "ironweir")
        required = CASES[name].required
        verdict = "" if math.isnan(ours) else " met" if ours >= required else " **missed**"
        others = [("haproxy", "ironweir"), ("ironweir", "floor"), ("nginx", "floor"), ("haproxy", "floor")]
        texts = [_ratio_text(ratio(cells, *pair)) for pair in others]
        lines.append(f"| {name} | {_ratio_text(ours)}{verdict} | {required} | " + " | ".join(texts) + " |")
    if "before" in run["servers"]:
        lines += ["", "What the change costs (ironweir/before above 1: it needs more than before).", "",
                  "| case | ironweir/before | by the rounds | nginx/before |", "|---|---|---|---|"]
        for name, cells in run["cases"].items():
            texts = [_ratio_text(ratio(cells, "ironweir", "before")), _by_rounds(cells),
                     _ratio_text(ratio(cells, "nginx", "before"))]
            lines.append(f"| {name} | " + " | ".join(texts) + " |")
    lines += ["", "Requests per second (share of one CPU the server used), latency at 50 % and 99 % in ms.", "",
              "| case | " + " | ".join(run["servers"]) + " |", "|---|" + "---|" * len(run["servers"])]
    for name, cells in run["cases"].items():
        lines.append(f"| {name} | " + " | ".join(_rate_text(cells.get(server)) for server in run["servers"]) + " |")
    lines += [""] + _warnings(run)
    return "\n".join(lines) + "\n"


def write(run, folder):
    """Writes DATE-COMMIT.json and .md; a second run of the day on a commit gets a number. Returns the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{run['machine']['date'][:10]}-{run['machine']['commit']}"
    number = 1
    while (folder / f"{stem}{'' if number == 1 else f'-{number}'}.json").exists():
        number += 1
    stem += "" if number == 1 else f"-{number}"
    (folder / f"{stem}.json").write_text(json.dumps(run, indent=1) + "\n")
    page = folder / f"{stem}.md"
    page.write_text(markdown(run))
    return page


def _warnings(run):
    lines = []
    for name, cells in run["cases"].items():
        for server, figures in cells.items():
            if figures.get("invalid"):
                lines.append(f"- INVALID: {name}, {server}: {figures['invalid']}")
            elif figures.get("foreign", 0) > FOREIGN_SHARE:
                lines.append(f"- {name}, {server}: others used up to {figures['foreign']:.0%} of the server's CPU")
    return lines


def _by_rounds(cells):
    """The median of the rounds' own ratios, and the least and most: the machine's speed changes between rounds."""
    ours, before = (cells.get(name, {}).get("rounds", []) for name in ("ironweir", "before"))
    ratios = [one["cpu_us"] / other["cpu_us"] for one, other in zip(ours, before) if one.get("cpu_us") and other.get("cpu_us")]
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})" if ratios else "-"


def _cpu_text(figures):
    if not figures:
        return "-"
    if figures.get("invalid"):
        return "INVALID"
    return (f"{figures['cpu_us']:.2f} ({figures['user_us']:.2f} + {figures['system_us']:.2f}), "
            f"{figures['least_us']:.2f} to {figures['most_us']:.2f}")


def _rate_text(figures):
    if not figures or figures.get("invalid"):
        return "-"
    return (f"{figures['requests_per_s']:,.0f} ({figures['utilisation']:.0%}), "
            f"{figures['p50_us'] / 1000:.2f}, {figures['p99_us'] / 1000:.2f}")


def _ratio_text(value):
    return "-" if math.isnan(value) else f"{value:.2f}"
