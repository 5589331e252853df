#!/usr/bin/env python3
"""How many configurations of the field Ironweir takes: of those that nginx takes, and of those with modules that nginx has not.

usage: tests/beside/samples.py NGINX IRONWEIR DIRECTORY ... [--names PATTERN] [--least PERCENT]

Each file below the directories (clones of public repositories; PATTERN, by default *.conf and *.conf.sample) is a sample: as a whole configuration,
inside `http`, or inside a `server`, whichever nginx takes first. It is tried where it lies, with its neighbours, in a copy in which what belongs to
other machines is replaced: certificates, users, logs, pid files, temporary paths, `/etc/nginx/` and names of peers. Whatever a sample includes beyond that
counts against it with nginx too. What nginx takes and Ironweir refuses is printed with the reason. NGINX: best one of the version that we follow
(tests/beside/build-nginx.sh). Exit status 1: fewer than PERCENT (98) of those that nginx takes.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

NAMES = ("*.conf", "*.conf.sample")
# Larger ones are no configurations.
LARGEST = 1 << 20
PATIENCE = 30
# A sample's surroundings, from the whole file to a part of a server.
AROUND = (
    "include {file};",
    "events {{}} http {{ include {file}; }}",
    "events {{}} http {{ server {{ listen 127.0.0.1:65001; server_name a; include {file}; }} }}",
    "events {{}} http {{ server {{ listen 127.0.0.1:65001; location /of-the-sample {{ include {file}; }} }} }}",
    "events {{}} stream {{ include {file}; }}",
)


def replaced(text, base, work):
    """The sample for this machine. What a directive means stays; only what it names is here."""
    rules = (
        (r"/etc/nginx/", f"{base}/"),
        (r"(?m)^(\s*(?:proxy_|grpc_|uwsgi_)?ssl_(?:\w+_)?certificate)\s+[^;$]+;", rf"\1 {work}/certificate.pem;"),
        (r"(?m)^(\s*(?:proxy_|grpc_|uwsgi_)?ssl_certificate_key)\s+[^;$]+;", rf"\1 {work}/key.pem;"),
        (r"(?m)^\s*(?:user|load_module|ssl_dhparam)\s+[^;]+;", ""),
        (r"(?m)^(\s*(?:access_log|error_log))\s+/[^; ]+", rf"\1 {work}/log"),
        (r"(?m)^(\s*pid)\s+[^;]+;", rf"\1 {work}/pid;"),
        (r"((?:_temp_path|_cache_path))\s+(/[^; ]+)", rf"\1 {work}\2"),
        (r"(?m)^(\s*auth_basic_user_file)\s+[^;$]+;", rf"\1 {work}/certificate.pem;"),
        (r"(?m)^(\s*server\s+)[A-Za-z_][\w.-]*(:\d+)?(\s|;)", r"\g<1>127.0.0.1\2\3"),
        (r"((?:_pass)\s+(?:https?://|grpcs?://)?)(?!unix)[A-Za-z_][\w.-]*(:\d+)", r"\g<1>127.0.0.1\2"),
    )
    for pattern, by in rules:
        text = re.sub(pattern, by, text)
    return text


def copied(directory, work):
    """The directory with every text in it replaced."""
    base = work / "samples"
    shutil.copytree(directory, base, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    for path in base.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= LARGEST:
            try:
                text = path.read_text()
            except UnicodeDecodeError:
                continue
            path.write_text(replaced(text, base, work))
    for name in ("mime.types", "fastcgi_params", "uwsgi_params", "scgi_params", "fastcgi.conf", "proxy_params"):
        if os.path.exists(f"/etc/nginx/{name}") and not (base / name).exists():
            shutil.copy(f"/etc/nginx/{name}", base)
    return base


def complaint(program, base, conf):
    """The first line of what a test of the configuration finds; none if it passes."""
    (base / "of-samples.conf").write_text(conf)
    command = [program, "-t", "-p", base, "-c", base / "of-samples.conf"]
    tested = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PATIENCE)
    if tested.returncode == 0:
        return None
    lines = [line for line in tested.stderr.splitlines() if "[emerg]" in line]
    return (lines or tested.stderr.splitlines() or ["no reason"])[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nginx")
    parser.add_argument("ironweir")
    parser.add_argument("directories", nargs="+", type=pathlib.Path)
    parser.add_argument("--names", action="append")
    parser.add_argument("--least", type=float, default=98)
    options = parser.parse_args()
    both = taken = others = others_taken = left_out = 0
    for directory in options.directories:
        with tempfile.TemporaryDirectory(prefix="samples-") as scratch:
            work = pathlib.Path(scratch)
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "9", "-subj", "/CN=a", "-keyout",
                            work / "key.pem", "-out", work / "certificate.pem"], check=True, capture_output=True)
            base = copied(directory, work)
            (base / "logs").mkdir(exist_ok=True)
            files = sorted({path for name in options.names or NAMES for path in base.rglob(name) if path.is_file()})
            for file in files:
                if file.name == "of-samples.conf":
                    continue
                name = f"{directory.name}/{file.relative_to(base)}"
                confs = [around.format(file=file) for around in AROUND]
                found = [(conf, complaint(options.nginx, base, conf)) for conf in confs]
                fit = next((conf for conf, why in found if why is None), None)
                if fit is not None:
                    both += 1
                    why = complaint(options.ironweir, base, fit)
                    taken += why is None
                    if why:
                        print(f"{name}: {why}")
                elif any("unknown directive" in why for _, why in found):
                    # A module that this nginx has not: ours may.
                    others += 1
                    others_taken += any(complaint(options.ironweir, base, conf) is None for conf in confs)
                else:
                    left_out += 1
    share = 100 * taken / both if both else 0.0
    print(f"{taken} of {both} that nginx takes ({share:.1f} %); {others_taken} of {others} with a directive unknown to it; "
          f"{left_out} that it refuses for another reason are left out")
    sys.exit(share < options.least)


if __name__ == "__main__":
    main()
