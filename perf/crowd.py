#!/usr/bin/env python3
"""A crowd at full size: good clients behind few addresses among bad ones on one page, and who of them is served (docs/shield.md).

perf/crowd.py IRONWEIR [--good 1000] [--gateways 5] [--bad 2000] [--smart 20] [--farms 5] [--seconds 20] [--soon 5]

good    browsers: they keep cookies, follow redirects, do the work of a page, look at many pages and now and then at the one that is attacked
bad     each with an address of its own, each as polite as a person, all on one page; no cookies
smart   bad ones with a cookie jar, an address of their own each, as fast as they are answered
farms   the same, but with an empty jar each time that they are refused: one address that wants to be many clients

Each request is a connection of its own. Good requests count from the beginning, bad ones after --soon. A good request is stopped if it does not come to its page
within ten seconds, redirects and work included. What smart ones and farms get is held against the limits of the configuration, since nobody can tell
one of them from a browser as long as it keeps to those: a client's rate each, and an address's.

Needs two processors and some thousand descriptors; takes --seconds and a little. Exit status 1: more than 0.1 % of good requests or less than 95 % of bad ones were stopped, smart
ones or farms got more than the limits give, or there was no crowd (the load could not ask half of what it meant to).
"""
import argparse
import asyncio
import hashlib
import ipaddress
import json
import multiprocessing
import pathlib
import random
import re
import resource
import shutil
import socket
import sys
import tempfile
import time
import urllib.request

from rig import processes

GOOD_STOPPED = 0.001
BAD_STOPPED = 0.95
PATIENCE = 10
LONGEST_ANSWER = 1 << 16
CLIENT_RATE, CLIENT_BURST = 10, 50
ADDRESS_RATE, ADDRESS_BURST = 500, 500
# Above what limits give: requests that were under way when a second began.
SLACK = 1.1
# Pages that good clients look at: one of so many times the one that is attacked.
PAGES, ATTACKED = 256, 8
# Seconds between two requests of a person: least, most.
THINK = (1.2, 2.2)

CONF = """
daemon off; worker_processes {threads}; user root; pid {folder}/pid; error_log {folder}/error.log error; worker_rlimit_nofile 65536;
events {{ worker_connections 32768; }}
http {{
    access_log off;
    guard site {{
        limit url 50r/s burst=100 challenge;
        limit address 20r/s burst=100 challenge;
        limit client {client_rate}r/s burst={client_burst} refuse;
        limit $remote_addr {address_rate}r/s burst={address_burst} refuse;
        ban 10m unanswered=10;
        work 12;
    }}
    server {{ listen 127.0.0.1:{port} backlog=16384; location / {{ guard site; return 200 fine; }} location /api {{ api; }} }}
}}
"""


class Client:
    """One connection a request, from one address."""

    def __init__(self, ip, port):
        self.ip, self.port, self.cookie = str(ip), port, None

    async def ask(self, target):
        """Status and text of the answer; 0: the connection came to nothing."""
        loop = asyncio.get_running_loop()
        with socket.socket() as connection:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
            connection.bind((self.ip, 0))
            cookie = f"Cookie: {self.cookie}\r\n" if self.cookie else ""
            head = f"GET {target} HTTP/1.0\r\nHost: site\r\nUser-Agent: Mozilla/5.0\r\nAccept: */*\r\n{cookie}\r\n"
            said = b""
            try:
                await loop.sock_connect(connection, ("127.0.0.1", self.port))
                await loop.sock_sendall(connection, head.encode())
                while len(said) < LONGEST_ANSWER and (part := await loop.sock_recv(connection, LONGEST_ANSWER)):
                    said += part
            except OSError:
                pass
        text = said.decode(errors="replace")
        if not text.startswith("HTTP/1.1 "):
            return 0, ""
        if given := re.search(r"\r\nSet-Cookie: ([^;\r]*)", text):
            self.cookie = given[1]
        return int(text[9:12]), text

    def work(self, page):
        """Does what a page's script does. False: it has none."""
        asked = re.search(r'const question = "([^"]*)", bits = (\d+);', page)
        if not asked:
            return False
        question, bits = asked[1], int(asked[2])
        nonce = 0
        while int.from_bytes(hashlib.sha256(f"{question}.{nonce:x}".encode()).digest()[:4]) >> (32 - bits):
            nonce += 1
        self.cookie = f"ironweir_guard={question}.{nonce:x}"
        return True


class Tally:
    def __init__(self, since):
        self.since, self.asked, self.served = since, 0, 0

    def count(self, served):
        if time.monotonic() >= self.since:
            self.asked += 1
            self.served += served


async def good(client, tally, end):
    async def look(page):
        for _ in range(4):
            status, text = await client.ask(page)
            if status == 200:
                return True
            if status != 302 and not (status == 429 and client.work(text)):
                return False
        return False

    await asyncio.sleep(random.uniform(0, THINK[1]))
    while time.monotonic() < end:
        page = "/login" if random.randrange(ATTACKED) == 0 else f"/page{random.randrange(PAGES)}"
        try:
            tally.count(await asyncio.wait_for(look(page), PATIENCE))
        except asyncio.TimeoutError:
            tally.count(False)
        await asyncio.sleep(random.uniform(*THINK))


async def bad(client, tally, end):
    await asyncio.sleep(random.uniform(0, THINK[1]))
    while time.monotonic() < end:
        tally.count((await client.ask("/login"))[0] == 200)
        client.cookie = None
        await asyncio.sleep(random.uniform(*THINK))


async def smart(client, tally, end, keeps=True):
    while time.monotonic() < end:
        status, _ = await client.ask("/login")
        tally.count(status == 200)
        if status in (0, 429):
            if not keeps:
                client.cookie = None
            # Nobody is served better for asking more often; this keeps the load's processor for the others.
            await asyncio.sleep(0.03)


async def farm(client, tally, end):
    await smart(client, tally, end, keeps=False)


def load(kind, addresses, port, since, end, told):
    """All clients of one kind, in a process of its own."""
    async def main():
        tally = Tally(since)
        await asyncio.gather(*(kind(Client(ip, port), tally, end) for ip in addresses))
        told.put((kind.__name__, tally.asked, tally.served))

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    asyncio.run(main())


def addresses(network, count):
    """The first so many of a network of the loopback's."""
    return [ipaddress.ip_address(network) + n for n in range(1, count + 1)]


def check(condition, text):
    print(f"{'yes' if condition else 'NO '} {text}")
    return condition


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ironweir", type=pathlib.Path)
    for name, default in (("good", 1000), ("gateways", 5), ("bad", 2000), ("smart", 20), ("farms", 5), ("seconds", 20), ("soon", 5), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    a = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="crowd-"))
    port = processes.free_port()
    conf = CONF.format(folder=folder, port=port, threads=a.threads, client_rate=CLIENT_RATE, client_burst=CLIENT_BURST,
                       address_rate=ADDRESS_RATE, address_burst=ADDRESS_BURST)
    (folder / "nginx.conf").write_text(conf)
    try:
        processes.start("ironweir", [a.ironweir.resolve(), "-p", folder, "-c", folder / "nginx.conf"], folder, None, port, lambda _: None)
        begin = time.monotonic() + 1
        soon, end = begin + a.soon, begin + a.seconds
        gateways = addresses("127.9.0.0", a.gateways)
        kinds = [(good, [gateways[n % a.gateways] for n in range(a.good)], begin),
                 (smart, addresses("127.10.0.0", a.smart), soon), (farm, addresses("127.11.0.0", a.farms), soon)]
        # Two processes, so that the load is not one processor's.
        all_bad = addresses("127.8.0.0", a.bad)
        kinds += [(bad, all_bad[0::2], soon), (bad, all_bad[1::2], soon)]
        told = multiprocessing.Queue()
        loads = [multiprocessing.Process(target=load, args=(kind, who, port, since, end, told), daemon=True) for kind, who, since in kinds if who]
        for process in loads:
            process.start()
        sums = {"good": [0, 0], "bad": [0, 0], "smart": [0, 0], "farm": [0, 0]}
        for _ in loads:
            kind, asked, served = told.get(timeout=a.seconds + 60)
            sums[kind] = [sums[kind][0] + asked, sums[kind][1] + served]
        guards = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/api/9/ironweir/guards"))
        return verdict(a, sums, guards["site"])
    finally:
        processes.stop_all()
        shutil.rmtree(folder, ignore_errors=True)


def verdict(a, sums, guard):
    measured = a.seconds - a.soon
    for kind, (asked, served) in sums.items():
        print(f"{kind:6} {served:7} of {asked:7} requests served, {100 * (asked - served) / max(asked, 1):.3f} % stopped")
    print("guard ", {name: guard[name] for name in ("requests", "proved", "challenged", "refused", "closed", "banned", "from_banned")})
    pace = sum(THINK) / 2
    asks = [a.good * a.seconds / pace / 2 <= sums["good"][0], a.bad * measured / pace / 2 <= sums["bad"][0]]
    (good_asked, good_served), (bad_asked, bad_served) = sums["good"], sums["bad"]
    client_most = a.smart * (CLIENT_BURST + CLIENT_RATE * measured) * SLACK
    farm_most = a.farms * (ADDRESS_BURST + ADDRESS_RATE * measured) * SLACK
    fine = [
        check(all(asks), "there was a crowd"),
        check(good_asked - good_served <= GOOD_STOPPED * good_asked, f"at most {100 * GOOD_STOPPED:g} % of good requests were stopped"),
        check(bad_asked - bad_served >= BAD_STOPPED * bad_asked, f"at least {100 * BAD_STOPPED:g} % of bad ones were, from second {a.soon} on"),
        check(sums["smart"][1] <= client_most, f"those with a jar got their limit: at most {client_most:.0f} requests"),
        check(sums["farm"][1] <= farm_most, f"those with many jars got an address's: at most {farm_most:.0f} requests"),
    ]
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
