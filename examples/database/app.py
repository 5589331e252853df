#!/usr/bin/env python3
"""A notes service with its data in PostgreSQL: what an application behind a balancer looks like. It keeps nothing itself, so any
number of them can run; it says by itself whether it is well; it ends without losing a request.

    app.py --port 3001 --database 'host=127.0.0.1 dbname=notes user=notes password=notes'
"""
import argparse
import json
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import psycopg2
import psycopg2.pool

MAX_BODY = 64 * 1024        # a note has 10,000 characters at most
MAX_CONNECTIONS = 10        # to the database, of one process
SHOWN = 50                  # notes in one answer
PATIENCE = 3                # seconds for the database to answer


class Notes:
    """The table, behind a pool that bounds how many ask at once."""

    def __init__(self, database):
        options = f"-c statement_timeout={PATIENCE * 1000}"
        self.pool = psycopg2.pool.ThreadedConnectionPool(0, MAX_CONNECTIONS, database, connect_timeout=PATIENCE, options=options)
        self.turns = threading.BoundedSemaphore(MAX_CONNECTIONS)

    def query(self, text, values=()):
        """Runs a statement in a transaction of its own; rows as tuples. A connection that broke is not used again."""
        with self.turns:
            connection = self.pool.getconn()
            try:
                with connection, connection.cursor() as cursor:
                    cursor.execute(text, values)
                    return cursor.fetchall()
            finally:
                self.pool.putconn(connection, close=connection.closed != 0)

    def add(self, author, text):
        return self.query("INSERT INTO notes (author, text) VALUES (%s, %s) RETURNING id", (author, text))[0][0]

    def find(self, words):
        where = "WHERE to_tsvector('english', text) @@ websearch_to_tsquery('english', %s)" if words else ""
        rows = self.query(
            f"SELECT id, written, author, text FROM notes {where} ORDER BY id DESC LIMIT {SHOWN}", (words,) if words else ()
        )
        return [{"id": i, "written": w.isoformat(), "author": a, "text": t} for i, w, a, t in rows]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 75                # a connection that the balancer keeps
    notes = None
    name = ""

    def answer(self, status, content):
        body = (json.dumps(content) + "\n").encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Served-By", self.name)
        self.end_headers()
        self.wfile.write(body)

    def guarded(self, work):
        """What the client did wrong is 4xx, a database that is not there 503: another instance may reach it."""
        try:
            work()
        except ValueError as wrong:
            self.answer(400, {"error": str(wrong)})
        except psycopg2.errors.CheckViolation as wrong:
            self.answer(422, {"error": wrong.diag.message_primary})
        except (psycopg2.Error, psycopg2.pool.PoolError) as trouble:
            self.answer(503, {"error": str(trouble).strip()})

    def do_GET(self):
        url = urlsplit(self.path)
        if url.path == "/health":
            self.guarded(lambda: self.answer(200, {"database": self.notes.query("SELECT 1")[0][0]}))
        elif url.path == "/notes":
            words = parse_qs(url.query).get("q", [""])[0]
            self.guarded(lambda: self.answer(200, self.notes.find(words)))
        else:
            self.answer(404, {"error": "no such place"})

    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        if urlsplit(self.path).path != "/notes" or length > MAX_BODY:
            self.close_connection = True
            self.answer(413 if length > MAX_BODY else 404, {"error": "too much" if length > MAX_BODY else "no such place"})
            return
        body = self.rfile.read(length)

        def add():
            note = json.loads(body)
            if not isinstance(note, dict) or not all(isinstance(note.get(k), str) for k in ("author", "text")):
                raise ValueError("a note has an author and a text")
            self.answer(201, {"id": self.notes.add(note["author"], note["text"])})

        self.guarded(add)

    def log_message(self, *arguments):
        pass                    # the balancer has the access log


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--database", required=True)
    arguments = parser.parse_args()
    Handler.notes = Notes(arguments.database)
    Handler.name = f"app-{arguments.port}"
    server = ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler)
    server.daemon_threads = False
    # Requests under way are finished; `shutdown` waits for the loop, so it is another thread's.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever()


if __name__ == "__main__":
    main()
