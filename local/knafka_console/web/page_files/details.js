// One Trigger or Subscription, opened: what it wants, how it does, its last failures, and what can be done to it.

const FAILURES_SHOWN = 10;

// Asks before anything is sent; `lines` say what would happen, `act` does it.
function confirmed(title, lines, button, act) {
  const dialog = byId("ask");
  dialog.replaceChildren(
    make("h2", { id: "ask-title" }, visible(title)),
    ...lines,
    make("form", { method: "dialog", class: "buttons" },
      make("button", { type: "button", class: "plain", onclick: () => dialog.close() }, "Cancel"),
      button == null ? null : make("button", {
        type: "button",
        class: "primary",
        onclick: () => { dialog.close(); act(); },
      }, button)));
  dialog.showModal();
}

const attempt = async (action) => {
  try {
    await action();
  } catch (error) {
    say(error.message);
  }
};

// `after` is called once they are sent.
function replay(trigger, events, after) {
  const body = (dryRun) =>
    JSON.stringify({ kind: trigger.kind, namespace: trigger.namespace, name: trigger.name, events, dryRun });
  return attempt(async () => {
    const { chosen } = await post("api/replay", body(true));
    const [sent, left] = [chosen.filter((each) => !each.obstacle), chosen.filter((each) => each.obstacle)];
    const listed = (some, text) => make("ul", { class: "clauses" },
      some.slice(0, 20).map((each) => make("li", {}, visible(text(each)))),
      some.length > 20 ? make("li", {}, `and ${number(some.length - 20)} more`) : null);
    confirmed(
      sent.length ? `Send ${counted(sent.length, "event")} again?` : "Nothing can be sent again",
      [
        sent.length ? make("p", {}, "To ", make("b", {}, visible(nameOf(trigger))), " and nobody else; it may get what it has got already.") : null,
        sent.length ? listed(sent, (each) => each.about) : null,
        left.length ? make("p", {}, `Left out: ${counted(left.length, "event")}`) : null,
        left.length ? listed(left, (each) => `${each.about}: ${each.obstacle}`) : null,
        chosen.length ? null : make("p", {}, "Its dead-letter topic doesn't hold them any more."),
      ].filter((each) => each != null),
      sent.length ? "Send again" : null,
      () => attempt(async () => {
        const done = await post("api/replay", body(false));
        const count = done.chosen.filter((each) => !each.obstacle).length;
        say(done.replay ? `${counted(count, "event")} sent again by the replay ${done.replay}` : "Nothing was sent");
        after();
      }));
  });
}

const block = (title, ...children) => make("div", {}, make("h4", {}, title), children);
const written = (text, otherwise) =>
  text ? make("pre", { tabindex: "0" }, visible(text)) : make("p", { class: "muted" }, otherwise);
const commandLine = (what, command) =>
  make("p", { class: "command" }, make("span", { class: "muted" }, what), make("code", {}, visible(command)), copyButton(command));

function failureItem(trigger, may, each, after) {
  const how = `${each.reason} ${each.code}`.trim();
  return make("li", {},
    make("p", {}, make("span", { class: "badge failed-again" }, visible(how)), " ",
      ...each.ofBroker
        ? [make("b", {}, "a record that holds no event"), make("span", { class: "muted" }, visible(`, its Broker's: ${each.position}`))]
        : [make("b", {}, visible(each.type)), " ", make("span", { class: "id" }, visible(each.id)),
          make("span", { class: "muted" }, visible(` from ${each.source}`))]),
    make("p", { class: "muted" }, visible(each.ofBroker ? each.lastTime : `${each.lastTime}, after ${each.attempts} attempts at ${each.destination}`),
      each.replayed ? visible(`; sent again ${each.replayed}`) : null),
    each.error ? make("pre", { tabindex: "0" }, visible(each.error)) : null,
    each.data ? make("details", {}, make("summary", {}, "Its data"), make("pre", { tabindex: "0" }, visible(each.data))) : null,
    may.includes("replay") && !each.replayed && !each.ofBroker
      ? make("button", {
        type: "button",
        class: "plain",
        "aria-label": visible(`Send ${each.id} again`),
        onclick: () => replay(trigger, [{ id: each.id, source: each.source }], after),
      }, "Send again…")
      : null);
}

function drawFailures(box, trigger, may, found, after, shown = FAILURES_SHOWN) {
  const open = (reason) => found.last.filter((each) => !each.replayed && !each.ofBroker && `${each.reason} ${each.code}`.trim() === reason);
  const report = found.report ? make("p", {}, make("a", { href: found.report, target: "_blank", rel: "noopener" }, "The last report on dead letters")) : null;
  const commands = Object.entries(found.commands).map(([what, command]) => commandLine(what, command));
  if (found.last.length === 0) {
    box.replaceChildren(make("p", { class: "muted" }, "No dead letter is in its topic."), ...[report].filter((each) => each != null));
    return;
  }
  const rest = found.last.length - shown;
  box.replaceChildren(...[
    found.isAll ? null : make("p", { class: "muted" }, `The last ${number(found.last.length)}; there are older ones.`),
    make("ul", { class: "reasons" }, found.reasons.map(({ reason, count }) =>
      make("li", {}, make("span", { class: "badge failed-again" }, visible(reason)), ` ${counted(count, "event")} `,
        may.includes("replay") && open(reason).length
          ? make("button", {
            type: "button",
            class: "plain",
            onclick: () => replay(trigger, open(reason).map(({ id, source }) => ({ id, source })), after),
          }, count === 1 ? "Send it again…" : `Send all ${number(count)} again…`)
          : null))),
    make("ul", { class: "examples" }, found.last.slice(0, shown).map((each) => failureItem(trigger, may, each, after))),
    rest > 0 ? make("button", { type: "button", class: "plain", onclick: () => drawFailures(box, trigger, may, found, after, shown + 50) }, `Show ${number(Math.min(50, rest))} more`) : null,
    report,
    ...commands,
  ].filter((each) => each != null));
}

const FIGURES = {
  read: "Read", filtered: "Filtered out", delivered: "Delivered", retried: "Retried", deadLettered: "Dead letters",
};

// The opened element, with `update(trigger)` for what changes.
function detailsOf(trigger, id) {
  let now = trigger;
  let known = "";
  let may = [];
  let reading = null;
  const isTrigger = trigger.kind === "Trigger";
  const pauseButton = make("button", {
    type: "button",
    class: "primary pause",
    hidden: true,
    onclick: () => attempt(async () => {
      const { done } = await post(`${pathOf(now)}/${now.health === "paused" ? "resume" : "pause"}`);
      say(done);
    }),
  });
  const figures = Object.fromEntries(Object.keys(FIGURES).map((name) => [name, make("dd", { class: "number" })]));
  const declared = make("div", { class: "declared" });
  const failures = make("div", {}, make("p", { class: "muted" }, "Reading its dead-letter topic…"));
  const look = make("button", { type: "button", class: "plain", onclick: () => readFailures() }, "Look again");
  const why = make("p", { class: "why" });

  async function readDeclared() {
    try {
      const found = await get(pathOf(now));
      may = found.may;
      pauseButton.hidden = !may.includes("pause");
      declared.replaceChildren(
        isTrigger
          ? block("Filters, as they are written", written(found.filters, "None: it gets all events."))
          : block("Events", make("p", { class: "muted" }, "All that its channel takes."),
            make("p", { class: "muted" }, visible(found.reply ? `Replies go to ${found.reply}` : "Replies are discarded."))),
        block("Delivery", written(found.delivery, isTrigger ? "As its Broker says." : "As its channel says."),
          make("p", { class: "muted" }, visible(`Order: ${found.order}${found.maxInFlight ? `, at most ${found.maxInFlight} attempts at once` : ""}`)),
          found.declaredIn ? make("p", { class: "muted" }, visible(`Declared in ${found.declaredIn}`)) : null),
        block("Conditions", make("ul", { class: "conditions" }, found.conditions.map((each) =>
          make("li", {},
            make("span", { class: `badge ${each.status === "True" ? "resolved" : each.severity ? "growing" : "failed-again"}` }, visible(`${each.type} ${each.status}`)),
            " ", visible([each.reason, each.message].filter(Boolean).join(": ")))))));
    } catch (error) {
      declared.replaceChildren(make("p", { class: "wrong" }, visible(error.message)));
    }
  }

  async function readFailures() {
    try {
      drawFailures(failures, now, may, await get(`${pathOf(now)}/failures`), readFailures);
    } catch (error) {
      failures.replaceChildren(make("p", { class: "wrong" }, visible(error.message)));
    }
  }

  const element = make("div", { class: "details", id, role: "group", "aria-label": visible(keyOf(trigger)) },
    make("div", { class: "buttons" }, pauseButton, why),
    make("dl", { class: "figures" }, Object.entries(FIGURES).map(([name, title]) => make("div", {}, make("dt", {}, title), figures[name]))),
    declared,
    isTrigger ? block("Would it get this event?", eventForm(`${id}-who`, "Ask this Trigger", drawVerdict(trigger))) : null,
    make("div", {}, make("h4", {}, "Last failures ", look), failures));

  function update(trigger) {
    now = trigger;
    write(pauseButton, trigger.health === "paused" ? "Resume" : "Pause");
    write(why, trigger.why);
    for (const [name, figure] of Object.entries(figures)) write(figure, number(trigger[name]));
    const seenNow = [trigger.health, trigger.filters, trigger.subscriber].join("\n");
    if (known !== seenNow) {
      known = seenNow;
      reading = readDeclared();
    }
  }

  update(trigger);
  reading.then(readFailures); // its buttons depend on what may be done
  return { element, update };
}
