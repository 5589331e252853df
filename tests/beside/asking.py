"""Requests drawn by chance, and what comes back for them."""
import dataclasses
import random
import re
import socket
import zlib

PATHS = ["/", "/index.html", "/a.txt", "/b.html", "/sub", "/sub/", "/sub/c.txt", "/sub/d%20e.txt", "/sub/deep", "/sub/deep/x.json", "/no_index/",
         "/no_index", "/x.php", "/up/UP.TXT", "/missing", "/missing/", "/sub/missing.txt", "/a.txt/", "/s.shtml", "/big.bin", "/loc1", "/loc1/",
         "/loc1/a.txt", "/loc1/sub/c.txt", "/loc2", "/loc2/", "/loc2/x/y", "/loc2/a.txt", "/Loc2/a.txt", "/loc3", "/loc3/redir", "/loc3/cookie",
         "/loc3/err404", "/loc3/err500", "/loc3/chunk", "/loc3/nolen", "/loc3/elsewhere", "/loc3/none", "/loc3/odd", "/loc3/expires",
         "/img/p.png", "/img/P.PNG", "/re/12/ab", "/re/x", "/loc1/%2e%2e/a.txt", "/sub/../a.txt", "//a.txt", "/sub//c.txt", "/./a.txt",
         "/loc2/%41%2f", "/loc1?x=1", "/a.txt?x=1&y=%20", "/a.txt?", "/?a", "/loc2?x=2&z", "/sub/c.txt?x=a+b", "/%61.txt", "/loc3/q?x=1",
         "/loc3/a%20b", "/loc3/%3Fq", "/loc3//a/../b", "/loc4/a", "/loc4", "/loc4/sub/", "/internal/a", "/a.txt#frag", "/%e4%b8%ad",
         "/loc2/a;b", "/loc3/gone", "/auth/x", "/loc3/long" + "y" * 200]
METHODS = ["GET"] * 12 + ["HEAD"] * 3 + ["POST"] * 3 + ["PUT", "DELETE", "OPTIONS", "PATCH", "PROPFIND", "TRACE"]
HOSTS = ["localhost"] * 8 + ["other", "LOCALHOST", "localhost:8080", "foo.wild.com", "www.z", "a.re.com", "x.dot.com", "unknown", "localhost.", "u_v"]
# Of the file that most requests are for.
CHANGED, ETAG = "Tue, 14 Nov 2023 22:13:20 GMT", '"6553f100-12c"'
# A header and in how many of a hundred requests it is.
HEADERS = [("Range: bytes=0-4", 12), ("Range: bytes=2-3,5-6", 4), ("Range: bytes=-5", 3), ("Range: bytes=99999-", 3), ("Range: bytes=5-1", 2),
           (f"If-Modified-Since: {CHANGED}", 6), ("If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT", 3), (f"If-None-Match: {ETAG}", 4),
           ("If-None-Match: *", 2), ('If-Match: "x"', 2), ("If-Unmodified-Since: Sun, 06 Nov 1994 08:49:37 GMT", 2), (f"If-Range: {ETAG}", 2),
           ("Accept-Encoding: gzip", 10), ("X-A: vv", 10), ("Cookie: c=1; d=2", 10), ("Cookie: c=two", 5), ("X_Under: 1", 3), ("TE: trailers", 3),
           ("X-Forwarded-For: 10.1.1.1, 8.8.8.8", 5), ("Referer: http://www.ok.com/x", 5), ("Referer: http://bad.com/", 3),
           ("User-Agent: MSIE 6.0", 5), ("Authorization: Basic dTpw", 4), ("Authorization: Basic !!", 2), ("Connection: keep-alive", 5),
           ("Upgrade: websocket\r\nConnection: upgrade", 2), ("Via: 1.0 x", 2)]
BODIES = [b"", b"abc", b"hello body", b"z" * 3000]
PATIENCE_S = 3
HEAD_END = b"\r\n\r\n"


@dataclasses.dataclass
class Asked:
    """A request."""
    method: str
    target: str
    version: str
    headers: list
    body: bytes

    def line(self):
        """Its first line."""
        return f"{self.method} {self.target} HTTP/{self.version}"

    def bytes(self):
        """As it is sent."""
        lines = [self.line(), *self.headers, "", ""]
        return "\r\n".join(lines).encode("latin1") + self.body

    def __str__(self):
        return f"{self.line()} {self.headers} {self.body[:20]}"


def draw(seed, count):
    """Requests for a seed."""
    chance, drawn = random.Random(seed), []
    while len(drawn) < count:
        # Some come again, for caches.
        again = drawn and chance.random() < 0.3
        drawn.append(chance.choice(drawn) if again else _one(chance))
    return drawn


def _one(chance):
    method, target, version = chance.choice(METHODS), chance.choice(PATHS), chance.choice(["1.1"] * 7 + ["1.0"])
    if chance.random() < 0.15:
        target += chance.choice(["?x=1", "?x=2&y=3", "?x=ab", "?", "?x=1&md5=abc&e=2147483647"])
    headers, body = [], b""
    if version == "1.1" or chance.random() < 0.5:
        headers.append("Host: " + chance.choice(HOSTS))
    if method in ("POST", "PUT", "PATCH") or chance.random() < 0.03:
        body = chance.choice(BODIES)
        if version == "1.1" and chance.random() < 0.2:
            headers.append("Transfer-Encoding: chunked")
            body = (b"%x\r\n%s\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"
        else:
            headers.append(f"Content-Length: {len(body)}")
    headers += [header for header, percent in HEADERS if chance.random() * 100 < percent]
    if chance.random() < 0.35:
        headers.append("Connection: close")
    return Asked(method, target, version, headers, body)


def ask(address, asked):
    """The head, its lines sorted, and the body without framing and compression. What went wrong is a head of its own."""
    try:
        with socket.create_connection(address, PATIENCE_S, source_address=("127.0.0.1", 0)) as connection:
            connection.settimeout(PATIENCE_S)
            connection.sendall(asked.bytes())
            return _read(connection, asked)
    except OSError as error:
        return f"{type(error).__name__}", ""


def _read(connection, asked):
    got = b""

    def more():
        nonlocal got
        piece = connection.recv(65536)
        got += piece
        return bool(piece)

    while HEAD_END not in got:
        if not more():
            return "closed", got.decode("latin1")
    head, _, got = got.partition(HEAD_END)
    lines = head.decode("latin1").split("\r\n")
    status = lines[0].split(" ")[1]
    fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    bodiless = asked.method == "HEAD" or status in ("204", "304")
    if "chunked" in fields.get("transfer-encoding", "") and not bodiless:
        while not re.search(rb"(^|\r\n)0\r\n(.+\r\n)*\r\n$", got) and more():
            pass
        body = _unchunk(got)
    elif "content-length" in fields and not bodiless:
        while len(got) < int(fields["content-length"]) and more():
            pass
        body = got
    else:
        while fields.get("connection") == "close" and more():
            pass
        body = got
    if fields.get("content-encoding") == "gzip" and body:
        body = zlib.decompressobj(31).decompress(body)
    return "\n".join([lines[0], *sorted(lines[1:])]), body.decode("latin1")


def _unchunk(framed):
    body = b""
    while framed:
        size, _, framed = framed.partition(b"\r\n")
        if not int(size, 16):
            return body + b"<trailers>" + framed
        body, framed = body + framed[:int(size, 16)], framed[int(size, 16) + 2:]
    return body + b"<short>"
