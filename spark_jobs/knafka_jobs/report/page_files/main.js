// Filters, links and the first drawing.

const inputs = {};
let orderSelect;

function orderBy(key) {
  Object.assign(view, { sort: key, down: true, page: 0 });
  drawGroups();
}

// A column that is sorted by its own head has no name among the orders, if it is not its order.
function showOrder() {
  orderSelect.value = view.down && ORDERS.some((order) => order.key === view.sort) ? view.sort : "";
}

function choice(name, label, options) {
  inputs[name] = make("select", { name, onchange: () => narrow({ [name]: inputs[name].value }) },
    make("option", { value: "" }, "all"),
    options.map(([value, shownAs]) => make("option", { value }, visible(shownAs))));
  return make("label", {}, label, inputs[name]);
}

function drawFilters() {
  inputs.search = make("input", {
    type: "search",
    name: "search",
    placeholder: "Trigger, URL, event id, error…",
    oninput: later(() => narrow({ search: inputs.search.value })),
  });
  inputs.unresolved = make("input", {
    type: "checkbox",
    name: "unresolved",
    onchange: () => narrow({ unresolved: inputs.unresolved.checked }),
  });
  inputs.unacknowledged = make("input", {
    type: "checkbox",
    name: "unacknowledged",
    onchange: () => narrow({ unacknowledged: inputs.unacknowledged.checked }),
  });
  orderSelect = make("select", { name: "order", onchange: () => orderBy(orderSelect.value) },
    ORDERS.map((order) => make("option", { value: order.key }, orderTitle(order))),
    make("option", { value: "", hidden: true }, "by column"));
  inputs.clear = make("button", { type: "button", class: "plain", onclick: () => clear() }, "Clear filters");
  const triggers = [...new Set(groups.map(triggerOf))].sort(text);
  const present = (values) => values.filter((value) => groups.some((group) => group.reason === value || group.change.kind === value));
  byId("filters").replaceChildren(
    make("label", { class: "search" }, "Search", inputs.search),
    choice("trigger", "Trigger", triggers.map((trigger) => [trigger, trigger])),
    choice("reason", "Reason", present(REASONS).map((reason) => [reason, words(reason)])),
    choice("change", "Change", present(Object.keys(KINDS)).map((kind) => [kind, KINDS[kind]])),
    make("label", { class: "check" }, inputs.unresolved, "unresolved only"),
    groups.some((group) => group.acknowledged) ? make("label", { class: "check" }, inputs.unacknowledged, "hide acknowledged") : "",
    make("label", { class: "order" }, "Order", orderSelect),
    inputs.clear);
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
}

function later(action) {
  let waiting;
  return () => {
    clearTimeout(waiting);
    waiting = setTimeout(action, 120);
  };
}

const NO_FILTER = { search: "", trigger: "", reason: "", change: "", unresolved: false, unacknowledged: false };

function narrow(filters) {
  Object.assign(view, filters, { page: 0 });
  for (const [name, input] of Object.entries(inputs)) {
    if (input.type === "checkbox") input.checked = view[name];
    else if (name !== "clear" && input.value !== view[name]) input.value = view[name];
  }
  inputs.clear.hidden = Object.entries(NO_FILTER).every(([name, value]) => view[name] === value);
  drawGroups();
  drawTimeline(shown);
  drawChanges();
}

const clear = (filters = {}) => narrow({ ...NO_FILTER, ...filters });

function drawChanges() {
  const count = (kind) => groups.filter((group) => group.change.kind === kind).length;
  const chips = Object.entries(KINDS).filter(([kind]) => count(kind) > 0);
  byId("changes").replaceChildren(...chips.map(([kind, shownAs]) =>
    make("button", {
      type: "button",
      class: `chip ${kind}`,
      "aria-pressed": String(view.change === kind),
      onclick: () => {
        narrow({ change: view.change === kind ? "" : kind });
        byId("changes").querySelector(`.${kind}`).focus();
      },
    }, make("b", {}, number(count(kind))), ` ${shownAs}`)));
}

function pick(trigger, reason) {
  clear({ trigger, reason });
  byId("failures").scrollIntoView();
  byId("failures").focus({ preventScroll: true });
}

// A link to a failure opens it, wherever filters and pages had put it.
function follow() {
  const group = groups.find((each) => `#${each.id}` === location.hash);
  if (group == null) return;
  open.add(group.id);
  if (!shown.includes(group)) clear();
  view.page = Math.floor(shown.indexOf(group) / PAGE_SIZE);
  drawGroups();
  byId(group.id).scrollIntoView();
  byId(group.id).querySelector(".opener").focus({ preventScroll: true });
}

drawFilters();
drawHeatmap(pick);
clear();
addEventListener("hashchange", follow);
follow();
document.documentElement.dataset.ready = "true";
