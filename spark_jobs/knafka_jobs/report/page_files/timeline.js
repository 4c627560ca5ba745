// Failures per time bucket, stacked by reason: uPlot draws it, a table says the same.

const STEP = report.bucketSeconds;
const FIRST = Math.floor(seconds(report.since) / STEP) * STEP;
const STARTS = Array.from(
  { length: Math.max(1, Math.ceil((seconds(report.until) - FIRST) / STEP)) },
  (_, index) => FIRST + index * STEP,
);
const stamp = (start) => moment(start * 1000);

const HEIGHT = 290;
const timeline = { chart: null, shown: [], counts: new Map() };

function drawTimeline(of) {
  timeline.counts = new Map();
  for (const group of of) {
    if (!timeline.counts.has(group.reason)) {
      timeline.counts.set(group.reason, new Array(STARTS.length).fill(0));
    }
    const counts = timeline.counts.get(group.reason);
    for (const bucket of group.buckets) {
      const index = Math.round((seconds(bucket.start) - FIRST) / STEP);
      if (index in counts) counts[index] += bucket.failures;
    }
  }
  timeline.shown = REASONS.filter((reason) => timeline.counts.has(reason));
  byId("timeline-legend").replaceChildren(
    ...timeline.shown.map((reason) =>
      make("span", {}, swatch(reason), `${words(reason)} `, make("b", {}, number(sum(timeline.counts.get(reason)))))),
  );
  drawChart();
  if (byId("timeline-table").open) drawTimelineTable();
}

function drawChart() {
  const box = byId("timeline");
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  // A stack: each series is the sum of its own and all below, and the highest is drawn first.
  const stack = [];
  let below = new Array(STARTS.length).fill(0);
  for (const reason of timeline.shown) {
    const own = timeline.counts.get(reason);
    below = below.map((value, index) => value + own[index]);
    stack.unshift({ reason, heights: below });
  }
  const axis = { stroke: colour("--muted"), font: "12px system-ui, sans-serif", ticks: { show: false } };
  timeline.chart?.destroy();
  timeline.chart = new uPlot(
    {
      width: box.clientWidth,
      height: HEIGHT,
      padding: [12, 8, 0, 0],
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
      scales: {
        x: { range: [FIRST, STARTS.at(-1) + STEP] },
        y: { range: (_, low, high) => [0, Math.max(4, high * 1.08)] },
      },
      axes: [
        {
          ...axis,
          grid: { show: false },
          space: 60,
          size: 30,
          incrs: TICKS,
          values: (_, ticks, axis, space, step) => ticks.map((tick) => tickLabel(tick, step)),
        },
        {
          ...axis,
          grid: { stroke: colour("--line"), width: 1 },
          size: 44,
          incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6],
          values: (_, ticks) => ticks.map((tick) => COMPACT.format(tick)),
        },
      ],
      series: [
        {},
        ...stack.map(({ reason }) => ({
          fill: colour(reasonColour(reason)),
          width: 0,
          points: { show: false },
          paths: uPlot.paths.bars({ size: [0.86, 60], align: 1, gap: 1 }),
        })),
      ],
      hooks: { setCursor: [showTip] },
    },
    [STARTS, ...stack.map(({ heights }) => heights)],
    box,
  );
  box.append(make("div", { id: "tip", hidden: true }));
  const total = sum([...timeline.counts.values()].map(sum));
  timeline.chart.root.setAttribute("role", "img");
  timeline.chart.root.setAttribute(
    "aria-label",
    `Stacked bars: ${counted(total, "failure")} between ${stamp(FIRST)} and ${moment(report.until)} UTC; the table below has the numbers`,
  );
}

const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });
const DAY_OF_YEAR = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "2-digit", timeZone: "UTC" });
const TICKS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000, 864000, 2592000, 7776000, 15552000, 31536000, 63072000, 157680000];
const LONG = 300 * 86400; // from which on a day and a month may come twice

// As short as can be told apart: no two ticks have the same.
function tickLabel(tick, step) {
  if (tick % 86400 === 0) return (STARTS.length * STEP > LONG ? DAY_OF_YEAR : DAY).format(tick * 1000);
  return new Date(tick * 1000).toISOString().slice(11, step < 60 ? 19 : 16);
}
const COMPACT = new Intl.NumberFormat("en", { notation: "compact" });

const countsAt = (index) =>
  timeline.shown
    .map((reason) => [reason, timeline.counts.get(reason)[index]])
    .filter(([, count]) => count > 0);

function showTip(chart) {
  const tip = byId("tip");
  if (tip == null) return;
  const { left } = chart.cursor;
  const index = left < 0 ? -1 : Math.floor((chart.posToVal(left, "x") - FIRST) / STEP);
  const counts = index in STARTS ? countsAt(index) : [];
  tip.hidden = counts.length === 0;
  if (tip.hidden) return;
  tip.replaceChildren(
    make("div", { class: "muted" }, stamp(STARTS[index])),
    ...counts.reverse().map(([reason, count]) =>
      make("div", {}, swatch(reason), `${words(reason)} `, make("b", {}, number(count)))),
  );
  const at = chart.over.offsetLeft + left;
  const room = byId("timeline").clientWidth - tip.offsetWidth;
  tip.style.left = `${Math.max(0, Math.min(at > room - 16 ? at - tip.offsetWidth - 12 : at + 12, room))}px`;
}

function drawTimelineTable() {
  const rows = STARTS.map((start, index) => [start, countsAt(index)]).filter(([, counts]) => counts.length);
  const details = byId("timeline-table");
  details.replaceChildren(
    details.querySelector("summary"),
    make("div", { class: "scrolled", tabindex: "0", role: "group", "aria-label": "Failures over time" },
      make("table", {},
        make("thead", {}, make("tr", {},
          make("th", { scope: "col" }, "From (UTC)"),
          timeline.shown.map((reason) => make("th", { scope: "col", class: "number" }, words(reason))))),
        make("tbody", {}, rows.map(([start, counts]) => {
          const found = new Map(counts);
          return make("tr", {},
            make("th", { scope: "row", class: "moment" }, stamp(start)),
            timeline.shown.map((reason) => make("td", { class: "number" }, number(found.get(reason) ?? 0))));
        })))),
  );
}

byId("timeline-table").addEventListener("toggle", drawTimelineTable);
new ResizeObserver(() => {
  const width = byId("timeline").clientWidth;
  if (timeline.chart && width && width !== timeline.chart.width) timeline.chart.setSize({ width, height: HEIGHT });
}).observe(byId("timeline"));
for (const change of ["(prefers-color-scheme: dark)", "(prefers-contrast: more)"]) {
  matchMedia(change).addEventListener("change", drawChart);
}
