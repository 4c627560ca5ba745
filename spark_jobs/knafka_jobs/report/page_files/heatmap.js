// Trigger × reason: a table, as that is what it is to a screen reader; each cell filters the list.

const SHADES = 5;
const HEATMAP_ROWS = 8;
let heatmapRows = HEATMAP_ROWS;

function drawHeatmap(onPick) {
  const reasons = REASONS.filter((reason) => groups.some((group) => group.reason === reason));
  const triggers = tally(groups, triggerOf, (group) => group.events);
  const cells = new Map(
    tally(groups, (group) => `${triggerOf(group)} ${group.reason}`, (group) => group.events));
  const most = Math.max(1, ...cells.values());
  // By logarithm: one Trigger with a million events must not bleach all others.
  const shade = (events) => Math.max(1, Math.ceil((Math.log1p(events) / Math.log1p(most)) * SHADES));
  const cell = (trigger, reason) => {
    const events = cells.get(`${trigger} ${reason}`);
    if (!events) return make("td", { class: "empty" }, make("span", { "aria-hidden": "true" }, "·"));
    return make("td", {}, make("button", {
      type: "button",
      class: `heat heat-${shade(events)}`,
      "aria-label": `${trigger}, ${words(reason)}: ${counted(events, "event")}. Show them`,
      onclick: () => onPick(trigger, reason),
    }, COMPACT.format(events)));
  };
  const more = triggers.length - heatmapRows;
  byId("heatmap").replaceChildren(
    make("table", { class: "heatmap" },
      make("thead", {}, make("tr", {},
        make("th", { scope: "col" }, "Trigger"),
        reasons.map((reason) => make("th", { scope: "col" }, words(reason))))),
      make("tbody", {}, triggers.slice(0, heatmapRows).map(([trigger]) =>
        make("tr", {},
          make("th", { scope: "row" }, make("bdi", {}, visible(trigger))),
          reasons.map((reason) => cell(trigger, reason)))))),
    ...(more > 0
      ? [make("button", {
        type: "button",
        class: "plain",
        onclick: () => {
          heatmapRows += 100;
          drawHeatmap(onPick);
        },
      }, `Show ${Math.min(100, more)} more of ${counted(triggers.length, "Trigger")}`)]
      : []),
  );
}
