"""Reads a Dylos DC1100 air quality monitor: 9600 baud, 8N1, no handshake, `small,large\\r\\n` once a minute. Both numbers are
particles in 1/100 cubic foot: of 0.5 micrometres and more, and of 2.5 micrometres and more (DC1100 Pro; the standard model counts from 1 and 5 on).

From: a serial line. To: store. Whatever comes, a line is either two plausible numbers or counted as noise.
"""
import os
import select
import termios
import time

MAX_LINE = 64           # bytes; two numbers have 15
MAX_COUNT = 6_553_500   # what the device's counters can show
SILENCE = 180           # seconds without a byte after which the line is opened anew: a line a minute is due


def parse(line):
    """The counts in a line, or None if it is no reading."""
    small, comma, large = line.strip(b" \r\n\t").partition(b",")
    if not comma or not small.isdigit() or not large.isdigit() or len(small) > 7 or len(large) > 7:
        return None
    small, large = int(small), int(large)
    # Every particle of the larger kind is counted among the smaller ones, too.
    return (small, large) if large <= small <= MAX_COUNT else None


class Lines:
    """Cuts what arrives into lines. The first one may be the end of a line whose beginning was missed, so it is never believed;
    what is longer than a line is thrown away up to the next end."""

    def __init__(self):
        self.rest = b""
        self.whole = False      # the rest began at the beginning of a line
        self.noise = 0          # lines that were no reading

    def feed(self, data):
        """Gives the readings that end in `data`."""
        readings = []
        *ended, self.rest = (self.rest + data).split(b"\n")
        for line in ended:
            reading = parse(line) if self.whole and len(line) <= MAX_LINE else None
            if reading:
                readings.append(reading)
            elif self.whole and line.strip():
                self.noise += 1
            self.whole = True
        if len(self.rest) > MAX_LINE:
            self.noise += self.whole
            self.rest, self.whole = b"", False
        return readings


def open_line(path):
    """Opens and sets a serial line: 9600 8N1, raw, without handshake. Gives a descriptor."""
    line = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    try:
        iflag, oflag, cflag, lflag, _, _, chars = termios.tcgetattr(line)
        iflag &= ~(termios.IGNBRK | termios.BRKINT | termios.PARMRK | termios.ISTRIP | termios.INLCR | termios.IGNCR
                   | termios.ICRNL | termios.IXON | termios.IXOFF | termios.IXANY)
        oflag &= ~termios.OPOST
        lflag &= ~(termios.ECHO | termios.ECHONL | termios.ICANON | termios.ISIG | termios.IEXTEN)
        cflag &= ~(termios.CSIZE | termios.PARENB | termios.CSTOPB | termios.CRTSCTS)
        cflag |= termios.CS8 | termios.CREAD | termios.CLOCAL
        chars[termios.VMIN], chars[termios.VTIME] = 0, 0
        termios.tcsetattr(line, termios.TCSANOW, [iflag, oflag, cflag, lflag, termios.B9600, termios.B9600, chars])
    except BaseException:
        os.close(line)
        raise
    return line


def readings(path, over, silence=SILENCE):
    """Yields `(time, small, large, noise)` for as long as `over()` is false; `noise` counts the lines since the start that were no
    reading. A line that is unplugged or falls silent is opened anew."""
    wait, noise = 1, 0
    while not over():
        try:
            line = open_line(path)
        except (OSError, termios.error):
            # Not there (yet): asked for again, less and less often.
            end = time.monotonic() + wait
            while time.monotonic() < end and not over():
                time.sleep(0.1)
            wait = min(wait * 2, 60)
            continue
        wait = 1
        lines, heard = Lines(), time.monotonic()
        try:
            while not over() and time.monotonic() - heard < silence:
                if not select.select([line], [], [], 0.2)[0]:
                    continue
                data = os.read(line, 4096)
                if not data:
                    break               # unplugged
                heard = time.monotonic()
                for small, large in lines.feed(data):
                    yield time.time(), small, large, noise + lines.noise
        except OSError:
            pass                        # unplugged while it was read
        finally:
            os.close(line)
            noise += lines.noise
