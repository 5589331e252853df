"""The ends of connections in the tests of layer 4: `serve NAME FAMILY PORT` greets and echoes, `ask` does what standard input says.

Commands, each answered by a line of JSON: `open N HOST PORT` opens connections and keeps them; `talk` says a word on each and
reports who answered, or how it failed; `big BYTES` has the first connection bring so much, `put BYTES` take so much;
`udp N HOST PORT [BYTES]` sends a datagram from each of N sockets, `refused HOST PORT` one to where nobody listens, `mix HOST PORT NxBYTES ...` many of
some lengths from one socket; `http METHOD PORT PATH [JSON]` asks a server on this host's loopback;
`rate N SECONDS HOST PORT` opens N connections a second and answers how many took a second or more;
`flood SECONDS HOST PORT` sends SYNs of addresses that are nobody's (10.77.0.0/16) and answers how many; `close`.
"""
import asyncio
import http.client
import json
import random
import resource
import socket
import struct
import sys
import threading
import time


# linux/in.h and linux/in6.h
IP_PKTINFO, IPV6_RECVPKTINFO, IPV6_PKTINFO = 8, 49, 50


def serve(name, family, port):
    family = socket.AF_INET6 if family == "6" else socket.AF_INET
    any_host = "::" if family == socket.AF_INET6 else "0.0.0.0"
    threading.Thread(target=serve_udp, args=(name, family, any_host, port), daemon=True).start()
    asyncio.run(serve_tcp(name, any_host, port))


async def serve_tcp(name, host, port):
    async def converse(reader, writer):
        try:
            writer.write(name.encode() + b"\n")
            while line := await reader.readline():
                words = line.split()
                if words[0] == b"put":
                    await reader.readexactly(int(words[1]))
                writer.write(b"x" * int(words[1]) if words[0] == b"big" else name.encode() + b" " + line)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError) as problem:
            print(type(problem).__name__, flush=True)
        writer.close()

    server = await asyncio.start_server(converse, host, port, backlog=1024)
    print("ready", flush=True)
    await server.serve_forever()


def serve_udp(name, family, host, port):
    """Echoes datagrams. An answer comes from the address that was asked: a server may have several."""
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVPKTINFO, 1)
    else:
        sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
    sock.bind((host, port))
    while True:
        data, said, _, client = sock.recvmsg(65536, 256)
        level, kind, facts = said[0]
        # To the interface that the route says: index 0.
        facts = facts[:16] + bytes(4) if family == socket.AF_INET6 else bytes(4) + facts[8:12] + bytes(4)
        sock.sendmsg([name.encode() + b" " + data], [(level, IPV6_PKTINFO if family == socket.AF_INET6 else kind, facts)], 0, client)


def ask():
    kept = []
    for line in sys.stdin:
        words = line.split()
        if words[0] == "open":
            answer = []
            for _ in range(int(words[1])):
                answer.append(attempt(lambda: open_one(kept, words[2], int(words[3]))))
        elif words[0] == "talk":
            answer = [attempt(lambda: talk(stream)) for stream, _ in kept]
        elif words[0] == "big":
            answer = attempt(lambda: big(kept[0][0], int(words[1])))
        elif words[0] == "put":
            answer = attempt(lambda: put(kept[0][0], int(words[1])))
        elif words[0] == "rate":
            answer = at_rate(int(words[1]), float(words[2]), words[3], int(words[4]))
        elif words[0] == "flood":
            answer = flood(float(words[1]), words[2], int(words[3]))
        elif words[0] == "http":
            answer = attempt(lambda: ask_http(words[1], int(words[2]), words[3], line.split(" ", 4)[4:]))
        elif words[0] == "udp":
            size = int(words[4]) if len(words) > 4 else 4
            answer = [attempt(lambda: udp(words[2], int(words[3]), size)) for _ in range(int(words[1]))]
        elif words[0] == "refused":
            answer = attempt(lambda: udp(words[1], int(words[2]), 4))
        elif words[0] == "mix":
            answer = mix(words[1], int(words[2]), [[int(n) for n in word.split("x")] for word in words[3:]])
        else:
            for stream, connection in kept:
                stream.close()
                connection.close()
            kept, answer = [], "closed"
        print(json.dumps(answer), flush=True)


def attempt(what):
    try:
        return what()
    except OSError as problem:
        return type(problem).__name__


def open_one(kept, host, port):
    connection = socket.create_connection((host, port), timeout=5)
    stream = connection.makefile("rwb")
    name = stream.readline().decode().strip()
    kept.append((stream, connection))
    return name


def talk(stream):
    stream.write(b"word\n")
    stream.flush()
    return stream.readline().decode().split(" ")[0] or "closed"


def big(stream, size):
    stream.write(b"big %d\n" % size)
    stream.flush()
    return len(stream.read(size))


def put(stream, size):
    stream.write(b"put %d\n" % size + b"x" * size)
    stream.flush()
    return stream.readline().decode().split(" ")[0]


def at_rate(rate, seconds, host, port):
    took, threads, slow = [], [], []

    def one():
        at = time.monotonic()
        try:
            socket.create_connection((host, port), timeout=5).close()
            took.append(time.monotonic() - at)
        except OSError:
            took.append(5)
        if took[-1] >= 1:
            slow.append(f"{at - begun:.2f}+{took[-1]:.2f}")

    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        thread = threading.Thread(target=one)
        thread.start()
        threads.append(thread)
        time.sleep(max(0, begun + len(threads) / rate - time.monotonic()))
    for thread in threads:
        thread.join()
    return {"all": len(took), "slow": sum(1 for t in took if t >= 1), "longest": max(took), "when": slow}


def flood(seconds, host, port):
    sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    to = socket.inet_aton(host)
    end, sent = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        for _ in range(64):
            source = b"\x0a\x4d" + random.randbytes(2)
            tcp = struct.pack("!HHIIBBHHHBBH", random.randrange(1024, 65535), port, random.getrandbits(32), 0, 6 << 4, 2, 64000, 0, 0, 2, 4, 1460)
            total = sum(struct.unpack("!18H", source + to + struct.pack("!HH", 6, len(tcp)) + tcp))
            total = (total & 0xFFFF) + (total >> 16)
            total = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
            tcp = tcp[:16] + struct.pack("!H", total) + tcp[18:]
            # The kernel fills in length, number and checksum of the header (raw(7)).
            ip = struct.pack("!BBHHHBBH", 0x45, 0, 0, 0, 0, 64, 6, 0) + source + to
            try:
                sock.sendto(ip + tcp, (host, 0))
                sent += 1
            except OSError:
                # The queue of the device is full.
                time.sleep(0.001)
    return sent


def ask_http(method, port, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, body[0].strip() if body else None)
    response = connection.getresponse()
    text = response.read().decode()
    if response.headers.get("Content-Type", "").startswith("application/json") and text:
        return {"status": response.status, "body": json.loads(text)}
    return {"status": response.status, "body": text}


def datagrams(host, port):
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(3)
    sock.connect((host, port))
    return sock


def udp(host, port, size):
    with datagrams(host, port) as sock:
        word = b"w" * size
        sock.send(word)
        name, echo = sock.recv(65536).split(b" ", 1)
        return name.decode() if echo == word else f"{len(echo)} bytes of {size}"


def mix(host, port, wanted):
    """Answers how many came back, which keeps the pace as well."""
    order = [size for count, size in wanted for _ in range(count)]
    random.shuffle(order)
    back = 0
    with datagrams(host, port) as sock:
        for size in order:
            sock.send(b"m" * size)
            back += len(sock.recv(65536)) > size
    return back


_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
if sys.argv[1] == "serve":
    serve(sys.argv[2], sys.argv[3], int(sys.argv[4]))
else:
    ask()
