#!/usr/bin/env python3
"""Tests of examples/air: the reader over a pseudo-terminal that says what serial lines say on bad days, the store, the numbers, the
web side. Run by tests/examples.rs."""
import http.client
import io
import json
import os
import pathlib
import pty
import sys
import tempfile
import termios
import threading
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples/air"))
import dylos  # noqa: E402
import simulate  # noqa: E402
import store as stores  # noqa: E402
import web  # noqa: E402

PATIENCE = 20


class Line:
    """A pseudo-terminal under a name that can be given to another one, as a device that is plugged in again."""

    def __init__(self, folder):
        self.name = str(pathlib.Path(folder) / "ttyUSB0")
        self.device = None

    def plug_in(self):
        self.device, line = pty.openpty()
        os.symlink(os.ttyname(line), self.name)
        self.line = line

    def unplug(self):
        os.unlink(self.name)
        os.close(self.device)
        os.close(self.line)

    def say(self, data):
        os.write(self.device, data)


class Reader(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.over = threading.Event()
        self.seen = []
        self.line = Line(self.folder.name)

    def start(self, **options):
        def run():
            for _, small, large, noise in dylos.readings(self.line.name, self.over.is_set, **options):
                self.seen.append((small, large, noise))

        self.thread = threading.Thread(target=run)
        self.thread.start()
        self.addCleanup(self.end)

    def end(self):
        self.over.set()
        self.thread.join(PATIENCE)
        self.assertFalse(self.thread.is_alive(), "the reader ends when it is told to")

    def until(self, condition, again=lambda: None):
        end = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), end, f"never: {self.seen}")
            again()
            time.sleep(0.02)

    def opened(self):
        """The reader has set the line: it is raw."""
        return not termios.tcgetattr(self.line.line)[3] & termios.ICANON

    def test_readings_among_garbage_and_cut_lines(self):
        self.line.plug_in()
        self.start()
        self.until(self.opened)
        settings = termios.tcgetattr(self.line.line)
        self.assertEqual((settings[4], settings[5]), (termios.B9600, termios.B9600))
        self.assertEqual(settings[2] & (termios.CSIZE | termios.PARENB | termios.CSTOPB), termios.CS8)
        # The end of a line whose beginning was missed looks like a reading, and is none.
        self.line.say(b"45,3\r\n")
        for part in (b"12", b"00,", b"7", b"0\r", b"\n"):
            self.line.say(part)
            time.sleep(0.01)
        self.line.say(b"\x00\xff\xfe@@\r\n900,\r\n,12\r\n-5,1\r\n12,900\r\n1.5,1\r\n12345678,1\r\n100,5,7\r\n\r\n")
        self.line.say(b"x" * 500 + b"\r\n800,40\r\n")
        self.until(lambda: len(self.seen) == 2)
        self.assertEqual([s[:2] for s in self.seen], [(1200, 70), (800, 40)])
        self.assertEqual(self.seen[-1][2], 9, "lines that were no reading are counted")

    def test_a_line_that_is_unplugged_and_comes_back(self):
        self.start()
        time.sleep(0.1)         # it is not there at first
        self.line.plug_in()
        self.until(self.opened)
        self.line.say(b"\r\n300,20\r\n")
        self.until(lambda: len(self.seen) == 1)
        self.line.say(b"99")    # cut in the middle of a line
        self.line.unplug()
        self.line.plug_in()
        self.until(self.opened)
        self.line.say(b"9,9\r\n310,21\r\n")
        self.until(lambda: len(self.seen) == 2)
        self.assertEqual([s[:2] for s in self.seen], [(300, 20), (310, 21)], "no reading is made of two halves")

    def test_a_silent_line_is_opened_anew(self):
        self.line.plug_in()
        self.start(silence=0.5)
        self.until(self.opened)
        # What was set is taken back; the reader sets it again when it has heard nothing for a while.
        settings = termios.tcgetattr(self.line.line)
        settings[3] |= termios.ICANON
        termios.tcsetattr(self.line.line, termios.TCSANOW, settings)
        self.until(self.opened)


class Numbers(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = str(pathlib.Path(self.folder.name) / "air.db")
        self.store = stores.Store(self.path)

    def fill(self, begin, minutes, small):
        for minute in range(minutes):
            value = round(small(minute))
            self.store.add(begin + minute * 60, value, value // 20)

    def test_a_purifier_that_helps(self):
        simulate.random.seed(1)
        on = 1_800_000_000
        self.fill(on - 360 * 60, 360, lambda m: simulate.room(600)[0])
        self.fill(on, 430, lambda m: 400 * 2.718281828 ** (-m / 60 * 4) + 30 + m % 3)
        seen = stores.compare(self.store, on)
        self.assertEqual(seen["small"]["verdict"], "less")
        self.assertLess(seen["small"]["change_percent"], -80)
        self.assertAlmostEqual(seen["air_changes_per_hour"], 4, delta=0.6)

    def test_one_that_does_nothing(self):
        simulate.random.seed(2)
        on = 1_800_000_000
        self.fill(on - 360 * 60, 800, lambda m: simulate.random.gauss(300, 40))
        seen = stores.compare(self.store, on)
        self.assertEqual(seen["small"]["verdict"], "cannot tell")
        self.assertIsNone(seen["air_changes_per_hour"])

    def test_too_few_readings_are_said(self):
        self.fill(1_800_000_000, 5, lambda m: 100)
        with self.assertRaisesRegex(ValueError, "too few"):
            stores.compare(self.store, 1_800_000_000)

    def test_a_gap_stays_one(self):
        self.fill(1_800_000_000, 10, lambda m: 100)
        self.fill(1_800_003_600, 10, lambda m: 200)
        step, points = self.store.chart(1_800_000_000, 1_800_007_200)
        self.assertEqual((step, len(points)), (60, 20))
        step, points = self.store.chart(1_700_000_000, 1_900_000_000)
        self.assertLessEqual(len(points), stores.MAX_POINTS)

    def test_csv_that_is_wrong_changes_nothing(self):
        with self.assertRaises(ValueError):
            self.store.load(io.StringIO("time,small,large,mark\n1800000000,10,1,\n1800000060,1,10,\n"))
        self.assertEqual(self.store.count(), 0)

    def ask(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=PATIENCE)
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def test_the_web_side(self):
        self.server = web.server(self.path, 0)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.assertEqual(self.ask("GET", "/api/now"), (200, "null\n"))
        now = int(time.time())
        self.store.add(now - 60, 120, 6)
        self.assertEqual(json.loads(self.ask("GET", "/api/now")[1])["quality"], "fair")
        self.assertIn('air_particles_per_centi_cubic_foot{size="small"} 120', self.ask("GET", "/metrics")[1])
        self.assertEqual(self.ask("GET", "/readings.csv")[1], f"time,small,large\n{now - 60},120,6\n")
        for path in ("/api/chart?from=x", "/api/chart?from=9&to=3", "/api/compare", "/api/compare?at=1&hours=nan"):
            self.assertEqual(self.ask("GET", path)[0], 400, path)
        self.assertEqual(self.ask("GET", "/../air.py")[0], 404)
        kind = {"Content-Type": "application/json"}
        self.assertEqual(self.ask("POST", "/api/marks", '{"text": "purifier on"}', kind)[0], 201)
        self.assertEqual(self.ask("POST", "/api/marks", '{"text": "x"}', {"Content-Type": "text/plain"})[0], 415)
        for body in ('{"text": ""}', '{"text": 5}', "[]", "nonsense", json.dumps({"text": "x" * 300})):
            self.assertEqual(self.ask("POST", "/api/marks", body, kind)[0], 400, body)
        self.assertEqual(self.ask("POST", "/api/marks", "x" * 5000, kind)[0], 404)
        marks = json.loads(self.ask("GET", "/api/chart")[1])["marks"]
        self.assertEqual([text for _, text in marks], ["purifier on"])

    def test_what_is_old_is_no_metric(self):
        self.store.add(time.time() - 1000, 120, 6)
        self.assertNotIn("air_particles", web.metrics(self.store))


if __name__ == "__main__":
    unittest.main(warnings="ignore")
