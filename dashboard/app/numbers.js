// What the API says now, and what that is a second. Counters that went back (a restart, a reset) begin anew.

const path = document.body.dataset.api.replace(/\/$/, "");

/** One endpoint; undefined where there is none. */
async function ask(endpoint) {
  const response = await fetch(`${path}/9/${endpoint}`, { cache: "no-store" });
  if (response.status === 404) return undefined;
  if (!response.ok) throw new Error(`${endpoint}: ${response.status}`);
  return response.json();
}

/** A change; the error is the API's text. */
async function change(method, endpoint, body) {
  const response = await fetch(`${path}/9/${endpoint}`, {
    method,
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  if (!response.ok) {
    const said = await response.json().catch(() => ({}));
    throw new Error(said.error?.text ?? `status ${response.status}`);
  }
}

const ENDPOINTS = {
  totals: "ironweir/totals", latency: "ironweir/latency", threads: "ironweir/threads", listeners: "ironweir/listeners",
  guards: "ironweir/guards", bans: "ironweir/bans", shed: "ironweir/shed", rules: "ironweir/modsecurity",
  refusals: "ironweir/refusals",
  why: "ironweir/why", memory: "ironweir/memory", certificates: "ironweir/certificates", l4: "ironweir/l4", connections: "connections", ssl: "ssl",
  requestLimits: "http/limit_reqs", connectionLimits: "http/limit_conns", streamLimits: "stream/limit_conns",
  streams: "stream/server_zones", servers: "http/server_zones", locations: "http/location_zones", caches: "http/caches",
  http: "http/upstreams", stream: "stream/upstreams",
};
/** Those of them that this server has: `stream` is there only with a block of it. */
let known = [];

/** Finds out which endpoints there are. */
async function discover() {
  const [top = [], http = [], own = []] = await Promise.all([ask(""), ask("http"), ask("ironweir")]);
  const stream = top.includes("stream") ? await ask("stream") : [];
  const all = new Set([...top, ...http.map((n) => `http/${n}`), ...own.map((n) => `ironweir/${n}`), ...stream.map((n) => `stream/${n}`)]);
  known = Object.entries(ENDPOINTS).filter(([, endpoint]) => all.has(endpoint));
}

/** Everything that is shown, and when it was asked. */
async function look() {
  const now = performance.now();
  const answers = await Promise.all(known.map(([, endpoint]) => ask(endpoint)));
  const all = { at: now };
  known.forEach(([name], i) => (all[name] = answers[i]));
  return all;
}

/** How much a number grew a second between two looks. */
function rate(before, now, of) {
  if (!before) return 0;
  const grown = (of(now) ?? 0) - (of(before) ?? 0);
  const seconds = (now.at - before.at) / 1000;
  return grown < 0 || seconds <= 0 ? 0 : grown / seconds;
}

/** Quantiles of what was added to a histogram between two looks; undefined without any. */
function quantiles(before, now, parts) {
  const steps = Object.entries(now ?? {})
    .map(([top, n]) => [Number(top), Math.max(0, n - (before?.[top] ?? 0))])
    .sort((a, b) => a[0] - b[0]);
  const total = steps.reduce((sum, [, n]) => sum + n, 0);
  return parts.map((part) => {
    if (total === 0) return undefined;
    let seen = 0;
    return steps.find(([, n]) => (seen += n) >= Math.max(1, Math.ceil(total * part)))?.[0];
  });
}
