"use strict";
const style = getComputedStyle(document.documentElement);
const ink = style.getPropertyValue("--soft").trim(), line = style.getPropertyValue("--line").trim();
const colors = ["#2f7fd1", "#d98324", "#c2402f", "#7b52ab"];
// Within the page's margins: a chart is no wider than the text.
const width = () => Math.min(document.querySelector("h1").clientWidth, 960);
const ms = (us) => us == null ? "" : us >= 1e6 ? (us / 1e6).toPrecision(3) + " s" : us >= 1e3 ? (us / 1e3).toPrecision(3) + " ms" : us.toFixed(0) + " us";
const count = (n) => n == null ? "" : n >= 1e6 ? (n / 1e6).toPrecision(3) + "M" : n >= 1e4 ? (n / 1e3).toPrecision(3) + "k" : Math.round(n);
const axis = (show, size) => ({ stroke: ink, size: size || 50, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, values: show && ((u, v) => v.map(show)) });
// There is no half of an error.
const whole = [1, 10, 100, 1e3, 1e4, 1e5, 1e6].flatMap((n) => [n, 2 * n, 5 * n]);
const plots = [];

function draw(id, x, columns, show, options) {
  const series = [{ label: options.x, value: (u, v) => v == null ? "" : options.name ? options.name(v) : v }];
  columns.forEach((c, i) => series.push({ label: c[0], stroke: c[3] || colors[i], width: 2, value: (u, v) => show(v), points: { show: x.length < 40 } }));
  plots.push(new uPlot({
    width: width(), height: 220, series, cursor: { y: false }, legend: { live: true },
    scales: { x: { time: false }, y: { distr: options.log ? 3 : 1, range: options.log ? undefined : (u, min, max) => [0, Math.max(max * 1.08, 1)] } },
    axes: [axis(options.name, 34), { ...axis(show, 62), ...(options.whole ? { incrs: whole } : {}) }],
  }, [x, ...columns.map((c) => c[1])], document.getElementById(id)));
}

const seconds = run.series.map((s) => s.second);
const column = (name) => run.series.map((s) => s[name]);
draw("rate", seconds, [["requests/s", column("rps")]], count, { x: "second" });
draw("latency", seconds, [["p50", column("p50_us")], ["p90", column("p90_us")], ["p99", column("p99_us")], ["max", column("max_us")]].map((c) => [c[0], c[1].map((v) => v || null)]), ms, { x: "second", log: true });
const l = run.latency_us;
const points = [["p50", l.p50], ["p75", l.p75], ["p90", l.p90], ["p95", l.p95], ["p99", l.p99], ["p99.9", l.p99_9], ["p99.99", l.p99_99], ["max", l.max]];
draw("percentiles", points.map((_, i) => i), [["latency", points.map((p) => p[1] || null)]], ms, { x: "percentile", log: true, name: (i) => (points[i] || [""])[0] });
draw("errors", seconds, [["errors/s", column("errors"), 0, colors[2]]], count, { x: "second", whole: true });
addEventListener("resize", () => plots.forEach((p) => p.setSize({ width: width(), height: 220 })));
document.documentElement.dataset.drawn = plots.length;
document.documentElement.dataset.over = document.documentElement.scrollWidth - innerWidth;
