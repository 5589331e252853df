#!/usr/bin/env python3
"""A chat over WebSockets: who connects to /chat/ROOM hears what others in the room say.

    server.py --port 3003
"""
import argparse
import asyncio
import collections
import json
import signal
import time

import websockets

MAX_MESSAGE = 4 * 1024      # bytes of one frame
MAX_PEOPLE = 200            # in one room
MAX_ROOMS = 1000
MAX_WAITING = 32            # messages that one who reads slowly is behind; then they are left out
KEPT = 20                   # the last messages, for those who come

rooms = {}                  # name -> Room


class Room:
    def __init__(self):
        self.people = set()
        self.last = collections.deque(maxlen=KEPT)

    def say(self, message):
        """Hands a message to everybody's queue; nobody waits for anybody."""
        text = json.dumps(message | {"at": int(time.time())})
        self.last.append(text)
        for queue in self.people:
            if not queue.full():
                queue.put_nowait(text)


async def write(socket, queue):
    while True:
        await socket.send(await queue.get())


async def serve(socket):
    name = socket.path.removeprefix("/chat/")
    if not name.isalnum() or len(name) > 50:
        return await socket.close(1008, "no such room")
    if name not in rooms and len(rooms) >= MAX_ROOMS:
        empty = next((n for n, r in rooms.items() if not r.people), None)
        if empty is None:
            return await socket.close(1013, "there are too many rooms")
        del rooms[empty]        # the oldest; what was said there is forgotten
    room = rooms.setdefault(name, Room())
    if len(room.people) >= MAX_PEOPLE:
        return await socket.close(1013, "the room is full")
    queue = asyncio.Queue(MAX_WAITING)
    for text in room.last:
        queue.put_nowait(text)
    room.people.add(queue)
    writer = asyncio.create_task(write(socket, queue))
    try:
        async for text in socket:
            try:
                said = json.loads(text)
                message = {"name": str(said["name"])[:40], "text": str(said["text"])[:2000]}
            except (ValueError, KeyError, TypeError):
                await socket.close(1007, "a message is {name, text}")
                break
            room.say(message)
    except websockets.ConnectionClosed:
        pass
    finally:
        writer.cancel()
        room.people.discard(queue)


async def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    async with websockets.serve(serve, "127.0.0.1", arguments.port, max_size=MAX_MESSAGE, ping_interval=20):
        await over.wait()


asyncio.run(main())
