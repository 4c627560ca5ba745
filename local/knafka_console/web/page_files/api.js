// The server: its state as it changes, and what is asked of it. Rates are made here, of counts.

const WINDOW = 5_000; // milliseconds that a rate is the mean of
const WAIT = 15; // seconds that the server may take to answer if nothing changes
const PAUSE = 1_000; // milliseconds between two answers, at least
const AGAIN = 2_000; // and after a failure

class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function call(path, options = {}) {
  const response = await fetch(path, { cache: "no-store", ...options });
  if (response.ok || response.status === 304) return response;
  let problem = `${response.status} ${response.statusText}`;
  try {
    problem = (await response.json()).error ?? problem;
  } catch { /* no JSON: a gateway's answer */ }
  throw new Refused(problem, response.status);
}

const get = async (path) => (await call(path)).json();

const post = async (path, body, type = "application/json") =>
  (await call(path, { method: "POST", body, headers: { "content-type": type, "knafka-console": "1" } })).json();

const nameOf = (each) => `${each.namespace}/${each.name}`;
const keyOf = (each) => `${each.kind} ${nameOf(each)}`;
// Where a Trigger or Subscription gets its events from: the key of a Broker or KafkaChannel.
const kindOfBroker = (trigger) => (trigger.kind === "Subscription" ? "KafkaChannel" : "Broker");
const keyOfBroker = (trigger) => `${kindOfBroker(trigger)} ${trigger.namespace}/${trigger.broker}`;
const pathOf = (trigger) =>
  `api/${trigger.kind === "Subscription" ? "subscriptions" : "triggers"}/${encodeURIComponent(trigger.namespace)}/${encodeURIComponent(trigger.name)}`;

const samples = new Map(); // key of an object -> [[milliseconds, its counts]], the oldest first

// A count stands until the next answer says otherwise: the rate is over the last WINDOW, whenever
// the answers came.
function keepSample(key, counts, now) {
  const kept = samples.get(key) ?? [];
  if (kept.length && counts.some((count, index) => count < kept.at(-1)[1][index])) kept.length = 0; // begun anew
  kept.push([now, counts]);
  while (kept.length > 1 && kept[1][0] <= now - WINDOW) kept.shift();
  samples.set(key, kept);
}

function rateOf(key, index, now = performance.now()) {
  const kept = samples.get(key);
  if (kept == null || kept.length < 2) return 0;
  const from = now - WINDOW;
  const base = kept.findLast(([time]) => time <= from) ?? kept[0];
  return (1000 * (kept.at(-1)[1][index] - base[1][index])) / Math.max(1000, now - Math.max(base[0], from));
}

function keepSamples(state, now) {
  for (const broker of state.brokers) keepSample(keyOf(broker), [broker.accepted], now);
  for (const trigger of state.triggers) {
    keepSample(keyOf(trigger), [trigger.delivered, trigger.retried, trigger.deadLettered], now);
  }
  const there = new Set([...state.brokers, ...state.triggers].map(keyOf));
  for (const key of samples.keys()) if (!there.has(key)) samples.delete(key);
}

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
const seen = () =>
  document.hidden
    ? new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }))
    : null;

let state = { brokers: [], triggers: [], problems: [] };

// For ever, but for the time that nobody looks.
async function follow(changed, lost) {
  let tag = null;
  for (;;) {
    while (document.hidden) await seen();
    try {
      const gone = new AbortController();
      const hide = () => { if (document.hidden) gone.abort(); };
      document.addEventListener("visibilitychange", hide);
      try {
        const headers = tag == null ? {} : { "if-none-match": tag };
        const response = await call(`api/state?wait=${tag == null ? 0 : WAIT}`, { headers, signal: gone.signal });
        if (response.status !== 304) {
          state = await response.json();
          tag = response.headers.get("etag");
          keepSamples(state, performance.now());
        }
      } finally {
        document.removeEventListener("visibilitychange", hide);
      }
      changed();
      await pause(PAUSE);
    } catch (error) {
      if (error.name === "AbortError") continue;
      if (!(error instanceof TypeError || error instanceof Refused || error instanceof SyntaxError)) throw error;
      tag = null; // whatever answers next may be another one
      lost(error);
      await pause(AGAIN);
    }
  }
}
