"""Readings and marks in SQLite. From: dylos, or a CSV file. To: web. One process writes, any number read."""
import csv
import math
import sqlite3
import statistics

SCHEMA = """
CREATE TABLE IF NOT EXISTS readings (at INTEGER PRIMARY KEY, small INTEGER NOT NULL, large INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS marks (at INTEGER PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""
MAX_POINTS = 2000           # of a chart
MAX_MARK = 200              # characters
SURE = 2.6                  # standard errors: a difference that chance shows once in a hundred comparisons


class Store:
    def __init__(self, path):
        self.db = sqlite3.connect(path, timeout=10, isolation_level=None)
        # What is written survives a loss of power, and readers are not in the way.
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.executescript(SCHEMA)

    def add(self, at, small, large):
        self.db.execute("INSERT OR REPLACE INTO readings VALUES (?, ?, ?)", (int(at), small, large))

    def mark(self, at, text):
        if not 0 < len(text) <= MAX_MARK:
            raise ValueError(f"a mark has 1 to {MAX_MARK} characters")
        self.db.execute("INSERT OR REPLACE INTO marks VALUES (?, ?)", (int(at), text))

    def note(self, name, value):
        self.db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def fact(self, name):
        row = self.db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return row[0] if row else 0

    def count(self):
        return self.db.execute("SELECT count(*) FROM readings").fetchone()[0]

    def last(self):
        return self.db.execute("SELECT at, small, large FROM readings ORDER BY at DESC LIMIT 1").fetchone()

    def between(self, begin, end):
        return self.db.execute("SELECT at, small, large FROM readings WHERE at BETWEEN ? AND ? ORDER BY at", (begin, end))

    def marks(self, begin, end):
        return self.db.execute("SELECT at, text FROM marks WHERE at BETWEEN ? AND ? ORDER BY at", (begin, end)).fetchall()

    def chart(self, begin, end):
        """Means of equal steps, at most MAX_POINTS; a step without a reading is left out, so that a gap is seen as one."""
        step = max(60, math.ceil((end - begin) / MAX_POINTS / 60) * 60)
        rows = self.db.execute(
            "SELECT at / ? * ?, avg(small), avg(large), max(small) FROM readings WHERE at BETWEEN ? AND ? GROUP BY at / ? ORDER BY at",
            (step, step, begin, end, step),
        ).fetchall()
        return step, [(at, round(small), round(large), most) for at, small, large, most in rows]

    def load(self, file):
        """Reads CSV with the columns time (seconds since 1970), small, large, and if there is a fourth one, mark."""
        rows = csv.DictReader(file)
        count = 0
        with self.db:
            self.db.execute("BEGIN")
            for row in rows:
                at, small, large = int(row["time"]), int(row["small"]), int(row["large"])
                if not 0 <= large <= small:
                    raise ValueError(f"line {rows.line_num}: no reading")
                self.add(at, small, large)
                if row.get("mark"):
                    self.mark(at, row["mark"])
                count += 1
        return count


def ranks_differ(before, after):
    """How many standard errors two samples are apart, by the ranks of their values (Mann-Whitney): no shape is assumed."""
    both = sorted([(v, 0) for v in before] + [(v, 1) for v in after])
    ranks, ties, i = 0.0, 0, 0
    while i < len(both):
        j = i
        while j < len(both) and both[j][0] == both[i][0]:
            j += 1
        ranks += (i + j + 1) / 2 * sum(1 for k in range(i, j) if both[k][1] == 0)
        ties += (j - i) ** 3 - (j - i)
        i = j
    n, m = len(before), len(after)
    total = n + m
    spread = n * m / 12 * ((total + 1) - ties / (total * (total - 1)))
    return (ranks - n * (total + 1) / 2) / math.sqrt(spread) if spread > 0 else 0.0


def decay(rows, at, floor):
    """How fast the air was cleaned after `at`, as air changes an hour: the slope of the logarithm of what is above `floor`, as far
    as twice that. None where it never was so high, or fell at once."""
    points = []
    for t, small, _ in rows:
        if small <= 2 * floor:
            break
        points.append(((t - at) / 3600, math.log(small - floor)))
    if len(points) < 5:
        return None
    mean_x, mean_y = (statistics.fmean(p[k] for p in points) for k in (0, 1))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    return round(-slope, 2) if slope < 0 else None


def compare(store, at, hours=6.0, settle=1.0):
    """Before a mark and after it: `hours` on each side, the first `settle` hours after it left out."""
    before = list(store.between(at - int(hours * 3600), at - 1))
    whole = list(store.between(at, at + int((hours + settle) * 3600)))
    after = [row for row in whole if row[0] >= at + int(settle * 3600)]
    if len(before) < 10 or len(after) < 10:
        raise ValueError(f"{len(before)} readings before and {len(after)} after are too few (10 each)")
    out = {"at": at, "hours": hours, "settle": settle, "readings": {"before": len(before), "after": len(after)}}
    for name, column in (("small", 1), ("large", 2)):
        one, two = [row[column] for row in before], [row[column] for row in after]
        medians = statistics.median(one), statistics.median(two)
        errors = ranks_differ(one, two)
        out[name] = {
            "before": medians[0],
            "after": medians[1],
            "change_percent": round((medians[1] - medians[0]) / medians[0] * 100, 1) if medians[0] else None,
            "verdict": "cannot tell" if abs(errors) < SURE else "less" if errors > 0 else "more",
        }
    out["air_changes_per_hour"] = decay(whole, at, out["small"]["after"])
    return out
