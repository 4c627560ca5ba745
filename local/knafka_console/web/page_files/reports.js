// The DeadLetterArchives and their last reports, asked for when somebody opens the box.

function reportItem(each) {
  const of = encodeURIComponent(each.namespace) + "/" + encodeURIComponent(each.name);
  const facts = [
    `Broker ${each.broker}`,
    each.made ? `report of ${each.made.slice(0, 16).replace("T", " ")} UTC` : "no report yet",
    each.unresolved == null ? null : `${counted(each.unresolved, "unresolved event")} in ${counted(each.groups ?? 0, "failure")}`,
    each.waiting ? `${counted(each.waiting, "dead letter")} for the next run` : null,
  ];
  const name = visible(nameOf(each));
  return make("li", {},
    make("b", {}, each.made ? make("a", { href: `report?of=${of}` }, name) : name), " ",
    make("span", { class: "muted" }, visible(facts.filter(Boolean).join(" · "))),
    each.problem ? make("p", { class: "wrong" }, visible(`Not served: ${each.problem}`)) : null);
}

async function readReports() {
  const box = byId("reports-list");
  try {
    const { archives, problems } = await get("api/reports");
    box.replaceChildren(
      ...problems.map((each) => make("p", { class: "wrong" }, visible(each))),
      archives.length
        ? make("ul", { class: "examples" }, archives.map(reportItem))
        : make("p", { class: "muted" }, "There is no DeadLetterArchive that you may see."));
  } catch (error) {
    box.replaceChildren(make("p", { class: "wrong" }, visible(error.message)));
  }
}

byId("reports-box").addEventListener("toggle", () => {
  if (byId("reports-box").open) readReports();
});
