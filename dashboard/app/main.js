// The page: looks once a second, shows what changed, and does what is clicked where write access is on.

const PAUSE_MS = 1000;
let before;
let paused = false;
let write = false;

const charts = {
  rate: new Curve("chart-rate", [["answers", "--one"], ["4xx", "--two"], ["5xx", "--bad"]], perSecond),
  latency: new Curve("chart-latency", [["p50", "--one"], ["p90", "--three"], ["p99", "--two"]], (ms) => (ms >= 1000 ? `${(ms / 1000).toFixed(1)}s` : String(Math.round(ms)))),
  connections: new Curve("chart-connections", [["writing", "--one"], ["idle", "--three"], ["reading", "--two"]], count),
};

const filter = byId("filter");
const isWanted = (name) => name.toLowerCase().includes(filter.value.trim().toLowerCase());
const named = (all) => Object.entries(all ?? {}).filter(([name]) => isWanted(name)).map(([name, value]) => ({ name, ...value }));

function showNow(all) {
  const of = (what) => rate(before, all, (look) => what(look));
  const classes = (name) => of((look) => look.totals?.responses[name]);
  const [requests, client, server] = [of((l) => l.totals?.responses.total), classes("4xx"), classes("5xx")];
  const [p50, p90, p99] = quantiles(before?.latency?.steps_ms, all.latency?.steps_ms, [0.5, 0.9, 0.99]);
  const { reading, writing, idle } = all.totals.connections;
  const failed = of((l) => l.ssl?.handshakes_failed);
  byId("tiles").replaceChildren(
    tile("answers a second", perSecond(requests), `${count(all.totals.responses.total)} in all`),
    tile("latency p50", milliseconds(p50), `p90 ${milliseconds(p90)} · p99 ${milliseconds(p99)}`),
    tile("5xx a second", perSecond(server), `4xx ${perSecond(client)}`, server > 0),
    tile("connections", count(reading + writing + idle), `${count(writing)} writing · ${count(idle)} idle`),
    tile("accepted a second", perSecond(of((l) => l.connections?.accepted)), `${count(all.connections?.dropped ?? 0)} dropped`, of((l) => l.connections?.dropped) > 0),
    tile("TLS handshakes a second", perSecond(of((l) => l.ssl?.handshakes)), `${perSecond(failed)} failed`, failed > 0),
    tile("out a second", bytes(of((l) => l.totals?.sent)), `in ${bytes(of((l) => l.totals?.received))}`),
  );
  // A look out of turn (a click, the filter) is no point of the curves: over so short a time any number is a peak.
  if (!before || all.at - before.at < PAUSE_MS / 2) return;
  charts.rate.push([requests, client, server]);
  charts.latency.push([p50, p90, p99]);
  charts.connections.push([writing, idle, reading]);
}

/** The order of a request's life, and how people call its parts. */
const PARTS = { accept: "waits to be accepted", tls: "TLS handshake", head: "rest of the head", body: "request body", own: "server", queue: "queue", connect: "connect", first_byte: "first byte", answer: "upstream's answer", client: "client takes it" };

function showWhy(all) {
  const { sentence, finding, others = [], parts_us: parts = {} } = all.why ?? {};
  if (!sentence) return show("why");
  const said = element("p", { class: finding ? "finding bad" : "finding" }, sentence);
  const evidence = [finding, ...others].filter(Boolean).map((f) =>
    element("li", {}, element("span", { class: `badge ${f.weight === "critical" ? "bad" : "warn"}` }, f.weight), ` ${f.what} `, element("span", { class: "soft" }, f.evidence.map((e) => `${e.what} (${e.from})`).join("; ")), ...f.cure.map((c) => element("div", { class: "soft" }, `→ ${c}`))));
  const whole = Object.values(parts).reduce((sum, us) => sum + us, 0);
  const spent = Object.entries(PARTS).filter(([name]) => parts[name] > 0);
  const columns = [
    [`a request takes ${microseconds(Math.round(whole))}`, ([, meaning]) => meaning],
    ["", ([name]) => meter((parts[name] / whole) * 100, `${percent((parts[name] / whole) * 100)} of the time`, true)],
    ["share", ([name]) => percent((parts[name] / whole) * 100), true],
    ["time", ([name]) => microseconds(Math.round(parts[name])), true],
  ];
  show("why", said, ...(evidence.length ? [element("ul", { class: "findings" }, ...evidence)] : []), ...(whole > 0 ? [table(columns, spent)] : []));
}

/** Curves begin with the hour that the server has kept. */
async function showHistory() {
  const history = await ask("ironweir/history");
  for (const sample of history?.samples ?? []) {
    const at = Date.parse(sample.time) / 1000;
    charts.rate.push(sample.answers.map((n) => (n * 1000) / sample.span_ms), at);
    charts.latency.push(sample.latency_ms, at);
    charts.connections.push(sample.connections, at);
  }
}

function showThreads(all) {
  const list = all.threads?.threads ?? [];
  const was = (look, id) => look.threads?.threads.find((t) => t.id === id);
  const rates = list.map((t) => rate(before, all, (look) => was(look, t.id)?.requests));
  const most = Math.max(...rates, 1);
  const share = (t, what) => rate(before, all, (look) => was(look, t.id)?.[what]) / 1e7;
  const columns = [
    ["thread", (t) => `worker ${t.id}`],
    ["requests/s", (t) => [meter((rates[list.indexOf(t)] / most) * 100, "share of the busiest", true), ` ${perSecond(rates[list.indexOf(t)])}`], true],
    ["connections", (t) => count(t.connections), true],
    ["CPU", (t) => [meter(share(t, "running_ns"), "CPU"), ` ${percent(share(t, "running_ns"))}`], true],
    ["waits for CPU", (t) => percent(share(t, "waiting_ns")), true],
    ["loop delay p50", (t) => microseconds(quantiles(was(before ?? {}, t.id)?.turns_us.steps, t.turns_us.steps, [0.5])[0]), true],
    ["p99", (t) => microseconds(quantiles(was(before ?? {}, t.id)?.turns_us.steps, t.turns_us.steps, [0.99])[0]), true],
  ];
  show("threads", table(columns, list));
}

/** Connections wait in a queue; of datagrams the kernel counts bytes. */
const inQueue = (listener, n) => (listener.kind === "stream" ? count(n) : bytes(n));

function showListeners(all) {
  const list = (all.listeners?.listeners ?? []).filter((l) => isWanted(l.address));
  const was = (look, l) => look.listeners?.listeners.find((o) => o.address === l.address && o.kind === l.kind);
  const columns = [
    ["address", (l) => [l.address, element("span", { class: "soft" }, l.kind === "stream" ? " TCP" : " UDP, QUIC")]],
    ["accepted/s", (l) => perSecond(rate(before, all, (look) => was(look, l)?.accepted)), true],
    ["queue", (l) => (l.limit === undefined ? "not told" : [meter(l.fullest, "the fullest queue"), ` ${inQueue(l, l.waiting)} of ${inQueue(l, l.limit)}`]), true],
    ["sockets", (l) => String(l.sockets), true],
    ["dropped", (l) => (l.drops === undefined ? "–" : count(l.drops)), true],
  ];
  const { overflows, drops } = all.listeners?.namespace ?? {};
  const whole = overflows === undefined ? undefined : element("p", { class: "soft" }, `All listeners of this machine or container since its start: ${count(overflows)} full queues, ${count(drops)} dropped.`);
  show("listeners", ...(list.length ? [table(columns, list)] : []), ...(whole ? [whole] : []));
}

/** What went wrong with a peer, by its key, and which peers are asked about again before they go down. */
const wrong = new Map();
const asked = new Map();
const ASK_MS = 5000;

async function apply(key, control, work) {
  // Not disabled meanwhile: that would take the keyboard away from it.
  if (control.ariaBusy === "true") return;
  control.ariaBusy = "true";
  try {
    await work();
    wrong.delete(key);
  } catch (error) {
    wrong.set(key, error.message);
  } finally {
    control.ariaBusy = "false";
    await refresh(false).catch(() => {});
  }
}

/** Down takes a second click: the first one may have been meant for another button. */
function takeDown(key, control, work) {
  if (performance.now() - (asked.get(key) ?? -ASK_MS) < ASK_MS) {
    asked.delete(key);
    return apply(key, control, work);
  }
  asked.set(key, performance.now());
  return refresh(false).catch(() => {});
}

function actions(plane, group, peer) {
  const endpoint = `${plane}/upstreams/${encodeURIComponent(group)}/servers/${peer.id}`;
  const key = `${plane} ${group} ${peer.id}`;
  const drains = peer.state === "draining";
  const isDown = peer.state === "down";
  const patch = (body) => (event) => apply(key, event.currentTarget, () => change("PATCH", endpoint, body));
  const isAsked = !isDown && performance.now() - (asked.get(key) ?? -ASK_MS) < ASK_MS;
  const weight = element("input", {
    type: "number", min: 1, value: peer.weight, "aria-label": `weight of ${peer.server}`, "data-key": `${key} weight`,
    oninput: (event) => (event.target.dataset.touched = "yes"),
    onblur: (event) => delete event.target.dataset.touched,
    onchange: (event) => {
      delete event.target.dataset.touched;
      apply(key, event.target, () => change("PATCH", endpoint, { weight: Number(event.target.value) }));
    },
  });
  const drain = plane === "http" && element("button", { type: "button", "data-key": `${key} drain`, onclick: patch({ drain: !drains }) }, drains ? "Take back" : "Drain");
  const down = element("button", { type: "button", "data-key": `${key} down`, class: isAsked ? "bad" : undefined, onclick: isDown ? patch({ down: false }) : (event) => takeDown(key, event.currentTarget, () => change("PATCH", endpoint, { down: true })) }, isDown ? "Up" : isAsked ? "Really down?" : "Down");
  const failed = wrong.get(key);
  return [weight, " ", ...(drain ? [drain, " "] : []), down, failed && element("div", { class: "reason", role: "alert" }, failed)].filter(Boolean);
}

/** What concerns a group as a whole. */
function groupFacts(group) {
  const facts = [];
  if (group.skew !== undefined && group.peers.length > 1) facts.push(`busiest peer ${group.skew.toFixed(1)} times the mean`);
  if (group.queue) facts.push(`${count(group.queue.size)} of ${count(group.queue.max_size)} in its queue, ${count(group.queue.overflows)} turned away`);
  return facts.length ? element("span", { class: "soft" }, ` ${facts.join("; ")}`) : undefined;
}

function showUpstreams(all) {
  const blocks = [];
  for (const [plane, groups] of [["http", all.http], ["stream", all.stream]]) {
    for (const [name, group] of Object.entries(groups ?? {})) {
      const peers = group.peers.filter((p) => isWanted(name) || isWanted(p.server) || isWanted(p.name));
      if (peers.length === 0 && !isWanted(name)) continue;
      const was = (look, peer) => look[plane]?.[name]?.peers.find((p) => p.id === peer.id);
      const grown = (peer, of) => rate(before, all, (look) => { const p = was(look, peer); return p && of(p); });
      const columns = [
        ["peer", (p) => [p.server, p.backup ? element("span", { class: "soft" }, " backup") : undefined]],
        ["state", (p) => [...stateBadge(p), p.state === "up" || !p.downtime ? undefined : element("div", { class: "soft" }, `out ${duration(p.downtime)} in all`)]],
        [plane === "http" ? "requests/s" : "connections/s", (p) => perSecond(grown(p, (q) => q.requests ?? q.connections)), true],
        ["5xx/s", (p) => perSecond(grown(p, (q) => q.responses?.["5xx"])), true],
        ["in use", (p) => count(p.active) + (p.max_conns ? ` of ${count(p.max_conns)}` : ""), true],
        ["header", (p) => microseconds(p.header_time_us ?? p.first_byte_time_us), true],
        ["fails", (p) => count(p.fails), true],
        ["checks", (p) => (p.health_checks.checks ? `${count(p.health_checks.checks - p.health_checks.fails)} of ${count(p.health_checks.checks)}` : "none"), true],
        write ? ["weight, role", (p) => actions(plane, name, p)] : ["weight", (p) => String(p.weight), true],
      ];
      // Always in the same order: who is about to click must not find another row there.
      peers.sort((a, b) => a.id - b.id);
      const up = group.peers.filter((p) => p.state === "up").length;
      const title = element("h3", {}, `${plane === "stream" ? "stream " : ""}${name} `, element("span", { class: `badge ${up === group.peers.length ? "ok" : up ? "warn" : "bad"}` }, `${up} of ${group.peers.length} up`), groupFacts(group));
      blocks.push(title, table(columns, peers));
    }
  }
  show("upstreams", ...blocks);
}

/** Servers of stream whose packets the kernel balances: each with its real servers, and how large the packets are. */
function showKernel(all) {
  const services = (all.l4?.services ?? []).filter((s) => isWanted(s.address) || isWanted(s.upstream ?? "") || s.servers.some((r) => isWanted(r.server)));
  const was = (look, service) => look.l4?.services.find((s) => s.address === service.address && s.protocol === service.protocol);
  const blocks = [];
  if (all.l4?.problem) blocks.push(element("p", { class: "trouble" }, all.l4.problem));
  for (const service of services) {
    const grown = (real, of) => rate(before, all, (look) => { const found = was(look, service)?.servers.find((r) => r.server === real.server); return found && of(found); });
    const columns = [
      ["server", (r) => r.server],
      ["state", (r) => element("span", { class: `badge ${r.state === "up" ? "ok" : r.state === "reset" ? "bad" : "warn"}` }, r.full ? "queue full" : r.state)],
      ["weight", (r) => String(r.weight), true],
      ["flows", (r) => count(r.active), true],
      ["flows/s", (r) => perSecond(grown(r, (q) => q.flows)), true],
      ["packets in/s", (r) => perSecond(grown(r, (q) => q.packets_in)), true],
      ["packets out/s", (r) => perSecond(grown(r, (q) => q.packets_out)), true],
      ["bits in/s", (r) => bits(grown(r, (q) => q.bytes_in)), true],
      ["bits out/s", (r) => bits(grown(r, (q) => q.bytes_out)), true],
    ];
    const packets = Object.values(service.sizes).reduce((sum, n) => sum + n, 0);
    const sizes = Object.entries(service.sizes).filter(([, n]) => n > 0).map(([bound, n]) => `${bound === "more" ? "larger" : `below ${bound.slice(1)}`} ${percent((n / packets) * 100)}`);
    const way = service.path === "kernel" ? `${service.mode}, ${service.scheduler}` : "by the ordinary proxy";
    blocks.push(element("h3", {}, `${service.address} ${service.protocol} `, element("span", { class: `badge ${service.path === "kernel" ? "ok" : "warn"}` }, way)));
    if (service.servers.length) blocks.push(table(columns, service.servers));
    if (sizes.length) blocks.push(element("p", { class: "soft" }, `Packets by bytes of their frame: ${sizes.join(", ")}.`));
  }
  show("l4", ...blocks);
}

function showZones(all) {
  const of = (key, zone, what) => rate(before, all, (look) => what(look[key]?.[zone.name] ?? {}));
  const columns = (key) => [
    [{ servers: "server", locations: "location", streams: "stream" }[key], (z) => z.name],
    [key === "streams" ? "sessions/s" : "requests/s", (z) => perSecond(of(key, z, (v) => v.requests ?? v.connections)), true],
    ["now", (z) => (z.processing === undefined ? "" : count(z.processing)), true],
    ["4xx/s", (z) => perSecond(of(key, z, (v) => (v.responses ?? v.sessions)?.["4xx"])), true],
    ["5xx/s", (z) => perSecond(of(key, z, (v) => (v.responses ?? v.sessions)?.["5xx"])), true],
    ["unanswered", (z) => count(z.discarded), true],
    ["out/s", (z) => bytes(of(key, z, (v) => v.sent)), true],
  ];
  const blocks = ["servers", "locations", "streams"].filter((key) => named(all[key]).length).map((key) => table(columns(key), named(all[key])));
  show("zones", ...blocks);
}

function showCaches(all) {
  const parts = ["hit", "stale", "updating", "revalidated", "miss", "expired", "bypass"];
  const sum = (cache, names) => names.reduce((total, name) => total + cache[name].responses, 0);
  const columns = [
    ["cache", (c) => c.name],
    ["size", (c) => bytes(c.size) + (c.max_size ? ` of ${bytes(c.max_size)}` : ""), true],
    ["from the cache", (c) => (sum(c, parts) ? percent((sum(c, parts.slice(0, 4)) / sum(c, parts)) * 100) : "–"), true],
    ["hits/s", (c) => perSecond(rate(before, all, (look) => look.caches?.[c.name]?.hit.responses)), true],
    ["misses/s", (c) => perSecond(rate(before, all, (look) => look.caches?.[c.name]?.miss.responses)), true],
    ["", (c) => (c.cold ? "still loading" : "")],
  ];
  const list = named(all.caches);
  show("caches", ...(list.length ? [table(columns, list)] : []));
}

function showLimits(all) {
  const kinds = [["requests", "requestLimits"], ["connections", "connectionLimits"], ["stream connections", "streamLimits"]];
  const list = kinds.flatMap(([kind, key]) => named(all[key]).map((zone) => ({ ...zone, kind, key })));
  const of = (zone, what) => rate(before, all, (look) => look[zone.key]?.[zone.name]?.[what]);
  const columns = [
    ["zone", (z) => z.name],
    ["of", (z) => z.kind],
    ["passed/s", (z) => perSecond(of(z, "passed")), true],
    ["delayed/s", (z) => (z.delayed === undefined ? "–" : perSecond(of(z, "delayed"))), true],
    ["rejected/s", (z) => perSecond(of(z, "rejected")), true],
    ["rejected", (z) => count(z.rejected), true],
  ];
  show("limits", ...(list.length ? [table(columns, list)] : []));
}

const refusalColumns = [
  ["refused request", (r) => element("span", { class: "soft" }, r.id)],
  ["when", (r) => new Date(r.time).toLocaleTimeString()],
  ["client", (r) => r.client],
  ["request", (r) => r.request],
  ["status", (r) => String(r.status), true],
  ["why", (r) => r.why],
];

/** Asks why a request was refused, by the id that its page has shown. It outlives looks, so that what is typed and found stays. */
const whyRefused = (() => {
  const found = element("div", {});
  const input = element("input", { "data-key": "refusal", placeholder: "id of a refused request", "aria-label": "id of a refused request", size: 34 });
  input.addEventListener("input", () => (input.dataset.touched = "true"));
  input.addEventListener("blur", () => delete input.dataset.touched);
  const form = element("form", {}, input, element("button", {}, "Why?"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const id = input.value.trim();
    if (!id) return;
    try {
      const refusal = await ask(`ironweir/refusals/${encodeURIComponent(id)}`);
      found.replaceChildren(refusal ? table(refusalColumns, [refusal]) : element("p", { class: "soft" }, "Not among the last refusals: look for it in the audit log and the error log."));
    } catch (error) {
      found.replaceChildren(element("p", { class: "soft" }, String(error.message)));
    }
  });
  return element("div", { id: "why-refused" }, form, found);
})();

/** Guards with what they did, who talks most, rules that match most, what was refused and why, bans, and upstreams whose load is limited. */
function showShield(all) {
  const blocks = [];
  const of = (guard, what) => rate(before, all, (look) => look.guards?.[guard.name]?.[what]);
  const guards = named(all.guards);
  const actions = ["requests", "challenged", "refused", "closed", "from_banned", "proved"];
  if (guards.length) {
    blocks.push(table([
      ["guard", (g) => [g.name, g.under_attack ? element("span", { class: "badge bad" }, "under attack") : undefined]],
      ...actions.map((what) => [`${what.replace("_", " ")}/s`, (g) => perSecond(of(g, what)), true]),
      ["banned", (g) => count(g.banned), true],
    ], guards));
    const rows = (kind) => guards.flatMap((g) => Object.entries(g[kind] ?? {}).map(([name, n]) => ({ guard: g.name, name, n }))).filter((r) => r.n > 0).sort((a, b) => b.n - a.n).slice(0, 10);
    for (const [kind, title] of [["limits", "limit that was exceeded"], ["addresses", "top talker"], ["urls", "most wanted page"]]) {
      const list = rows(kind);
      if (list.length) blocks.push(table([[title, (r) => r.name], ["guard", (r) => r.guard], [kind === "limits" ? "requests" : "weight", (r) => count(r.n), true]], list));
    }
  }
  const rules = Object.entries(all.rules?.rules ?? {}).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]).slice(0, 10);
  if (rules.length) blocks.push(table([
    ["top rule", ([id]) => id],
    ["matches/s", ([id]) => perSecond(rate(before, all, (look) => look.rules?.rules?.[id])), true],
    ["matches", ([, n]) => count(n), true],
  ], rules));
  const refusals = all.refusals ?? [];
  if (refusals.length) blocks.push(whyRefused, table(refusalColumns, refusals.slice(0, 10)));
  const bans = named(all.bans).slice(0, 50);
  if (bans.length) blocks.push(table([["banned address", (b) => b.name], ["why", (b) => b.reason], ["left", (b) => duration(b.seconds_left * 1000), true]], bans));
  const groups = named(all.shed?.upstreams);
  if (groups.length) blocks.push(table([
    ["upstream", (u) => u.name],
    ["under way", (u) => (u.limit === undefined ? "–" : `${count(u.under_way)} of ${count(u.limit)}`), true],
    ["shed/s", (u) => perSecond(rate(before, all, (look) => look.shed?.upstreams[u.name]?.refused)), true],
    ["breaker", (u) => (u.breaker ? element("span", { class: `badge ${u.breaker === "closed" ? "ok" : "bad"}` }, u.breaker.replace("_", " ")) : "–")],
  ], groups));
  const facts = [];
  if (all.shed?.slow_clients) facts.push(`${count(all.shed.slow_clients)} clients below their least rate`);
  if (all.shed?.closed_at_accept) facts.push(`${count(all.shed.closed_at_accept)} connections of banned addresses closed`);
  if (facts.length) blocks.push(element("p", { class: "soft" }, facts.join("; ")));
  show("shield", ...blocks);
}

function showMemory(all) {
  const { connections, each, fits } = all.memory ?? {};
  const list = Object.entries(connections?.parked ?? {}).filter(([, k]) => k.count > 0);
  const columns = [
    ["kind", ([name]) => name.replace("_", "-")],
    ["connections", ([, k]) => count(k.count), true],
    ["server's memory each", ([, k]) => bytes(k.user_bytes / k.count), true],
    ["kernel's memory each", () => bytes(each.kernel_bytes), true],
    ["together", ([, k]) => bytes(k.user_bytes + k.count * each.kernel_bytes), true],
  ];
  const more = () => element("p", { class: "soft" }, `${count(fits.parked_more)} more fit, then ${fits.parked_ends_by.replaceAll("_", " ")} ends`);
  show("memory", ...(list.length ? [table(columns, list), more()] : []));
}

function showCertificates(all) {
  const hosts = (c) => c.hosts.join(", ") || "no host";
  const list = (all.certificates?.certificates ?? []).filter((c) => isWanted(c.name) || c.hosts.some(isWanted));
  const days = (c) => (Date.parse(c.not_after) - Date.now()) / 86400000;
  const columns = [
    ["for", hosts],
    ["certificate", (c) => element("span", { class: "soft" }, c.name)],
    ["ends", (c) => new Date(c.not_after).toLocaleString()],
    ["days left", (c) => element("span", { class: `badge ${days(c) < 3 ? "bad" : days(c) < 21 ? "warn" : "ok"}` }, days(c) < 0 ? "ended" : String(Math.floor(days(c)))), true],
  ];
  show("certificates", ...(list.length ? [table(columns, list.sort((a, b) => days(a) - days(b)))] : []));
}

function tell(text) {
  byId("trouble").hidden = !text;
  byId("trouble").textContent = text;
}

function setState(text, kind) {
  byId("state").textContent = text;
  byId("state").className = `badge ${kind}`;
}

/** How a look went, unless the page was paused while it was under way. */
function setLook(text, kind) {
  if (paused) before = undefined;
  else setState(text, kind);
}

/** `isTurn`: not in between, so that the next one is measured from here. */
async function refresh(isTurn = true) {
  const all = await look();
  showNow(all);
  showWhy(all);
  showUpstreams(all);
  showListeners(all);
  showThreads(all);
  showKernel(all);
  showZones(all);
  showCaches(all);
  showLimits(all);
  showShield(all);
  showMemory(all);
  showCertificates(all);
  if (isTurn || !before) before = all;
}

async function about() {
  const [nginx, access] = await Promise.all([ask("nginx"), ask("ironweir/access"), discover()]);
  if (!nginx) throw new Error(`There is no API at ${path}: is there a location with "api" at this address?`);
  write = access?.write ?? false;
  byId("version").textContent = `${nginx.build.replace("ironweir-", "")} · nginx ${nginx.version} · ${nginx.address}`;
  byId("load").textContent = `Configuration ${nginx.generation}, loaded ${new Date(nginx.load_timestamp).toLocaleString()}. Write access is ${write ? "on" : "off"}.`;
}

/** Nobody answers: that is said so that nobody takes old numbers for new ones, and the curves have a gap. */
let goneSince;
function setGone(isGone) {
  if (isGone) {
    goneSince ??= new Date();
    Object.values(charts).forEach((chart) => chart.gap());
  } else goneSince = undefined;
  const place = byId("gone");
  place.hidden = !isGone;
  const text = isGone ? `No answer since ${goneSince.toLocaleTimeString()}. What stands below is old.` : "";
  if (place.textContent !== text) place.textContent = text;
  document.body.classList.toggle("old", isGone);
}

let round = 0;
async function turn() {
  if (!paused && !document.hidden) {
    try {
      if (round % 10 === 0) await about();
      if (round++ === 0) await showHistory();
      await refresh();
      setGone(false);
      setLook("live", "ok");
    } catch (error) {
      setLook("no answer", "bad");
      before = undefined;
      if (error instanceof TypeError) setGone(true);
      else tell(error.message);
    }
  }
  setTimeout(turn, PAUSE_MS);
}

function setPaused(value) {
  paused = value;
  byId("pause").setAttribute("aria-pressed", String(paused));
  if (paused) setState("paused", "warn");
  before = paused ? undefined : before;
}

function nextTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  redraw();
}

function redraw() {
  Object.values(charts).forEach((chart) => chart.draw());
}

byId("pause").addEventListener("click", () => setPaused(!paused));
byId("theme").addEventListener("click", nextTheme);
// Who leaves the theme to the system may see it change at dusk.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
filter.addEventListener("input", () => before && refresh(false).catch((error) => tell(error.message)));
document.addEventListener("keydown", (event) => {
  if (event.target.tagName === "INPUT") {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const known = { "/": () => filter.focus(), p: () => setPaused(!paused), t: nextTheme };
  if (known[event.key]) {
    event.preventDefault();
    known[event.key]();
  }
});
turn();
