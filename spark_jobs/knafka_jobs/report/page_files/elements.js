// What every part uses: reading the data, making elements, writing times and numbers.
// Text goes onto the page as text, never as markup.

function complain(error) {
  const box = document.getElementById("trouble");
  box.hidden = false;
  box.textContent = `The failures can't be shown here: ${error}. A browser of 2023 or later shows them; the JSON report beside this page holds the same.`;
}

addEventListener("error", (event) => complain(event.message));
addEventListener("unhandledrejection", (event) => complain(event.reason));

async function unpack(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// `served`: the path of this report at the console that serves it, null in a file; `traces`: the
// address of a trace, with {trace} in the place of its id, empty if there is none.
const { reasons: REASONS, others: OTHERS, report, served, traces } = await unpack(document.getElementById("data").textContent);
const groups = report.groups;

const byId = (id) => document.getElementById(id);

// make("td", { class: "number", onclick: go }, "text", element, null): null children are left out.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child != null));
  return element;
}

// Characters that hide or turn text (controls, direction marks) are written out, so that an id
// reads as what it is. Joiners stay: scripts and emoji need them.
const HIDDEN = /[\p{Cc}\p{Cf}\u2028\u2029](?<![\n\t\u200c\u200d])/gu;
const visible = (text) =>
  String(text).replace(HIDDEN, (each) => `‹U+${each.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`);

// For a screen reader, which hears of what changes in an element that was there before.
const say = (text) => (byId("found").textContent = visible(text));

const number = new Intl.NumberFormat("en").format;
const counted = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;
const words = (kebab) => kebab.replaceAll("-", " ");
const seconds = (time) => Date.parse(time) / 1000;
const made = seconds(report.made);

const moment = (time) => new Date(time).toISOString().slice(0, 16).replace("T", " ");

function ago(time) {
  const age = Math.max(0, made - seconds(time));
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (age >= length) return `${Math.floor(age / length)} ${unit} ago`;
  }
  return "just now";
}

const timeElement = (time) =>
  make("time", { datetime: time, title: `${moment(time)} UTC` }, ago(time));

const reasonColour = (reason) => `--reason-${REASONS.indexOf(reason)}`;

const swatch = (reason) =>
  make("span", { class: `swatch reason-${REASONS.indexOf(reason)}`, "aria-hidden": "true" });

const reasonText = (group) =>
  words(group.reason) + (group.status == null ? "" : ` ${group.status}`);

// A namespace that all share says nothing.
const onlyNamespace = new Set(groups.map((group) => group.namespace)).size === 1;
// A record that holds no event is no Trigger's, but its Broker's or channel's.
const CHANNEL = "KafkaChannel-";
const ownerOf = (group) =>
  group.trigger || (group.broker.startsWith(CHANNEL) ? `channel/${group.broker.slice(CHANNEL.length)}` : `broker/${group.broker}`);
const triggerOf = (group) => (onlyNamespace ? ownerOf(group) : `${group.namespace}/${ownerOf(group)}`);

const sum = (values) => values.reduce((total, value) => total + value, 0);

// Totals of `value(group)` by `key(group)`, the largest first.
function tally(of, key, value) {
  const totals = new Map();
  for (const each of of) totals.set(key(each), (totals.get(key(each)) ?? 0) + value(each));
  return [...totals].sort((a, b) => b[1] - a[1]);
}
