// The frame: filters, figures of everything, and the first drawing.

function choice(name, label, options) {
  const select = make("select", { name, onchange: () => narrow({ [name]: select.value }) },
    options.map(([value, shownAs]) => make("option", { value }, shownAs)));
  return make("label", {}, label, select);
}

function narrow(changes) {
  Object.assign(view, { limit: PAGE_SIZE }, changes);
  drawFlow();
}

function drawFilters() {
  const search = make("input", {
    type: "search",
    name: "search",
    placeholder: "Trigger, Broker, channel, filter, subscriber…",
    oninput: later(() => narrow({ search: search.value })),
  });
  byId("filters").replaceChildren(
    make("label", { class: "search" }, "Search", search),
    choice("health", "State", [["", "all"], ["bad", "anything wrong"], ...Object.entries(HEALTH).map(([value, [words]]) => [value, words])]),
    choice("sort", "Order", Object.keys(SORTS).map((value) => [value, value])));
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("more").addEventListener("click", () => narrow({ limit: view.limit + PAGE_SIZE }));
}

const tiles = new Map();

function tile(title, value, below, names = "") {
  if (!tiles.has(title)) {
    const [figure, small] = [make("dd"), make("dd", { class: "muted" })];
    const element = make("div", {}, make("dt", {}, title), figure, small);
    tiles.set(title, { element, figure, small });
    byId("tiles").append(element);
  }
  const { element, figure, small } = tiles.get(title);
  write(figure, value);
  write(small, below);
  setClass(element, `tile ${names}`);
}

function drawTiles() {
  const { brokers, triggers } = state;
  const rate = (objects, index) => sum(objects.map((each) => rateOf(keyOf(each), index)));
  const total = (name) => sum(triggers.map((each) => each[name] ?? 0));
  const wrong = triggers.filter((each) => BAD.includes(each.health)).length + brokers.filter((each) => each.refused).length;
  tile("Accepted", perSecond(rate(brokers, 0)), `${number(sum(brokers.map((each) => each.accepted)))} by ${countedKinds(brokers, "Broker")}`);
  tile("Delivered", perSecond(rate(triggers, 0)), `${number(total("delivered"))} by ${counted(total("replicas"), "dispatcher")} now`);
  tile("Waiting", number(total("lag")), `for ${countedKinds(triggers.filter((each) => each.lag))}`);
  tile("Dead letters", number(total("deadLettered")), "since the start", total("deadLettered") ? "bad" : "good");
  tile("Not as it should be", number(wrong), `of ${countedKinds(brokers, "Broker")}, ${countedKinds(triggers)}`, wrong ? "bad" : "good");
}

function draw() {
  write(byId("place"), state.place);
  write(byId("kafka"), `Kafka ${state.kafka}`);
  const link = byId("link");
  write(link, "live");
  setClass(link, "badge resolved");
  byId("problems").hidden = state.problems.length === 0;
  arrange(byId("problems"), state.problems.map((each, index) => {
    const item = byId("problems").children[index] ?? make("li");
    write(item, each);
    return item;
  }));
  byId("reports").hidden = !state.archives;
  drawTiles();
  drawFlow();
  document.documentElement.dataset.ready = "true";
}

function lost(error) {
  // The sign-in page is there now, unless somebody else, such as a proxy, gives the token.
  if (error.status === 401 && !byId("sign-out").hidden) return location.reload();
  write(byId("link"), error instanceof TypeError ? "no connection: it is asked again" : error.message);
  setClass(byId("link"), "badge failed-again");
}

// Rates fall also while nothing changes; at rest nothing is drawn.
setInterval(() => {
  const since = performance.now() - WINDOW - 2_000;
  if (document.hidden || ![...samples.values()].some((kept) => kept.length > 1 && kept.at(-1)[0] > since)) return;
  drawTiles();
  drawFlow();
}, 1000);

// Where one has signed in: the token itself is in a cookie that no script can read.
byId("sign-out").hidden = !document.cookie.includes("knafka-session=");
byId("sign-out").addEventListener("click", () => attempt(async () => {
  await call("api/sign-out", { method: "POST", headers: { "knafka-console": "1" } });
  location.reload();
}));

drawFilters();
byId("who-box").append(eventForm("who", "Ask all Triggers", drawVerdicts));
follow(draw, lost);
