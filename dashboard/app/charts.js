// Curves of the last minutes (uPlot).

/** Seconds that are shown. */
const KEPT_S = 3600;
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

class Curve {
  /** `series`: [label, colour variable] each; `format`: of a value. */
  constructor(place, series, format) {
    Object.assign(this, { place: byId(place), series, format });
    this.data = [[], ...series.map(() => [])];
    this.draw();
    new ResizeObserver(() => this.plot.setSize(this.size())).observe(this.place);
  }

  size() {
    return { width: Math.max(200, this.place.clientWidth), height: 160 };
  }

  /** Anew: colours are those of the theme. */
  draw() {
    this.plot?.destroy();
    const axis = { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const lines = this.series.map(([label, name], i) => ({
      label, stroke: color(name), width: 1.5, fill: i === 0 ? `${color(name)}22` : undefined,
      value: (_, v) => (v == null ? "–" : this.format(v)), spanGaps: false, points: { show: false },
    }));
    this.plot = new uPlot({
      ...this.size(),
      series: [{ value: (_, v) => (v == null ? "" : new Date(v * 1000).toLocaleTimeString()) }, ...lines],
      axes: [{ ...axis, space: 80, values: (_, all) => all.map((v) => new Date(v * 1000).toLocaleTimeString([], { hour12: false })) }, { ...axis, size: 46, values: (_, all) => all.map((v) => this.format(v)) }],
      scales: { y: { range: (_, low, high) => [0, Math.max(high ?? 0, 1) * 1.1] } },
      cursor: { points: { size: 5 } },
    }, this.data, this.place);
    this.showLatest();
  }

  push(values, at = Date.now() / 1000) {
    this.data.forEach((column, i) => column.push((i === 0 ? at : values[i - 1]) ?? null));
    while (this.data[0][0] < at - KEPT_S) this.data.forEach((column) => column.shift());
    this.plot.setData(this.data);
    this.showLatest();
  }

  /** Nothing is known of now. */
  gap() {
    this.push([]);
  }

  /** Below the curves stand the numbers under the pointer, or else the latest. */
  showLatest() {
    if (this.plot.cursor.idx == null) this.plot.setLegend({ idx: this.data[0].length - 1 }, false);
  }
}
