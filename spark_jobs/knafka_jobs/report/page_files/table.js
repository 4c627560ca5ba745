// The list of failures: searched, filtered, sorted and shown a page at a time, so that thousands
// of rows cost no more than fifty.

const PAGE_SIZE = 50;

const KINDS = {
  "failed-again": "failed again",
  new: "new",
  growing: "growing",
  resolved: "resolved",
  steady: "steady",
};
const kindRank = (group) => Object.keys(KINDS).indexOf(group.change.kind);

const AGES = ["last-hour", "last-day", "older"];
const ageRank = (group) => AGES.indexOf(group.age ?? "older");
const AGE_BADGES = { "last-hour": "< 1 h old", "last-day": "< 24 h old" };

const text = (a, b) => a.localeCompare(b, "en");
const COLUMNS = [
  { key: "trigger", title: "Trigger", compare: (a, b) => text(triggerOf(a), triggerOf(b)) },
  { key: "reason", title: "Reason", compare: (a, b) => text(a.reason, b.reason) || (a.status ?? 0) - (b.status ?? 0) },
  { key: "change", title: "Change", compare: (a, b) => kindRank(a) - kindRank(b) },
  { key: "unresolved", title: "Unresolved", number: true, compare: (a, b) => a.unresolved - b.unresolved },
  { key: "failures", title: "Failures", number: true, compare: (a, b) => a.failures - b.failures },
  { key: "trend", title: "Trend", wide: true },
  { key: "rate", title: "Per hour", about: "Failures an hour within the last day", number: true, wide: true, compare: (a, b) => (a.rate ?? 0) - (b.rate ?? 0) },
  { key: "hour", title: "Last hour", about: "Failures within the last hour", number: true, wide: true, compare: (a, b) => (a.lastHour ?? 0) - (b.lastHour ?? 0) },
  { key: "retries", title: "Retries", number: true, wide: true, compare: (a, b) => a.retries - b.retries },
  { key: "first", title: "First seen", wide: true, compare: (a, b) => seconds(a.firstSeen) - seconds(b.firstSeen) },
  { key: "last", title: "Last seen", compare: (a, b) => seconds(a.lastSeen) - seconds(b.lastSeen) },
];

// Orders that can be chosen by name; a click on a column's head is another order.
const NEW_FIRST = { key: "new", title: "new first, then most unresolved", compare: (a, b) => ageRank(b) - ageRank(a) };
const ORDERS = [
  NEW_FIRST,
  ...["unresolved", "hour", "rate", "last"].map((key) => COLUMNS.find((column) => column.key === key)),
];
const ORDER_TITLES = { unresolved: "most unresolved", hour: "most in the last hour", rate: "most per hour", last: "failed last" };
const orderTitle = ({ key, title }) => ORDER_TITLES[key] ?? title;

const view = { search: "", trigger: "", reason: "", change: "", unresolved: false, unacknowledged: false, sort: "new", down: true, page: 0 };
const open = new Set();
let shown = groups;

const haystacks = new Map();
function haystack(group) {
  if (!haystacks.has(group)) {
    const parts = [
      group.namespace, group.broker, group.trigger, group.subscriber, reasonText(group), group.reason, group.summary, group.id,
      group.acknowledged?.by, group.acknowledged?.note,
      ...group.topTypes.map((top) => top.value),
      ...group.topSources.map((top) => top.value),
      ...group.examples.flatMap((each) => [each.id, each.source, each.type, each.error, each.dataPreview]),
    ];
    haystacks.set(group, parts.filter((part) => part != null).join("\n").toLowerCase());
  }
  return haystacks.get(group);
}

function select() {
  const wanted = view.search.toLowerCase().split(/\s+/).filter(Boolean);
  const found = groups.filter((group) =>
    (!view.trigger || triggerOf(group) === view.trigger) &&
    (!view.reason || group.reason === view.reason) &&
    (!view.change || group.change.kind === view.change) &&
    (!view.unresolved || group.unresolved > 0) &&
    (!view.unacknowledged || !group.acknowledged) &&
    wanted.every((word) => haystack(group).includes(word)));
  const { compare } = [NEW_FIRST, ...COLUMNS].find((column) => column.key === view.sort);
  const sign = view.down ? -1 : 1;
  const acknowledged = (a, b) => Boolean(a.acknowledged) - Boolean(b.acknowledged);
  return found.sort((a, b) => acknowledged(a, b) || sign * compare(a, b) || b.unresolved - a.unresolved || b.failures - a.failures || text(a.id, b.id));
}

function drawHead() {
  return make("thead", {}, make("tr", {}, COLUMNS.map((column) => {
    const sorted = column.key === view.sort;
    const classes = [column.number && "number", column.wide && "wide", `column-${column.key}`].filter(Boolean).join(" ");
    if (!column.compare) return make("th", { scope: "col", class: classes }, column.title);
    return make("th", { scope: "col", class: classes, title: column.about, "aria-sort": sorted ? (view.down ? "descending" : "ascending") : null },
      make("button", { type: "button", "data-sort": column.key, onclick: () => sortBy(column) }, column.title,
        make("span", { "aria-hidden": "true", class: "arrow" }, sorted ? (view.down ? " ↓" : " ↑") : "")));
  })));
}

function sortBy(column) {
  // A number or a time is looked at from its largest, a name from its beginning.
  const atFirst = Boolean(column.number) || column.key === "last" || column.key === "first";
  view.down = view.sort === column.key ? !view.down : atFirst;
  view.sort = column.key;
  view.page = 0;
  showOrder();
  drawGroups();
  byId("groups").querySelector(`[data-sort="${column.key}"]`).focus();
}

// Who takes care of a group, since when, until when and why.
function acknowledgement({ acknowledged }) {
  const until = acknowledged.until == null ? "" : `, until ${moment(acknowledged.until)}`;
  return visible(`by ${acknowledged.by} ${moment(acknowledged.at)}${until}${acknowledged.note ? `: ${acknowledged.note}` : ""}`);
}

// Short, and never 0 of a group that failed within the day.
const RATE = new Intl.NumberFormat("en", { maximumSignificantDigits: 2, notation: "compact" });
const rateText = (rate) => (rate ? RATE.format(rate) : "0");

function drawRow(group) {
  const expanded = open.has(group.id);
  const opener = make("button", {
    type: "button",
    class: "opener",
    "aria-expanded": String(expanded),
    "aria-controls": `details-${group.id}`,
    onclick: () => toggle(group),
  }, make("bdi", { class: "name" }, visible(triggerOf(group))),
    make("bdi", { class: "muted" }, visible(group.subscriber || `Broker ${group.broker}`)));
  const row = make("tr", { id: group.id, class: "group" },
    make("th", { scope: "row" }, opener),
    make("td", { class: "reason" }, swatch(group.reason), reasonText(group),
      group.summary ? make("bdi", { class: "summary muted" }, visible(group.summary)) : null),
    make("td", { class: "change" }, make("span", { class: `badge ${group.change.kind}` }, KINDS[group.change.kind]),
      AGE_BADGES[group.age] ? make("span", { class: `badge age ${group.age}`, title: `failed first ${moment(group.firstSeen)} UTC` }, AGE_BADGES[group.age]) : null,
      group.acknowledged ? make("span", { class: "badge acknowledged", title: acknowledgement(group) }, "acknowledged") : null),
    make("td", { class: "number strong" }, number(group.unresolved)),
    make("td", { class: "number" }, number(group.failures)),
    make("td", { class: "wide" }, sparkline(group)),
    make("td", { class: "number wide" }, rateText(group.rate)),
    make("td", { class: "number wide" }, number(group.lastHour ?? 0)),
    make("td", { class: "number wide" }, number(group.retries)),
    make("td", { class: "wide moment" }, timeElement(group.firstSeen)),
    make("td", { class: "moment" }, timeElement(group.lastSeen)));
  const below = make("tr", { id: `details-${group.id}`, class: "below", hidden: !expanded },
    make("td", { colspan: String(COLUMNS.length) }, expanded ? details(group) : null));
  return [row, below];
}

function toggle(group) {
  if (!open.delete(group.id)) {
    open.add(group.id);
    history.replaceState(null, "", `#${group.id}`);
  }
  const [row, below] = drawRow(group);
  byId(group.id).replaceWith(row);
  byId(`details-${group.id}`).replaceWith(below);
  row.querySelector(".opener").focus();
}

const SPARKS = 24;
function sparkline(group) {
  const heights = new Array(SPARKS).fill(0);
  for (const bucket of group.buckets) {
    const index = Math.floor(((seconds(bucket.start) - FIRST) / (STARTS.length * STEP)) * SPARKS);
    if (index in heights) heights[index] += bucket.failures;
  }
  const most = Math.max(1, ...heights);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${SPARKS * 4} 20`);
  svg.setAttribute("class", "spark");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  const bar = (height, index) => (height ? `M${index * 4} 20v-${Math.max(2, Math.round((height / most) * 20))}h3V20z` : "");
  path.setAttribute("d", heights.map(bar).join(""));
  svg.append(path);
  return svg;
}

function drawGroups() {
  shown = select();
  view.page = Math.max(0, Math.min(view.page, Math.ceil(shown.length / PAGE_SIZE) - 1));
  const from = view.page * PAGE_SIZE;
  const page = shown.slice(from, from + PAGE_SIZE);
  byId("groups").replaceChildren(drawHead(), make("tbody", {}, page.flatMap(drawRow)));
  const range = shown.length > PAGE_SIZE ? `, ${number(from + 1)} to ${number(from + page.length)} on this page` : "";
  byId("found").textContent = shown.length === 0
    ? "No failure matches."
    : `${counted(shown.length, "failure")}${shown.length < groups.length ? ` of ${number(groups.length)}` : ""} with ${counted(sum(shown.map((group) => group.unresolved)), "unresolved event")}${range}`;
  drawPages();
}

function drawPages() {
  const last = Math.ceil(shown.length / PAGE_SIZE) - 1;
  const to = (label, page, disabled) => make("button", { type: "button", class: "plain", disabled, onclick: () => turn(page) }, label);
  byId("pages").hidden = last < 1;
  byId("pages").replaceChildren(
    to("‹ Previous", view.page - 1, view.page === 0),
    make("span", { class: "muted" }, `Page ${number(view.page + 1)} of ${number(last + 1)}`),
    to("Next ›", view.page + 1, view.page === last));
}

function turn(page) {
  view.page = page;
  drawGroups();
  byId("failures").scrollIntoView();
  byId("failures").focus({ preventScroll: true });
}
