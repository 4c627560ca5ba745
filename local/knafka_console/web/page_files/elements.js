// What every part uses: making elements, writing numbers. Text goes onto the page as text, never as
// markup.

function complain(error) {
  const box = byId("trouble");
  box.hidden = false;
  box.textContent = `The console has failed: ${error}. Reload the page; knafka status shows the same in a terminal.`;
}

addEventListener("error", (event) => complain(event.message));
addEventListener("unhandledrejection", (event) => complain(event.reason));

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

// Only what has changed is written: a screen reader's place and a selection stay as they are.
function write(element, text) {
  const shown = visible(text);
  if (element.textContent !== shown) element.textContent = shown;
}

function setClass(element, names) {
  if (element.className !== names) element.className = names;
}

const format = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const number = (value) => (Math.abs(value) < 100_000 ? format.format(value) : short.format(value));
const counted = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;
const perSecond = (rate) =>
  rate === 0 ? "0/s" : rate < 10 ? `${rate.toFixed(1)}/s` : `${number(Math.round(rate))}/s`;
const sum = (values) => values.reduce((total, value) => total + value, 0);

function later(action, pause = 120) {
  let waiting;
  return () => {
    clearTimeout(waiting);
    waiting = setTimeout(action, pause);
  };
}

let saidFor;

// What an action has come to: for a few seconds, and for a screen reader, which hears of what changes
// in an element that was there before.
function say(text) {
  const box = byId("said");
  box.textContent = visible(text);
  clearTimeout(saidFor);
  saidFor = setTimeout(() => { box.textContent = ""; }, 8000);
}

const copyButton = (text) =>
  make("button", {
    type: "button",
    class: "plain copy",
    "aria-label": `Copy ${text}`,
    onclick: async (event) => {
      await navigator.clipboard.writeText(text);
      event.target.textContent = "Copied";
    },
  }, "Copy");
