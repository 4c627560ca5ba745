// A page that a console serves can send unresolved events again, by a DeadLetterReplay that the
// viewer creates. A page that is a file has file.js in place of this script.

const LOOK = 3000; // milliseconds between two looks while a replay is under way
const UNDER_WAY = ["", "Pending", "Queued", "Running"];
const PHASES = { Succeeded: "resolved", Failed: "failed-again" };

const replays = { may: false, all: [], problem: "", waiting: null };
const drawn = new Map(); // id of a group that is open -> its redrawing

async function ask(path, options = {}) {
  const response = await fetch(`${served}/${path}`, { cache: "no-store", ...options });
  if (response.ok) return response.json();
  let problem = `${response.status} ${response.statusText}`;
  try {
    problem = (await response.json()).error ?? problem;
  } catch { /* no JSON: a gateway's answer */ }
  throw new Error(problem);
}

async function readReplays() {
  try {
    Object.assign(replays, await ask("replays"), { problem: "" });
  } catch (error) {
    replays.problem = error.message;
  }
  for (const [id, draw] of drawn) if (byId(`details-${id}`)?.hidden === false) draw();
  clearTimeout(replays.waiting);
  if (replays.all.some((each) => UNDER_WAY.includes(each.phase))) replays.waiting = setTimeout(lookAgain, LOOK);
}

// A hidden page asks nothing.
function lookAgain() {
  if (document.hidden) document.addEventListener("visibilitychange", lookAgain, { once: true });
  else readReplays();
}

// What selects the failures of a group, or one event of it; of the errors that share a row, all. An
// empty summary selects failures without an error text.
function selectionOf(group, each = null) {
  const of = {
    trigger: group.trigger,
    destination: group.subscriber,
    reason: group.reason,
    code: group.status,
    summary: group.summary === OTHERS ? null : group.summary,
  };
  const found = each == null ? of : { trigger: group.trigger, ids: [each.id], source: each.source };
  return Object.fromEntries(Object.entries(found).filter(([name, value]) => value != null && (value !== "" || name === "summary")));
}

const isAnEvent = (each) => each.source != null && !each.resolved;

function confirmed(title, lines, act) {
  const dialog = byId("ask");
  dialog.replaceChildren(
    make("h2", { id: "ask-title" }, visible(title)),
    ...lines.map((line) => make("p", {}, visible(line))),
    make("form", { method: "dialog", class: "buttons" },
      make("button", { type: "button", class: "plain", onclick: () => dialog.close() }, "Cancel"),
      make("button", { type: "button", class: "copy", onclick: () => { dialog.close(); act(); } }, "Send again")));
  dialog.showModal();
}

// One of its own for each question that was answered: asked twice over, it is one replay.
const newRequest = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(5)), (each) => each.toString(16).padStart(2, "0")).join("");

function sendAgain(group, each = null) {
  const request = newRequest();
  const what = each == null ? `Send the unresolved events of this failure again?` : `Send ${each.id} again?`;
  confirmed(what, [
    each == null ? `${counted(group.unresolved, "event")} when the report was made; events that have failed in the same way since then are sent, too.` : "The event is sent only if it is still unresolved.",
    `Events go only to ${triggerOf(group)}; its subscriber may get them a second time.`,
  ], async () => {
    try {
      const body = JSON.stringify({ request, group: group.id, select: selectionOf(group, each) });
      const headers = { "content-type": "application/json", "knafka-console": "1" };
      const made = await ask("replays", { method: "POST", body, headers });
      say(`The replay ${made.name} is created`);
    } catch (error) {
      say(error.message);
    }
    await readReplays();
  });
}

function replayItem(each) {
  const of = each.selected == null ? "" : ` of ${number(each.selected)}`;
  const sent = each.sent == null && of === "" ? "" : ` · ${number(each.sent ?? 0)}${of} ${each.sent === 1 ? "event" : "events"} sent`;
  return make("li", {},
    make("span", { class: `badge ${PHASES[each.phase] ?? "growing"}` }, visible(each.phase || "Pending")), " ",
    make("code", {}, visible(each.name)),
    make("span", { class: "muted" }, visible(`${sent}${each.created ? ` · ${moment(each.created)}` : ""}${each.ids ? ` · ${counted(each.ids, "event")} by id` : ""}`)),
    each.message ? make("p", { class: "muted" }, visible(each.message)) : null);
}

const REPLAYS_SHOWN = 5;

// What can be done to a group here, and what has been.
function replaysOf(group) {
  const button = make("button", { type: "button", class: "copy send", onclick: () => sendAgain(group) }, `Send ${counted(group.unresolved, "event")} again…`);
  const list = make("ul", { class: "replays" });
  const problem = make("p", { class: "muted" });
  const draw = () => {
    button.hidden = !replays.may || group.unresolved === 0 || !group.replayCommand;
    list.replaceChildren(...replays.all.filter((each) => each.group === group.id).slice(0, REPLAYS_SHOWN).map(replayItem));
    problem.textContent = visible(replays.problem);
    for (const each of byId(`details-${group.id}`)?.querySelectorAll(".send-one") ?? []) each.hidden = !replays.may;
  };
  drawn.set(group.id, draw);
  draw();
  return make("div", {}, button, make("div", { role: "status" }, list, problem));
}

function sendOne(group, each) {
  if (!isAnEvent(each)) return null;
  return make("button", {
    type: "button",
    class: "plain send-one",
    hidden: !replays.may,
    "aria-label": visible(`Send ${each.id} again`),
    onclick: () => sendAgain(group, each),
  }, "Send again…");
}

readReplays();
