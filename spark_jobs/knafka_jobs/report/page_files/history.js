// What earlier reports said of a group, beside this one: bars, and a table that says the same.

const BAR = 12;
const BARS = 48;

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function told(group) {
  const now = { made: report.made, failures: group.failures, unresolved: group.unresolved };
  return [...(group.history ?? []), now];
}

function historyOf(group) {
  const all = told(group);
  if (all.length === 1) return make("p", { class: "muted" }, "No report had it before.");
  const most = Math.max(1, ...all.map((each) => each.failures));
  const bar = (count, index, name) => {
    const height = count ? Math.max(2, Math.round((count / most) * BARS)) : 0;
    return svg("rect", { x: index * BAR, y: BARS - height, width: BAR - 2, height, class: name });
  };
  const [first, last] = [all[0], all.at(-1)];
  const label = `${counted(all.length, "report")}: ${number(first.failures)} failures and ${number(first.unresolved)} unresolved events on ${moment(first.made)}, ${number(last.failures)} and ${number(last.unresolved)} now`;
  const chart = svg("svg", { viewBox: `0 0 ${all.length * BAR} ${BARS}`, width: all.length * BAR, height: BARS, class: "past", role: "img", "aria-label": label },
    ...all.flatMap((each, index) => [bar(each.failures, index, "all"), bar(Math.min(each.unresolved, each.failures), index, "open")]));
  const rows = all.toReversed().map((each) => make("tr", {},
    make("th", { scope: "row", class: "moment" }, moment(each.made)),
    make("td", { class: "number" }, number(each.failures)),
    make("td", { class: "number" }, number(each.unresolved))));
  const heads = ["Report (UTC)", "Failures", "Unresolved"];
  return make("div", { class: "history" },
    make("h3", {}, "In the last reports"),
    make("div", { class: "scrolled", tabindex: "0", role: "group", "aria-label": "In the last reports" }, chart),
    make("p", { class: "legend" },
      make("span", {}, make("span", { class: "swatch all", "aria-hidden": "true" }), "failures"),
      make("span", {}, make("span", { class: "swatch open", "aria-hidden": "true" }), "unresolved events"),
      make("span", {}, `first in a report ${moment(group.firstReported ?? report.made)}`)),
    make("details", {}, make("summary", {}, "As a table"),
      make("div", { class: "scrolled", tabindex: "0", role: "group", "aria-label": "In the last reports, as a table" },
        make("table", {},
          make("thead", {}, make("tr", {}, heads.map((title, index) => make("th", { scope: "col", class: index ? "number" : null }, title)))),
          make("tbody", {}, rows)))));
}
