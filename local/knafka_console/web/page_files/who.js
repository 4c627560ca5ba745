// "Who would get this event?": asked of the server, whose filters are the dispatcher's own.

const EXAMPLE = JSON.stringify(
  { specversion: "1.0", type: "com.example.order.placed", source: "/shop", id: "1", subject: "grace" }, null, 2);
const MOST_VERDICTS = 100;

let lastEvent = EXAMPLE; // so that it needn't be written again for the next Trigger

// A form that asks; `draw(verdicts)` gives the elements of the answer.
function eventForm(id, button, draw) {
  const text = make("textarea", { id: `${id}-event`, rows: 8, spellcheck: "false", autocomplete: "off" });
  text.value = lastEvent;
  const answer = make("div", { class: "answer", role: "status" });
  const form = make("form", { class: "ask" },
    make("label", { for: text.id }, "A CloudEvent as JSON; filters look at its attributes, not at its data"),
    text,
    make("button", { type: "submit", class: "primary" }, button),
    answer);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    lastEvent = text.value;
    try {
      const { verdicts } = await post("api/who", text.value, "application/cloudevents+json");
      answer.replaceChildren(...draw(verdicts));
    } catch (error) {
      answer.replaceChildren(make("p", { class: "wrong" }, visible(error.message)));
    }
  });
  return form;
}

const clauses = (verdict) =>
  make("ul", { class: "clauses" }, verdict.whyNot.map((clause) => make("li", {}, make("code", {}, visible(clause)))));

function drawVerdicts(verdicts) {
  const [yes, no] = [verdicts.filter((each) => each.getsIt), verdicts.filter((each) => !each.getsIt)];
  const rows = [...yes, ...no].slice(0, MOST_VERDICTS).map((each) =>
    make("tr", {},
      make("td", {}, make("span", { class: `badge ${each.getsIt ? "resolved" : "steady"}` }, each.getsIt ? "yes" : "no")),
      make("th", { scope: "row" }, visible(nameOf(each)),
        make("span", { class: "muted" }, visible(` of ${each.broker}`))),
      make("td", {}, each.getsIt ? "" : clauses(each))));
  const all = verdicts.length > MOST_VERDICTS ? `, ${MOST_VERDICTS} of them here` : "";
  return [
    make("p", {}, make("b", {}, yes.length ? counted(yes.length, "Trigger gets it", "Triggers get it") : "Nobody gets it"),
      ` of ${counted(verdicts.length, "Trigger")}${all}. A Trigger only gets what its own Broker takes.`),
    rows.length
      ? make("table", { class: "verdicts" },
        make("thead", {}, make("tr", {}, ["Gets it", "Trigger", "Why not"].map((title) => make("th", { scope: "col" }, title)))),
        make("tbody", {}, rows))
      : null,
  ].filter((each) => each != null);
}

function drawVerdict(trigger) {
  return (verdicts) => {
    const mine = verdicts.find((each) => nameOf(each) === nameOf(trigger));
    if (mine == null) return [make("p", { class: "wrong" }, "This Trigger isn't declared any more.")];
    if (mine.getsIt) return [make("p", {}, make("span", { class: "badge resolved" }, "yes"), " It gets this event.")];
    return [make("p", {}, make("span", { class: "badge steady" }, "no"), " These clauses refuse it:"), clauses(mine)];
  };
}

