"""The console as a person meets it: in a real Chromium without a head.

`KNAFKA_DOCS_IMAGES=1` renews its pictures in docs/images.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeAlias

import pytest
from selenium.webdriver import Chrome, Keys
from support.browser import every, look_as, one, picture, script, wait
from support.console import MemorySource, letter, row, served, subscription, trigger
from support.reports import sample_group, sample_report

from knafka_client.state.snapshot import BrokerRow, ConditionRow
from knafka_console.model.document import Action
from knafka_jobs.report.report_page import render_file

HOSTILE = "</script><script>pwned=1</script><img src=x onerror='pwned=1'>\"'"
UNAVAILABLE = ConditionRow("Delivering", "False", "SubscriberUnavailable", "no answer", "Warning")
ORDERS = [{"exact": {"type": "com.example.order.placed"}}]

Open: TypeAlias = Callable[..., Chrome]
"""`open_page(source, width=1280, height=900, dark=False)`: the browser, at the source's console."""


@pytest.fixture
def open_page(chromium: Chrome) -> Iterator[Open]:
    """Opens a console; at the end nothing was complained about, and nobody else was asked."""
    with ExitStack() as stack:
        urls: list[str] = []

        def open_page(
            source: MemorySource, width: int = 1280, height: int = 900, dark: bool = False
        ) -> Chrome:
            url = stack.enter_context(served(source))
            urls.append(url)
            look_as(chromium, width, height, dark=dark)
            chromium.get(url)
            wait(chromium, lambda: script(chromium, "document.documentElement.dataset.ready"))
            return chromium

        chromium.get_log("performance")  # type: ignore[no-untyped-call]
        yield open_page
        assert not one(chromium, "#trouble").is_displayed(), one(chromium, "#trouble").text
        complaints = chromium.get_log("browser")  # type: ignore[no-untyped-call]
        # Chromium names each answer with an error's status as one.
        assert [each for each in complaints if "status of 4" not in each["message"]] == []
        entries = chromium.get_log("performance")  # type: ignore[no-untyped-call]
        events = [json.loads(each["message"])["message"] for each in entries]
        asked = [
            each["params"]["request"]["url"]
            for each in events
            if each["method"] == "Network.requestWillBeSent"
        ]
        assert all(each.startswith((*urls, "data:")) for each in asked), asked
        chromium.get("about:blank")  # what waits for a change ends before its server does


def shop() -> MemorySource:
    """One Broker; a Trigger for each state that there is."""
    source = MemorySource(
        [
            trigger("mail", filters=ORDERS),
            trigger("audit"),
            trigger("stock", filters=[{"prefix": {"type": "com.example.stock"}}]),
            trigger("ledger", broker="accounts"),
        ],
        [
            row("mail", lag=1234, replicas=2, delivered=10, decision="1234 events waiting"),
            row("audit", lag=50, dead_lettered=3, error="SubscriberUnavailable: no answer",
                conditions=(UNAVAILABLE,)),
            row("stock", lag=7, paused=True),
            row("ledger", broker="accounts", refused="BrokerDoesNotExist: no Broker accounts"),
        ],
    )  # fmt: skip
    source.letters = [letter(1), letter(2), letter(3, code="500", error="database is away")]
    return source


def card(chromium: Chrome, name: str) -> Any:
    """The Trigger's row."""
    return next(
        each for each in every(chromium, ".trigger") if each.text.startswith(name)
    )  # fmt: skip


def opened(chromium: Chrome, name: str) -> Any:
    """Opens it as somebody without a mouse does; its details."""
    return opened_in(chromium, card(chromium, name))


def opened_in(chromium: Chrome, trigger_row: Any) -> Any:
    opener = trigger_row.find_element("css selector", ".opener")
    opener.send_keys(Keys.ENTER)
    assert opener.get_attribute("aria-expanded") == "true"
    details = one(chromium, f"#{opener.get_attribute('aria-controls')}")
    wait(chromium, lambda: details.find_elements("css selector", ".conditions"))
    wait(chromium, lambda: "Reading its" not in details.text)
    return details


def test_a_flow_shows_brokers_triggers_and_subscribers_with_how_they_do(open_page: Open) -> None:
    chromium = open_page(shop())
    assert [each.text for each in every(chromium, ".broker h2")] == [
        "default/accounts",
        "default/shop",
    ]
    assert "This Broker isn't there" in every(chromium, ".broker")[0].text
    mail = card(chromium, "mail").text
    for text in ("1,234 waiting", "2 of 4 dispatchers", "delivering", "http://mail.test/"):
        assert text in mail
    for name, state in {"audit": "circuit open", "stock": "paused", "ledger": "not ready"}.items():
        assert state in card(chromium, name).text
    assert "type=com.example.order.placed" in mail


def with_a_channel() -> MemorySource:
    """Beside the Broker `shop` a KafkaChannel of its name; both have a `mail`."""
    source = shop()
    url = "http://127.0.0.1:8081/default/shop"
    source.brokers.append(BrokerRow("default/shop", url, 7, kind="KafkaChannel"))
    rows = {"mail": {"lag": 5, "replicas": 1}, "archive": {"dead_lettered": 2}}
    for name, values in rows.items():
        source.triggers.append(subscription(name, "shop"))
        source.rows.append(replace(row(name, **values), kind="Subscription"))
    return source


def test_channels_are_a_flow_of_their_own_beside_brokers(open_page: Open) -> None:
    """KN-CHN-01: Subscriptions with their lag, dispatchers and dead letters; one of a Trigger's
    name is another one."""
    source = with_a_channel()
    chromium = open_page(source)
    flows = every(chromium, ".flow")
    assert [each.find_element("css selector", "h2").text for each in flows] == [
        "default/accounts",
        "default/shop",
        "default/shop KafkaChannel",
    ]
    of_broker, of_channel = (
        [each.text.split("\n")[0] for each in flow.find_elements("css selector", ".trigger")]
        for flow in flows[1:]
    )
    assert (of_broker, of_channel) == (["audit", "mail", "stock"], ["archive", "mail"])
    mail = flows[2].find_elements("css selector", ".trigger")[1]
    for text in ("5 waiting", "1 of 4 dispatchers", "delivering", "http://mail.test/"):
        assert text in mail.text
    assert "by 1 Broker, 1 KafkaChannel" in one(chromium, "#tiles").text
    assert one(chromium, "#found").text == "4 Triggers, 2 Subscriptions"

    source.busy.add(("Subscription", "mail"))
    wait(chromium, lambda: "flowing" in (mail.get_attribute("class") or ""))
    of_broker_mail = flows[1].find_elements("css selector", ".trigger")[1]
    assert "flowing" not in (of_broker_mail.get_attribute("class") or "")
    one(chromium, "[name=search]").send_keys("subscription archive")
    wait(chromium, lambda: one(chromium, "#found").text == "1 Subscription of 6")


def test_a_subscription_is_opened_and_paused_by_keyboard(open_page: Open) -> None:
    source = with_a_channel()
    chromium = open_page(source)
    flow = every(chromium, ".flow")[2]
    details = opened_in(chromium, flow.find_elements("css selector", ".trigger")[1])
    assert "All that its channel takes." in details.text
    assert "Replies are discarded." in details.text
    assert "Order: ordered" in details.text
    assert "Would it get this event?" not in details.text, "it has no filters"
    chromium.switch_to.active_element.send_keys(Keys.TAB)
    button = chromium.switch_to.active_element
    assert button.text == "Pause"
    button.send_keys(Keys.ENTER)
    wait(chromium, lambda: button.text == "Resume")
    paused = {(each.kind, each.name): each.paused for each in source.rows}
    assert paused["Subscription", "default/mail"]
    assert not paused["Trigger", "default/mail"]
    details.find_element("css selector", ".reasons button").send_keys(Keys.ENTER)
    wait(chromium, lambda: one(chromium, "#ask").is_displayed())
    one(chromium, "#ask .primary").click()
    wait(chromium, lambda: source.replayed)
    assert source.replayed[0][0] == "Subscription default/mail"


def test_figures_and_rates_follow_what_happens_and_fall_again(open_page: Open) -> None:
    source = shop()
    chromium = open_page(source)
    opener = card(chromium, "mail").find_element("css selector", ".opener")
    script(chromium, "arguments[0].focus()", opener)
    source.busy.add(("Trigger", "mail"))
    source.set("mail", lag=234)
    wait(chromium, lambda: "1,234 waiting" not in card(chromium, "mail").text)
    assert "234 waiting" in card(chromium, "mail").text
    assert "\n0/s delivered" not in card(chromium, "mail").text
    assert "flowing" in card(chromium, "mail").get_attribute("class")
    assert script(chromium, "document.activeElement === arguments[0]", opener)
    source.busy.clear()
    wait(chromium, lambda: "\n0/s delivered" in card(chromium, "mail").text)
    assert "flowing" not in card(chromium, "mail").get_attribute("class")


def test_a_trigger_is_paused_and_resumed_by_keyboard(open_page: Open) -> None:
    source = shop()
    chromium = open_page(source)
    opened(chromium, "mail")
    focused = chromium.switch_to.active_element
    focused.send_keys(Keys.TAB)
    button = chromium.switch_to.active_element
    assert button.text == "Pause"
    outline = script(chromium, "getComputedStyle(arguments[0]).outlineStyle", button)
    assert outline == "solid", "where the focus is can be seen"
    button.send_keys(Keys.ENTER)
    wait(chromium, lambda: button.text == "Resume")
    assert source.rows[0].paused
    assert "paused" in one(chromium, "#said").text
    assert script(chromium, "document.activeElement === arguments[0]", button)
    button.send_keys(Keys.SPACE)
    wait(chromium, lambda: button.text == "Pause")
    assert not source.rows[0].paused


def test_what_a_viewer_may_not_do_has_no_button(open_page: Open) -> None:
    source = shop()
    source.may = ()
    chromium = open_page(source)
    details = opened(chromium, "mail")
    texts = [each.text for each in details.find_elements("css selector", "button")]
    assert [each for each in texts if each] == ["Ask this Trigger", "Look again", "Copy", "Copy"]


def test_everybody_is_asked_who_would_get_an_event(open_page: Open) -> None:
    chromium = open_page(shop())
    one(chromium, "#who summary").click()
    one(chromium, "#who .primary").click()
    wait(chromium, lambda: every(chromium, "#who .verdicts"))
    rows = [each.text for each in every(chromium, "#who tbody tr")]
    assert rows[0].startswith("yes")
    assert "default/mail" in rows[0]
    stock = next(each for each in rows if "default/stock" in each)
    assert stock.startswith("no")
    assert "filters[0].prefix.type" in stock

    text = one(chromium, "#who textarea")
    text.clear()
    text.send_keys("{")
    one(chromium, "#who .primary").click()
    wait(chromium, lambda: every(chromium, "#who .wrong"))
    assert every(chromium, "#who .verdicts") == []


def test_a_trigger_says_which_of_its_clauses_refuses_an_event(open_page: Open) -> None:
    chromium = open_page(shop())
    details = opened(chromium, "stock")
    assert (
        "prefix:\n    type: com.example.stock" in details.find_element("css selector", "pre").text
    )
    details.find_element("css selector", ".ask button").send_keys(Keys.ENTER)
    wait(chromium, lambda: "These clauses refuse it" in details.text)
    assert "filters[0].prefix.type" in details.find_element("css selector", ".clauses").text


def test_failures_are_sent_again_only_when_somebody_says_yes(open_page: Open) -> None:
    source = shop()
    chromium = open_page(source)
    details = opened(chromium, "audit")
    assert "status 400 2 events" in details.text.replace("\n", " ")
    assert "database is away" in details.text
    assert "knafka dead-letters show default/audit" in details.text
    both = next(
        each
        for each in details.find_elements("css selector", ".reasons button")
        if "all 2" in each.text
    )
    both.send_keys(Keys.ENTER)
    wait(chromium, lambda: one(chromium, "#ask").is_displayed())
    assert "Send 2 events again?" in one(chromium, "#ask").text
    chromium.switch_to.active_element.send_keys(Keys.ESCAPE)
    wait(chromium, lambda: not one(chromium, "#ask").is_displayed())
    assert source.replayed == []
    assert script(chromium, "document.activeElement === arguments[0]", both)

    both.send_keys(Keys.ENTER)
    wait(chromium, lambda: one(chromium, "#ask").is_displayed())
    source.letters.append(letter(4, error="seen once more"))
    one(chromium, "#ask .primary").click()
    wait(chromium, lambda: source.replayed)
    ((name, events),) = source.replayed
    assert (name, {each.id for each in events}) == ("default/audit", {"order-1", "order-2"})
    wait(chromium, lambda: "2 events sent again" in one(chromium, "#said").text)
    wait(chromium, lambda: "seen once more" in details.text)


def test_the_report_opens_apart_from_the_console(open_page: Open) -> None:
    """What events carry is in it: it is of no origin, so it could ask the console for nothing."""
    source = shop()
    source.page = render_file(sample_report(sample_group(1))).encode()
    chromium = open_page(source)
    details = opened(chromium, "audit")
    link = details.find_element("partial link text", "last report")
    url = link.get_attribute("href")
    assert url is not None
    chromium.get(url)
    wait(chromium, lambda: script(chromium, "document.documentElement.dataset.ready"))
    assert script(chromium, "self.origin") == "null"
    assert one(chromium, ".group .name").text


def test_of_a_thousand_triggers_only_those_that_are_shown_are_drawn(open_page: Open) -> None:
    names = [f"trigger-{number:04}" for number in range(1000)]
    source = MemorySource([trigger(each) for each in names], [row(each) for each in names])
    source.set("trigger-0777", paused=True)
    chromium = open_page(source)
    assert len(every(chromium, ".trigger")) == 100
    assert one(chromium, "#found").text == "1,000 Triggers of 1,000, the first 100 here"
    one(chromium, "#more").click()
    assert len(every(chromium, ".trigger")) == 200
    one(chromium, "[name=search]").send_keys("077 paused")
    wait(chromium, lambda: one(chromium, "#found").text.startswith("1 Trigger of"))
    for each in names:
        source.set(each, delivered=100)
    wait(chromium, lambda: "100K by" in one(chromium, "#tiles").text)
    assert len(every(chromium, ".trigger")) == 1, "only what is shown is drawn"


def test_nothing_is_asked_while_the_page_is_hidden(open_page: Open) -> None:
    source = shop()
    chromium = open_page(source)
    first = chromium.current_window_handle
    chromium.switch_to.new_window("tab")
    other = chromium.current_window_handle
    try:
        asked = -1

        def at_rest() -> bool:
            nonlocal asked
            before, asked = asked, source.asked
            script(chromium, "await new Promise((done) => setTimeout(done, 2500))")
            return before == asked

        wait(chromium, at_rest, 30)
        chromium.switch_to.window(first)
        wait(chromium, lambda: source.asked > asked)
    finally:
        chromium.switch_to.window(other)
        chromium.close()
        chromium.switch_to.window(first)


def test_a_server_that_went_away_is_said_and_found_again(chromium: Chrome) -> None:
    look_as(chromium, 1280, 900, dark=False)
    source = shop()
    with served(source) as url:
        chromium.get(url)
        wait(chromium, lambda: one(chromium, "#link").text == "live")
    wait(chromium, lambda: "no connection" in one(chromium, "#link").text)
    assert card(chromium, "mail"), "what was known last stays"
    chromium.get_log("browser")  # type: ignore[no-untyped-call]
    chromium.get("about:blank")


def test_what_others_have_written_is_shown_as_text_and_never_run(open_page: Open) -> None:
    source = shop()
    source.letters = [letter(1, id=HOSTILE, error=HOSTILE, data=HOSTILE, type=HOSTILE)]
    source.problems = (HOSTILE,)
    source.set("mail", refused=HOSTILE)
    source.brokers.append(BrokerRow("default/other", refused=HOSTILE))
    chromium = open_page(source)
    opened(chromium, "mail")
    assert script(chromium, "typeof pwned") == "undefined"
    assert every(chromium, "img") == []
    assert HOSTILE in one(chromium, "#problems").text


@pytest.mark.parametrize("width", [320, 360, 768, 1280])
def test_nothing_is_wider_than_the_window(open_page: Open, width: int) -> None:
    source = shop()
    long = "t" * 63
    wanted = [{"exact": {"type": "t" * 200}}]
    source.triggers.append(trigger(long, filters=wanted, subscriber={"uri": f"http://{'s' * 200}"}))
    source.rows.append(row(long, refused="r" * 300))
    source.brokers.append(BrokerRow(f"default/{'b' * 63}", f"http://127.0.0.1/{'u' * 100}"))
    source.letters = [letter(1, id="i" * 300, error="e" * 300, source="s" * 300)]
    source.problems = ("p" * 300,)
    chromium = open_page(source, width)
    opened(chromium, long)
    one(chromium, "#who summary").click()
    one(chromium, "#who .primary").click()
    wait(chromium, lambda: every(chromium, "#who .verdicts"))
    assert script(chromium, "document.documentElement.scrollWidth") == width


CONTRASTS = """(() => {
  const channel = (value) => (value /= 255) <= 0.04045
    ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const ground = (element) => {
    for (; element; element = element.parentElement) {
      const found = parts(getComputedStyle(element).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll("body *")]
    .filter((each) => each.checkVisibility()
      && [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
    .map((each) => {
      const [a, b] = [light(parts(getComputedStyle(each).color)), light(ground(each))];
      return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), each.outerHTML.slice(0, 100)];
    })
    .sort((a, b) => a[0] - b[0]);
})()"""


@pytest.mark.parametrize(
    ("name", "width", "height", "dark"),
    [("light", 1280, 960, False), ("dark", 1280, 960, True), ("phone", 390, 844, True)],
)
def test_the_page_is_made_for_light_dark_and_phones(
    open_page: Open, name: str, width: int, height: int, dark: bool
) -> None:
    """All text has the contrast that WCAG 2.2 AA asks for, 4.5 to 1."""
    source = shop()
    chromium = open_page(source, width, height, dark)
    ground = script(chromium, "getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(15, 18, 22)" if dark else "rgb(244, 245, 247)")
    source.set("mail", delivered=860)
    source.brokers[0] = BrokerRow("default/shop", "http://127.0.0.1:8080/default/shop", 910)
    wait(chromium, lambda: every(chromium, ".trigger.flowing"))
    assert picture(chromium, f"console-{name}.png").startswith(b"\x89PNG")
    opened(chromium, "audit")
    contrasts = script(chromium, CONTRASTS)
    assert isinstance(contrasts, list)
    assert contrasts[0][0] >= 4.5, contrasts[:3]


def test_actions_are_those_that_the_page_knows() -> None:
    assert {each.value for each in Action} == {"pause", "replay"}
