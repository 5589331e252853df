"""The page, the API, CSV and Prometheus of the air quality monitor. From: store. To: clients, through Ironweir.

GET /                     the page
GET /api/now              the last reading
GET /api/chart?from&to    readings for a chart, and marks (seconds since 1970)
GET /api/compare?at&hours before and after a mark
GET /readings.csv?from&to all readings, as they were
GET /metrics              for Prometheus
POST /api/marks           {"text": "purifier on"}: something happened now
"""
import json
import pathlib
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from store import Store, compare

PAGE = pathlib.Path(__file__).with_name("page.html")
MAX_BODY = 4096
DAY = 86400
OLD = 300       # seconds: a reading older than this is none of now


def quality(small):
    """What the device's own scale says of small particles (standard model)."""
    for most, word in ((25, "excellent"), (50, "very good"), (100, "good"), (350, "fair"), (1000, "poor")):
        if small < most:
            return word
    return "very poor"


def metrics(store):
    """The state in Prometheus' text format. What is old is not said at all: a curve has a gap then."""
    lines = []

    def metric(name, kind, help_text, samples):
        lines.extend([f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"])
        lines.extend(f"{name}{labels} {value}" for labels, value in samples)

    last = store.last()
    if last and time.time() - last[0] < OLD:
        samples = [('{size="small"}', last[1]), ('{size="large"}', last[2])]
        metric("air_particles_per_centi_cubic_foot", "gauge", "Particles in 1/100 cubic foot of air.", samples)
    if last:
        metric("air_last_reading_timestamp_seconds", "gauge", "When the last reading came.", [("", last[0])])
    metric("air_readings_stored", "gauge", "Readings in the database.", [("", store.count())])
    metric("air_noise_lines_total", "counter", "Lines from the monitor that were no reading.", [("", store.fact("noise"))])
    return "\n".join(lines) + "\n"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 75
    database = None
    origins = ()

    def send(self, status, kind, body, headers=()):
        body = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), *headers):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def json(self, status, content):
        self.send(status, "application/json", json.dumps(content) + "\n", [("Cache-Control", "no-store")])

    def range(self, query):
        end = int(query.get("to", time.time()))
        begin = int(query.get("from", end - DAY))
        if not 0 <= begin < end <= 1 << 40:
            raise ValueError("from is before to")
        return begin, end

    def do_GET(self):
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        try:
            store = Store(self.database)
            try:
                self.get(store, url.path, query)
            finally:
                store.db.close()
        except ValueError as wrong:
            self.json(400, {"error": str(wrong)})

    do_HEAD = do_GET

    def get(self, store, path, query):
        if path == "/":
            headers = [("Content-Security-Policy", "default-src 'self'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'")]
            self.send(200, "text/html; charset=utf-8", PAGE.read_bytes(), headers)
        elif path == "/api/now":
            last = store.last()
            age = time.time() - last[0] if last else None
            now = {"at": last[0], "small": last[1], "large": last[2], "quality": quality(last[1]), "old": age > OLD} if last else None
            self.json(200, now)
        elif path == "/api/chart":
            begin, end = self.range(query)
            step, points = store.chart(begin, end)
            self.json(200, {"from": begin, "to": end, "step": step, "points": points, "marks": store.marks(begin, end)})
        elif path == "/api/compare":
            at, hours = int(query["at"]) if "at" in query else None, float(query.get("hours", 6))
            if at is None or not 0.25 <= hours <= 24 * 31:
                raise ValueError("at is a time, hours are 0.25 to 744")
            self.json(200, compare(store, at, hours, min(1.0, hours / 4)))
        elif path == "/readings.csv":
            begin, end = self.range(query)
            rows = "".join(f"{at},{small},{large}\n" for at, small, large in store.between(begin, end))
            headers = [("Content-Disposition", 'attachment; filename="readings.csv"')]
            self.send(200, "text/csv", "time,small,large\n" + rows, headers)
        elif path == "/metrics":
            self.send(200, "text/plain; version=0.0.4", metrics(store))
        else:
            self.json(404, {"error": "no such place"})

    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        if urlsplit(self.path).path != "/api/marks" or not 0 < length <= MAX_BODY:
            self.close_connection = True
            return self.json(404, {"error": "no such place"})
        body = self.rfile.read(length)
        # A form of another site cannot say that it sends JSON without asking first.
        if self.headers.get("Content-Type", "").split(";")[0] != "application/json":
            return self.json(415, {"error": "JSON is wanted"})
        store = Store(self.database)
        try:
            text = json.loads(body)["text"]
            at = int(time.time())
            store.mark(at, text if isinstance(text, str) else "")
            self.json(201, {"at": at, "text": text})
        except (ValueError, KeyError, TypeError) as wrong:
            self.json(400, {"error": str(wrong)})
        finally:
            store.db.close()

    def log_message(self, *arguments):
        pass                    # the balancer has the access log


def server(database, port):
    Handler.database = database
    Store(database).db.close()
    return ThreadingHTTPServer(("127.0.0.1", port), Handler)
