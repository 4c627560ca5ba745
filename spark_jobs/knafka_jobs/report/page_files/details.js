// What a row opens to: the replay command, the figures and the examples of one group.

function details(group) {
  return make("div", { class: "details" },
    replay(group),
    replaysOf(group),
    make("div", { class: "facts" }, figures(group), tops("Event types", group.topTypes), tops("Sources", group.topSources)),
    historyOf(group),
    make("h3", {}, group.examples.length ? `Latest examples (${group.examples.length} of ${number(group.events)})` : "No examples"),
    make("ul", { class: "examples" }, group.examples.map((each) => example(group, each))),
    make("p", {}, make("a", { href: `#${group.id}` }, "Link to this failure")),
  );
}

function replay(group) {
  if (!group.replayCommand) return make("p", { class: "resolved-note" }, "These records hold no events, so they can't be replayed: stop the producer that writes them, and delete them by a purge.");
  if (group.unresolved === 0) return make("p", { class: "resolved-note" }, "All of its events are resolved; there is nothing to replay.");
  const code = make("code", {}, visible(group.replayCommand));
  const button = make("button", { type: "button", class: "copy", onclick: () => copy(group.replayCommand, code, button) }, "Copy");
  return make("div", {},
    make("h3", {}, `Replay ${counted(group.unresolved, "event")} once the cause is mended`),
    make("div", { class: "command" }, code, button),
    make("p", { class: "muted" }, "With ", make("code", {}, "--dry-run"), " the command only shows the events that it would send."));
}

async function copy(text, shownIn, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Pages served without TLS have no clipboard: select it, and use the old way.
    getSelection().selectAllChildren(shownIn);
    if (!document.execCommand("copy")) return;
  }
  button.textContent = "Copied";
  byId("found").textContent = "The replay command is in the clipboard.";
  setTimeout(() => (button.textContent = "Copy"), 2000);
}

function figures(group) {
  const { change } = group;
  const since = [
    change.failures ? `${number(change.failures)} more failures` : null,
    change.resolved ? `${number(change.resolved)} resolved` : null,
    change.failedAgain ? `${number(change.failedAgain)} failed again` : null,
  ].filter(Boolean);
  const rows = [
    group.acknowledged ? ["Acknowledged", acknowledgement(group)] : null,
    ["Broker", `${group.namespace}/${group.broker}`],
    ["Subscriber", group.subscriber || "no URL was tried"],
    group.summary ? ["Error, without varying parts", group.summary] : null,
    ["Failed events", `${number(group.events)}, ${number(group.unresolved)} of them unresolved`],
    ["Failures", `${number(group.failures)}, with ${counted(group.retries, "retry", "retries")}`],
    ["Share of deliveries", group.share == null ? "unknown" : percent(group.share)],
    ["Rate", `${rateText(group.rate)} failures an hour within the last day, ${number(group.lastHour ?? 0)} in the last hour`],
    ["First seen", `${moment(group.firstSeen)} (${ago(group.firstSeen)})`],
    ["Last seen", `${moment(group.lastSeen)} (${ago(group.lastSeen)})`],
    group.oldestUnresolved ? ["Oldest unresolved", `${moment(group.oldestUnresolved)} (${ago(group.oldestUnresolved)})`] : null,
    report.previous ? ["Since the last report", since.join(", ") || "unchanged"] : null,
  ];
  return make("dl", { class: "figures" }, rows.filter(Boolean).map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, make("bdi", {}, visible(value))))));
}

const percent = (share) =>
  share > 0 && share < 0.0001 ? "under 0.01 %" : `${(share * 100).toPrecision(3).replace(/\.?0+$/, "")} %`;

function tops(title, found) {
  if (!found.length) return null;
  return make("div", {}, make("h3", {}, title),
    make("ol", { class: "tops" }, found.map((top) =>
      make("li", {}, make("bdi", {}, visible(top.value)), " ", make("span", { class: "muted" }, number(top.events))))));
}

// Of a trace's id nothing but hexadecimal digits is put into the address.
function traceLink(each) {
  if (!traces || !/^[0-9a-f]{32}$/.test(each.trace ?? "")) return null;
  return make("a", { href: traces.replaceAll("{trace}", each.trace), target: "_blank", rel: "noopener noreferrer" }, "Its trace");
}

function example(group, each) {
  const where = each.topic == null ? null : `${each.topic}, partition ${each.partition}, offset ${each.offset}`;
  const facts = [
    each.type,
    each.source == null ? null : `from ${each.source}`,
    `failed ${moment(each.failedAt)} after ${counted(each.attempts, "attempt")}`,
    each.failures > 1 ? `dead-lettered ${number(each.failures)} times` : null,
    where,
  ];
  return make("li", {},
    make("p", {}, make("code", { class: "id" }, visible(each.id)), " ", each.resolved ? make("span", { class: "badge resolved" }, "resolved") : null),
    make("p", { class: "muted" }, make("bdi", {}, visible(facts.filter(Boolean).join(" · ")))),
    block("Error", each.error),
    block(dataTitle(each), each.dataPreview),
    make("p", { class: "actions" }, traceLink(each), sendOne(group, each)));
}

function dataTitle(each) {
  const type = each.dataContentType == null ? "" : `${each.dataContentType}, `;
  return `Data (${type}${counted(each.dataBytes ?? 0, "byte")})`;
}

const block = (title, text) =>
  text == null ? null : make("figure", {}, make("figcaption", { class: "muted" }, visible(title)), make("pre", { tabindex: "0" }, visible(text) || "(empty)"));
