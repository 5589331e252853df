// Elements made of numbers. All text goes in as text: names of zones and reasons are others' words.

const element = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== undefined));
  return made;
};
const byId = (id) => document.getElementById(id);

const tile = (label, value, note, bad) =>
  element("div", {}, element("dt", {}, label), element("dd", { class: bad ? "bad" : undefined }, value, note ? element("small", {}, note) : undefined));

/** `isShare`: of others, so a full one is nothing to worry about. */
const meter = (part, label, isShare) => {
  const width = Math.max(0, Math.min(100, part));
  const inside = element("i");
  inside.style.width = `${width}%`;
  return element("span", { class: `meter ${isShare || width <= 60 ? "" : width > 90 ? "bad" : "warn"}`, role: "img", "aria-label": label }, inside);
};

/** A table; columns are [title, cell of a row, is a number]. On a narrow page each row is a card. */
const table = (columns, rows) => {
  const head = columns.map(([title, , number]) => element("th", { scope: "col", class: number ? "n" : undefined }, title));
  const line = (row) =>
    element("tr", {}, ...columns.map(([title, cell, number], i) => {
      const content = cell(row);
      const list = Array.isArray(content) ? content : [content];
      return element("td", { class: i === 0 ? "name" : number ? "n" : undefined, "data-label": i === 0 ? undefined : title }, ...list);
    }));
  return element("div", { class: "scroll" }, element("table", { class: "stack" },
    element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows.map(line))));
};

/** Replaces what a section shows, keeping what is being typed and where the keyboard is. Nothing to show: no section. */
function show(section, ...children) {
  const place = byId(section);
  const body = place.querySelector(".body");
  const held = body.contains(document.activeElement) ? document.activeElement : undefined;
  if (held?.tagName === "INPUT" && held.dataset.touched) return;
  const key = held?.dataset.key;
  place.hidden = children.length === 0;
  body.replaceChildren(...children);
  if (key) body.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

/** How states are coloured. */
const STATES = { up: "ok", draining: "warn", down: "", checking: "warn", unavail: "bad", unhealthy: "bad" };
const stateBadge = (peer) =>
  [element("span", { class: `badge ${STATES[peer.state] ?? ""}` }, peer.drained ? "drained" : peer.state), peer.reason ? element("div", { class: "reason" }, peer.reason) : undefined];
