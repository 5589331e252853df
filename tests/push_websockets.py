"""Clients of Python's websockets: `push_websockets.py PORT`. Ends with 1 and says why where something is not as it should be."""

import asyncio
import sys
import urllib.request

import websockets

PATIENCE = 30


def publish(port, data, kind="text/plain"):
    """Publishes by HTTP."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/ws", data, {"Content-Type": kind, "Connection": "close"})
    urllib.request.urlopen(request, timeout=PATIENCE).read()


async def main(port):
    """Compressed and not, texts, bytes, large ones, frames with ids, and what clients say themselves."""
    url, loop = f"ws://127.0.0.1:{port}/ws", asyncio.get_running_loop()
    post = lambda *args: loop.run_in_executor(None, publish, port, *args)
    hear = lambda client: asyncio.wait_for(client.recv(), PATIENCE)
    async with websockets.connect(url) as packed, websockets.connect(url, compression=None) as plain, \
            websockets.connect(url, subprotocols=["ws+meta.nchan"], compression=None) as meta:
        assert [type(e).__name__ for e in packed.extensions] == ["PerMessageDeflate"] and not plain.extensions
        assert meta.subprotocol == "ws+meta.nchan"
        large = "ä😀 and so on, " * 5000
        for data, kind in ((b"hello", "text/plain"), (large.encode(), "text/plain"), (bytes(range(256)), "application/octet-stream")):
            await post(data, kind)
            expected = data if kind == "application/octet-stream" else data.decode()
            assert await hear(packed) == expected and await hear(plain) == expected
            said = await hear(meta)
            head, body = said.split(b"\n\n" if isinstance(said, bytes) else "\n\n", 1)
            assert body == expected and (b"id: " if isinstance(said, bytes) else "id: ") in head, head
        for client in (packed, plain):
            await client.send(large)
            assert await hear(packed) == large and await hear(plain) == large
        await asyncio.wait_for(await plain.ping(b"are you there"), PATIENCE)
    assert (packed.close_code, plain.close_code) == (1000, 1000), (packed.close_code, plain.close_code)


asyncio.run(main(int(sys.argv[1])))
