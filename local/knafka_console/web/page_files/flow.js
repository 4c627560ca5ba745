// The flow: each Broker or KafkaChannel, what gets its events, their subscribers. Rows stay the same elements while their
// figures change, and no more are drawn than a person looks at.

const PAGE_SIZE = 100;
const HEALTH = {
  "not-ready": ["not ready", "failed-again"],
  unavailable: ["circuit open", "failed-again"],
  troubled: ["trouble", "growing"],
  paused: ["paused", "growing"],
  delivering: ["delivering", "new"],
  resting: ["at rest", "steady"],
};
const KINDS = ["Broker", "KafkaChannel", "Trigger", "Subscription"];
const BAD = ["not-ready", "unavailable", "troubled"];

const view = { search: "", health: "", sort: "name", limit: PAGE_SIZE };
const rows = new Map(); // key -> row of a Trigger or Subscription
const flows = new Map(); // key of a Broker or KafkaChannel -> its section
const opened = new Set();
let ids = 0;

const figure = (title, names = "") => {
  const value = make("b");
  const element = make("span", { class: `figure ${names}` }, value, make("span", { class: "muted" }, ` ${title}`));
  return { element, value };
};

function rowOf(trigger) {
  const key = keyOf(trigger);
  const id = `details-${(ids += 1)}`;
  const name = make("span", { class: "name" });
  const filters = make("span", { class: "muted filters" });
  const opener = make("button", {
    type: "button",
    class: "opener",
    "aria-expanded": "false",
    onclick: () => toggle(),
  }, name, filters);
  const lag = figure("waiting");
  const rate = figure("delivered");
  const retries = figure("retried", "wide");
  const replicas = figure("dispatchers");
  const dead = figure("dead letters");
  const health = make("span", { class: "badge" });
  const subscriber = make("span", { class: "subscriber" });
  const element = make("li", { class: "trigger" },
    make("div", { class: "row" },
      make("h3", {}, opener), health,
      make("div", { class: "numbers" }, lag.element, rate.element, retries.element, replicas.element, dead.element),
      make("span", { class: "arrow", "aria-hidden": "true" }), subscriber));
  let now = trigger;
  let details = null;

  function toggle() {
    if (opened.delete(key)) {
      details.element.remove();
      details = null;
    } else {
      opened.add(key);
      details = detailsOf(now, id);
      element.append(details.element);
    }
    opener.setAttribute("aria-expanded", String(details != null));
    if (details == null) opener.removeAttribute("aria-controls");
    else opener.setAttribute("aria-controls", id);
  }

  function update(trigger) {
    now = trigger;
    const [words, names] = HEALTH[trigger.health] ?? [trigger.health, "steady"];
    const delivered = rateOf(key, 0);
    write(name, trigger.name);
    write(filters, trigger.filters);
    write(lag.value, trigger.lag == null ? "?" : number(trigger.lag));
    write(rate.value, perSecond(delivered));
    write(retries.value, perSecond(rateOf(key, 1)));
    write(replicas.value, trigger.mostReplicas ? `${trigger.replicas} of ${trigger.mostReplicas}` : `${trigger.replicas}`);
    write(dead.value, number(trigger.deadLettered));
    dead.element.classList.toggle("bad", trigger.deadLettered > 0);
    write(health, words);
    setClass(health, `badge health ${names}`);
    health.title = trigger.why;
    write(subscriber, trigger.subscriber);
    element.classList.toggle("flowing", delivered > 0);
    element.classList.toggle("broken", BAD.includes(trigger.health));
    details?.update(trigger);
  }

  return { element, update };
}

function flowOf(key) {
  const [kind, name] = key.split(" ");
  const isChannel = kind === "KafkaChannel";
  const title = make("h2", {}, visible(name), isChannel ? make("span", { class: "muted kind" }, ` ${kind}`) : null);
  const url = make("code");
  const refused = make("p", { class: "wrong" });
  const accepted = figure("accepted");
  const rejected = figure("rejected");
  const copy = make("span");
  const list = make("ul", { class: "triggers", role: "list" });
  const nobody = make("p", { class: "muted" }, `No ${isChannel ? "Subscription" : "Trigger"} is here: what it takes reaches nobody.`);
  const element = make("section", { class: "card flow" },
    make("div", { class: "broker" }, title, make("p", {}, url, " ", copy), refused, make("div", { class: "numbers" }, accepted.element, rejected.element)),
    make("div", {}, list, nobody));
  let copied = "";

  function update(broker, triggers, hasAny) {
    write(url, broker?.url ?? "");
    if (copied !== (broker?.url ?? "")) {
      copied = broker?.url ?? "";
      copy.replaceChildren(...(copied ? [copyButton(copied)] : []));
    }
    write(refused, broker == null ? `This ${kind} isn't there.` : broker.refused);
    refused.hidden = refused.textContent === "";
    write(accepted.value, perSecond(rateOf(key, 0)));
    write(rejected.value, number(broker?.rejected ?? 0));
    rejected.element.hidden = broker?.rejected === null;
    rejected.element.classList.toggle("bad", (broker?.rejected ?? 0) > 0);
    nobody.hidden = hasAny;
    arrange(list, triggers.map((trigger) => drawn(rows, keyOf(trigger), () => rowOf(trigger), trigger)));
    element.classList.toggle("flowing", rateOf(key, 0) > 0);
  }

  return { element, update };
}

function drawn(kept, key, create, value) {
  if (!kept.has(key)) kept.set(key, create());
  kept.get(key).update(value);
  return kept.get(key).element;
}

// Have `parent` hold exactly these, moving as few as can be: what moves loses the focus.
function arrange(parent, elements) {
  const wanted = new Set(elements);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  elements.forEach((element, index) => {
    if (parent.children[index] !== element) parent.insertBefore(element, parent.children[index] ?? null);
  });
}

const text = new Intl.Collator("en", { numeric: true }).compare;
const SORTS = {
  name: (a, b) => text(nameOf(a), nameOf(b)),
  waiting: (a, b) => (b.lag ?? Infinity) - (a.lag ?? Infinity) || text(nameOf(a), nameOf(b)),
  "dead letters": (a, b) => b.deadLettered - a.deadLettered || text(nameOf(a), nameOf(b)),
};

function matching() {
  const words = view.search.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (trigger) => {
    if (view.health === "bad" ? !BAD.includes(trigger.health) : view.health && trigger.health !== view.health) return false;
    const all = [keyOf(trigger), trigger.broker, trigger.filters, trigger.subscriber, HEALTH[trigger.health]?.[0], trigger.why].join(" ").toLowerCase();
    return words.every((word) => all.includes(word));
  };
  return state.triggers.filter(fits).sort(SORTS[view.sort]);
}

// "2 Triggers", or "2 Triggers, 1 Subscription" where there are both.
function countedKinds(objects, otherwise = "Trigger") {
  const counts = KINDS.map((kind) => [objects.filter((each) => each.kind === kind).length, kind]);
  return counts.filter(([count]) => count > 0).map(([count, kind]) => counted(count, kind)).join(", ") || counted(0, otherwise);
}

function drawFlow() {
  const found = matching();
  const shown = found.slice(0, view.limit);
  const byBroker = new Map();
  const filtered = view.search || view.health;
  if (!filtered) for (const broker of state.brokers) byBroker.set(keyOf(broker), []);
  for (const trigger of shown) {
    const key = keyOfBroker(trigger);
    if (!byBroker.has(key)) byBroker.set(key, []);
    byBroker.get(key).push(trigger);
  }
  const brokers = new Map(state.brokers.map((broker) => [keyOf(broker), broker]));
  const taken = new Set(state.triggers.map(keyOfBroker));
  const keys = [...byBroker.keys()].sort(text);
  arrange(byId("brokers"), keys.map((key) => {
    if (!flows.has(key)) flows.set(key, flowOf(key));
    flows.get(key).update(brokers.get(key), byBroker.get(key), taken.has(key));
    return flows.get(key).element;
  }));
  forget(rows, new Set(state.triggers.map(keyOf)));
  forget(flows, new Set([...brokers.keys(), ...taken]));
  write(byId("found"), filtered || found.length > shown.length
    ? `${countedKinds(found)} of ${number(state.triggers.length)}${found.length > shown.length ? `, the first ${number(shown.length)} here` : ""}`
    : countedKinds(found));
  const rest = found.length - shown.length;
  byId("more").hidden = rest === 0;
  write(byId("more"), `Show ${number(Math.min(rest, PAGE_SIZE))} more`);
}

function forget(kept, there) {
  for (const key of kept.keys()) {
    if (there.has(key)) continue;
    kept.delete(key);
    opened.delete(key);
  }
}
