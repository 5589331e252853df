#!/usr/bin/env python3
"""Says something in a room of the chat, or waits until something is said there.

    say.py URL --name ann --text hello
    say.py URL --until hello [--twice FILE]

With --twice it waits for the text, makes FILE, and waits for the text "again" on the same connection.
"""
import argparse
import asyncio
import json
import pathlib

import websockets

PATIENCE = 20   # seconds


async def hear(socket, text):
    while True:
        message = json.loads(await asyncio.wait_for(socket.recv(), PATIENCE))
        print(f"{message['name']}: {message['text']}", flush=True)
        if message["text"] == text:
            return


async def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--name", default="somebody")
    parser.add_argument("--text")
    parser.add_argument("--until")
    parser.add_argument("--twice", type=pathlib.Path)
    arguments = parser.parse_args()
    async with websockets.connect(arguments.url) as socket:
        if arguments.text:
            await socket.send(json.dumps({"name": arguments.name, "text": arguments.text}))
            await hear(socket, arguments.text)
        if arguments.until:
            await hear(socket, arguments.until)
        if arguments.twice:
            arguments.twice.touch()
            await hear(socket, "again")


asyncio.run(main())
