"""The upstream of both servers. It answers with what it was sent; a word in the path asks for something special."""
import re
import socket
import threading

DATE = "Date: Thu, 01 Jan 1970 00:00:00 GMT"
USUAL = ["Content-Type: text/plain", "X-U: v", "Server: be", DATE, "Last-Modified: Sunday, 06-Nov-94 08:49:37 GMT", 'ETag: "e"']
# A word in the path: the status and further headers.
SPECIAL = {
    "redir": ("302 Found", ["Location: http://127.0.0.1:{port}/x/y?z"]),
    "cookie": ("200 OK", ["Set-Cookie: ca=b; path=/x/; domain=foo", "Set-Cookie: cb=2; Path=/xx"]),
    "err404": ("404 Not Found", []),
    "err500": ("500 Err", []),
    "gone": ("410 Gone", []),
    "none": ("204 No Content", []),
    "elsewhere": ("200 OK", ["X-Accel-Redirect: /internal/a?k=1"]),
    "expires": ("200 OK", ["Expires: Thu, 01 Jan 2037 00:00:00 GMT", "Vary: X", "WWW-Authenticate: q"]),
    "auth/no": ("403 Forbidden", []),
    "auth/x": ("401 U", ['WWW-Authenticate: Basic realm="be"']),
}
ODD = ["X-Accel-Charset: koi8-r", "X-Accel-Expires: 5", "Content-Type: text/html", "X-Dup: 1", "X-Dup: 2", "Cache-Control: max-age=5",
       "Refresh: 3; url=http://127.0.0.1:{port}/r", "Accept-Ranges: bytes", "Link: </x>; rel=preload"]


def start(port):
    """Listens on 127.0.0.1 until the program ends."""
    listener = socket.create_server(("127.0.0.1", port), backlog=200)

    def run():
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_serve, args=(connection, port), daemon=True).start()

    threading.Thread(target=run, daemon=True).start()


def _serve(connection, port):
    with connection, connection.makefile("rb") as stream:
        try:
            while _answer(stream, connection, port):
                pass
        except (OSError, ValueError):
            pass  # The proxy has gone away, or sent what is no request: the end of this connection.


def _answer(stream, connection, port):
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = stream.readline()
        if not line:
            return False
        head += line
    method, target, version = head.split(b"\r\n")[0].decode("latin1").split(" ")
    echo = b"[" + head.replace(b"\r\n", b"|") + _body(stream, head) + b"]"
    path = target.split("?")[0]
    status, headers = next((found for word, found in SPECIAL.items() if word in path), ("200 OK", []))
    headers = ODD if "odd" in path else USUAL + headers
    headers = [h.format(port=port) for h in headers]
    old = version == "HTTP/1.0" or "nolen" in path
    close = old or b"onnection: close" in head
    if status.startswith("204"):
        echo = b""
    elif "chunk" in path and not old:
        headers.append("Transfer-Encoding: chunked")
        echo = b"%x\r\n%s\r\n5\r\nTAIL!\r\n0\r\n\r\n" % (len(echo), echo)
    elif "nolen" not in path:
        headers.append(f"Content-Length: {len(echo)}")
    if close:
        headers.append("Connection: close")
    start = f"HTTP/1.{0 if old else 1} {status}\r\n" + "\r\n".join(headers) + "\r\n\r\n"
    connection.sendall(start.encode("latin1") + (b"" if method == "HEAD" else echo))
    return not close


def _body(stream, head):
    length = re.search(rb"(?im)^content-length:\s*(\d+)", head)
    if length:
        return stream.read(int(length[1]))
    body = b""
    if re.search(rb"(?im)^transfer-encoding:.*chunked", head):
        while size := int(stream.readline().split(b";")[0], 16):
            body += stream.read(size)
            stream.readline()
        stream.readline()
    return body
