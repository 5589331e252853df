"""The ends of connections in the tests of layer 4: `serve NAME FAMILY PORT` greets and echoes, `ask` does what standard input says.

Commands, each answered by a line of JSON: `open N HOST PORT` opens connections and keeps them; `talk` says a word on each and
reports who answered, or how it failed; `big BYTES` has the first connection bring so much, `put BYTES` take so much;
`udp N HOST PORT`; `http METHOD PORT PATH [JSON]` asks a server on this host's loopback;
`rate N SECONDS HOST PORT` opens N connections a second and answers how many took a second or more;
`flood SECONDS HOST PORT` sends SYNs of addresses that are nobody's (10.77.0.0/16) and answers how many; `close`.
"""
import http.client
import json
import random
import socket
import struct
import sys
import threading
import time


def serve(name, family, port):
    family = socket.AF_INET6 if family == "6" else socket.AF_INET
    any_host = "::" if family == socket.AF_INET6 else "0.0.0.0"
    threading.Thread(target=serve_udp, args=(name, family, any_host, port), daemon=True).start()
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((any_host, port))
    listener.listen(1024)
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=converse, args=(name, connection), daemon=True).start()


def serve_udp(name, family, host, port):
    # Bound to no address, a socket would answer from another than was asked; so the local one is asked for.
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.bind((host, port))
    while True:
        data, client = sock.recvfrom(2048)
        sock.sendto(name.encode() + b" " + data, client)


def converse(name, connection):
    stream = connection.makefile("rwb")
    try:
        stream.write(name.encode() + b"\n")
        stream.flush()
        for line in stream:
            words = line.split()
            if words[0] == b"put":
                stream.read(int(words[1]))
            stream.write(b"x" * int(words[1]) if words[0] == b"big" else name.encode() + b" " + line)
            stream.flush()
    except OSError as problem:
        print(type(problem).__name__, flush=True)


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
            answer = [attempt(lambda: udp(words[2], int(words[3]))) for _ in range(int(words[1]))]
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
    took, threads = [], []

    def one():
        begun = time.monotonic()
        try:
            socket.create_connection((host, port), timeout=5).close()
            took.append(time.monotonic() - begun)
        except OSError:
            took.append(5)

    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        thread = threading.Thread(target=one)
        thread.start()
        threads.append(thread)
        time.sleep(max(0, begun + len(threads) / rate - time.monotonic()))
    for thread in threads:
        thread.join()
    return {"all": len(took), "slow": sum(1 for t in took if t >= 1), "longest": max(took)}


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


def udp(host, port):
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(3)
    sock.connect((host, port))
    sock.send(b"word")
    return sock.recv(2048).decode().split(" ")[0]


if sys.argv[1] == "serve":
    serve(sys.argv[2], sys.argv[3], int(sys.argv[4]))
else:
    ask()
