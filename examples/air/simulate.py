#!/usr/bin/env python3
"""A Dylos DC1100 for those who have none.

    simulate.py --line /tmp/dylos [--every 60]   a serial line that says what the device would say
    simulate.py --history 24 [--purifier 12]     CSV of so many hours until now; a purifier runs in the last hours of them
"""
import argparse
import math
import os
import pty
import random
import time
import tty


def room(minute, clean_since=None):
    """Particles in a room at a minute of the day: it breathes with its people, and a purifier takes five air changes an hour."""
    day = 300 + 180 * math.sin(minute / 1440 * 2 * math.pi - 1.5) + 400 * math.exp(-(((minute % 1440 - 750) / 25) ** 2))
    if clean_since is not None:
        left = math.exp(-clean_since / 60 * 5)
        day = day * left + (1 - left) * day * 0.08
    small = max(0, random.gauss(day, 3 + day * 0.04))
    return round(small), round(small * random.uniform(0.03, 0.07))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--line")
    parser.add_argument("--every", type=float, default=60)
    parser.add_argument("--history", type=float)
    parser.add_argument("--purifier", type=float)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    if arguments.history:
        minutes = int(arguments.history * 60)
        begin = int(time.time()) // 60 * 60 - minutes * 60
        on = minutes - int(arguments.purifier * 60) if arguments.purifier else None
        print("time,small,large,mark")
        for minute in range(minutes):
            clean = minute - on if on is not None and minute >= on else None
            small, large = room(minute, clean)
            print(f"{begin + minute * 60},{small},{large},{'purifier on' if minute == on else ''}")
        return
    device, line = pty.openpty()
    tty.setraw(line)
    if os.path.islink(arguments.line):
        os.unlink(arguments.line)
    os.symlink(os.ttyname(line), arguments.line)
    minute = 0
    while True:
        small, large = room(minute)
        os.write(device, b"%d,%d\r\n" % (small, large))
        minute += 1
        time.sleep(arguments.every)


if __name__ == "__main__":
    main()
