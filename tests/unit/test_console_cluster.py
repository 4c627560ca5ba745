"""The console's source of a cluster: an API server asked by the real client, under rights."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support.api_server import ApiServer, Rights
from support.console_cluster import PODS, TOPIC, console_cluster, metrics, ready
from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryLog, MemoryWriter

from knafka.core.dead_letter import Failure, Origin, dead_letter_of
from knafka.core.delivery import Reason
from knafka.core.errors import LogError
from knafka.core.events import json_format
from knafka.core.events.kafka_binding import to_record
from knafka.core.names import (
    broker_dead_letter_topic,
    dead_letter_topic,
    of_channel,
    replay_topic,
)
from knafka.observability import PRODUCED
from knafka_client.declared.declared_source import KafkaNotReached
from knafka_client.declared.kubernetes_api import KubernetesApi
from knafka_console.model.document import Action, EventName, Health
from knafka_console.model.source import Forbidden, NotFound, NotSignedIn, TriggerName
from knafka_console.sources import figures
from knafka_console.sources.cluster_console import ClusterConsole
from knafka_console.sources.cluster_kafka import ClusterKafka
from knafka_console.sources.dead_letter_topics import DeadLetterTopics
from knafka_console.sources.figures import TriggerKey
from knafka_console.sources.metrics import (
    DirectMetrics,
    MetricsUnavailable,
    ProxiedMetrics,
    SharedFigures,
)
from knafka_console.sources.reports import ConsoleScope
from knafka_operator.model.resources import EVENTING

MAIL = TriggerName("shop", "mail")
POST = TriggerName("shop", "mail", "Subscription")
ORDER = json_format.read(b'{"specversion":"1.0","id":"1","source":"/shop","type":"order"}')


@pytest.fixture
def cluster() -> Iterator[tuple[ApiServer, Any]]:
    with console_cluster() as found:
        yield found


@pytest.fixture
def memory() -> MemoryLog:
    return MemoryLog()


def console_of(
    client: Any, memory: MemoryLog, *, kafka: Any = None, clock: Any = time.monotonic, **scope: Any
) -> ClusterConsole:
    api = KubernetesApi(client)
    letters = DeadLetterTopics(lambda _: MemoryAdmin(memory), lambda _: MemoryWriter(memory))
    shared = SharedFigures(ProxiedMetrics(api, "knafka"))
    kafka = kafka or ClusterKafka(client, "knafka")
    return ClusterConsole(
        api, shared, kafka, ConsoleScope("dev", **scope), letters=letters, clock=clock
    )


@pytest.fixture
def console(cluster: tuple[ApiServer, Any], memory: MemoryLog) -> ClusterConsole:
    return console_of(cluster[1], memory)


def fail(memory: MemoryLog, broker: str, id_: str = "1") -> None:
    topic = dead_letter_topic("shop", broker, "mail")
    memory.create(topic)
    draft = to_record(ORDER)
    failure = Failure("http://mail/", Reason.STATUS, 1, 0.0, 0.0, 400, b"no")
    origin = Origin("shop", broker, "mail", "t", 0, 1)
    headers, value = dead_letter_of(draft.headers, draft.value, failure, origin)
    memory.store(topic, draft.key, value, headers)


async def test_a_clusters_flow_has_figures_from_the_operator_that_acts(
    console: ClusterConsole,
) -> None:
    found = await console.state()
    assert [(each.kind, each.name, each.accepted, each.rejected) for each in found.brokers] == [
        ("Broker", "main", 42, None),
        ("KafkaChannel", "orders", 5, None),
    ]
    mail, post = found.triggers
    assert (mail.kind, mail.lag, mail.replicas, mail.delivered) == ("Trigger", 12, 2, 7)
    assert (mail.retried, mail.dead_lettered, mail.filters) == (2, 1, "type=order")
    assert mail.health is Health.DELIVERING
    assert (post.kind, post.lag, post.replicas) == ("Subscription", 3, 0)
    assert (found.kafka, found.place, found.problems) == ("kafka:9092", "dev", ())


async def test_without_the_operators_metrics_the_objects_are_shown_and_that_is_said(
    cluster: tuple[ApiServer, Any], console: ClusterConsole
) -> None:
    cluster[0].refused[PODS] = 403
    found = await console.state()
    assert [each.lag for each in found.triggers] == [None, None]
    (problem,) = found.problems
    assert "rates, lag and dispatchers are not known: can't list pods in knafka" in problem


async def test_an_open_page_lists_objects_every_few_seconds_and_a_closed_one_never(
    cluster: tuple[ApiServer, Any], memory: MemoryLog
) -> None:
    now = 0.0
    console = console_of(cluster[1], memory, clock=lambda: now)
    assert cluster[0].asked == [], "nobody looks"
    for _ in range(5):
        await console.state()
    path = f"/apis/{EVENTING}/triggers"
    assert cluster[0].asked.count(path) == 1
    now = 3.0
    await console.state()
    assert cluster[0].asked.count(path) == 2


async def test_a_trigger_and_a_subscription_are_opened(console: ClusterConsole) -> None:
    found = await console.details(MAIL)
    assert (found.order, set(found.may)) == ("key", set(Action))
    assert [each.type for each in found.conditions] == ["Ready"]
    found = await console.details(POST)
    assert (found.order, found.reply) == ("ordered", "http://answers/")
    for name in ("nobody", "..", "", "mail/status"):
        with pytest.raises(NotFound, match=f"there is no Trigger shop/{name}"):
            await console.details(TriggerName("shop", name))


async def test_who_would_get_an_event_is_answered_of_our_triggers(console: ClusterConsole) -> None:
    assert [(each.name, each.gets_it) for each in await console.verdicts(ORDER)] == [("mail", True)]


@pytest.mark.parametrize(("trigger", "version", "kind"), [
    (MAIL, EVENTING, "Trigger"), (POST, "messaging.knative.dev/v1", "Subscription"),
])  # fmt: skip
async def test_pausing_annotates_the_object(
    cluster: tuple[ApiServer, Any],
    console: ClusterConsole,
    trigger: TriggerName,
    version: str,
    kind: str,
) -> None:
    assert "is paused" in await console.pause(trigger, paused=True)
    stored = cluster[0].found(version, kind, "shop", "mail")
    assert stored is not None
    assert stored["metadata"]["annotations"] == {"knafka.dev/paused": "true"}
    assert "already" in await console.pause(trigger, paused=True)
    await console.pause(trigger, paused=False)
    stored = cluster[0].found(version, kind, "shop", "mail")
    assert stored is not None
    assert stored["metadata"]["annotations"] == {"knafka.dev/paused": "false"}


@pytest.mark.parametrize(("trigger", "broker"), [(MAIL, "main"), (POST, of_channel("orders"))])
async def test_dead_letters_are_shown_and_sent_again(
    console: ClusterConsole, memory: MemoryLog, trigger: TriggerName, broker: str
) -> None:
    """KN-DLV, CHN-32: where the operator's dispatchers look for them."""
    fail(memory, broker)
    found = await console.failures(trigger)
    assert [(each.id, each.code) for each in found.last] == [("1", "400")]
    wanted = [EventName(id="1", source="/shop")]
    assert (await console.replay(trigger, wanted, dry_run=False)).replay
    assert sum(map(len, memory.topics[replay_topic("shop", broker, "mail")])) == 1


async def test_what_holds_no_event_is_shown_of_its_broker_with_each_of_its_triggers(
    console: ClusterConsole, memory: MemoryLog
) -> None:
    """Decision 0031: it is no Trigger's, and there is nothing that could be sent again."""
    fail(memory, "main")
    topic = broker_dead_letter_topic("shop", "main")
    memory.create(topic)
    failure = Failure("", Reason.UNDECODABLE, 0, 0.0, 0.0)
    headers, value = dead_letter_of([], b"raw", failure, Origin("shop", "main", "", "t", 0, 7))
    memory.store(topic, None, value, headers)
    found = await console.failures(MAIL)
    assert sorted((each.of_broker, each.reason) for each in found.last) == [
        (False, "status"),
        (True, "undecodable-record"),
    ]


def only(namespace: str, *allowed: tuple[str, str]) -> Rights:
    """Verb and resource (`triggers/replays`) in one namespace."""

    def rights(asked: Mapping[str, str]) -> bool:
        parts = filter(None, [asked["resource"], asked.get("subresource", "")])
        return asked["namespace"] == namespace and (asked["verb"], "/".join(parts)) in allowed

    return rights


LOOKS = (
    *((verb, kind) for verb in ("get", "list")
      for kind in ("brokers", "triggers", "kafkachannels", "subscriptions")),
)  # fmt: skip


def signed_in(client: Any, token: str) -> Any:
    import kubernetes

    configuration = kubernetes.client.Configuration()
    configuration.host = client.configuration.host
    configuration.api_key = {"authorization": f"Bearer {token}"}
    return kubernetes.client.ApiClient(configuration)


async def test_a_viewer_sees_and_does_what_kubernetes_allows(
    cluster: tuple[ApiServer, Any], memory: MemoryLog
) -> None:
    """The viewer's own token is used for all that is read and written."""
    server, client = cluster
    server.users = {"ada": only("shop", *LOOKS)}
    ada = signed_in(client, "ada")
    with pytest.raises(Forbidden, match="name the namespaces"):
        await console_of(ada, memory).state()
    console = console_of(ada, memory, namespaces=["shop"])
    assert [each.name for each in (await console.state()).triggers] == ["mail", "mail"]
    other = console_of(ada, memory, namespaces=["other"])
    found = await other.state()
    assert (found.triggers, len(found.problems)) == ((), 5)

    assert (await console.details(MAIL)).may == (Action.REPLAY,), "by her own rights to Kafka"
    with pytest.raises(Forbidden, match="can't patch triggers shop/mail"):
        await console.pause(MAIL, paused=True)
    stored = server.found(EVENTING, "Trigger", "shop", "mail")
    assert stored is not None
    assert "annotations" not in stored["metadata"]
    with pytest.raises(Forbidden):
        await console.details(TriggerName("other", "mail"))
    with pytest.raises(NotSignedIn):
        await console_of(signed_in(client, "nobody"), memory).state()


async def test_what_is_in_kafka_needs_a_right_of_its_own_where_another_account_reads_it(
    cluster: tuple[ApiServer, Any], memory: MemoryLog
) -> None:
    """Who may see a Trigger needn't see what events carry."""
    server, client = cluster
    own = ("get", "configmaps"), ("get", "secrets")
    reads = ("get", "triggers/deadletters")
    server.users = {
        "ada": only("shop", *LOOKS),
        "eve": only("shop", *LOOKS, reads),
        "joe": only("shop", *LOOKS, reads, ("create", "triggers/replays")),
        "function": only("knafka", *own),
    }
    system = signed_in(client, "function")
    fail(memory, "main")
    wanted = [EventName(id="1", source="/shop")]

    def as_(name: str) -> ClusterConsole:
        viewer = signed_in(client, name)
        kafka = ClusterKafka(viewer, "knafka", system=system)
        return console_of(
            viewer, memory, kafka=kafka, reads_kafka_with_own_account=True, namespaces=["shop"]
        )

    with pytest.raises(Forbidden, match="you may not get triggers/deadletters in shop"):
        await as_("ada").failures(MAIL)
    with pytest.raises(Forbidden):
        await as_("ada").replay(MAIL, wanted, dry_run=True)
    assert len((await as_("eve").failures(MAIL)).last) == 1
    assert (await as_("eve").details(MAIL)).may == ()
    with pytest.raises(Forbidden, match="you may not create triggers/replays in shop"):
        await as_("eve").replay(MAIL, wanted, dry_run=True)
    assert (await as_("joe").details(MAIL)).may == (Action.REPLAY,)
    assert (await as_("joe").replay(MAIL, wanted, dry_run=False)).replay


async def test_a_status_that_somebody_else_wrote_names_no_other_topic_to_read(
    cluster: tuple[ApiServer, Any], memory: MemoryLog
) -> None:
    """An editor's role may hold `triggers/status`: the function's account isn't led by that."""
    server, client = cluster
    other = dead_letter_topic("bank", "main", "ledger")
    declared = server.found(EVENTING, "Trigger", "shop", "mail")
    assert declared is not None
    status = ready(annotations={"knafka.dev/dead-letter-topic": other})
    server.put(EVENTING, "Trigger", "shop", "mail", spec=declared["spec"], status=status)
    document = server.found(EVENTING, "Trigger", "shop", "mail")
    assert document is not None
    egress, _ = await ClusterKafka(client, "knafka", system=client).find(document)
    assert egress.dead_letter_topic == dead_letter_topic("shop", "main", "mail")


async def test_metrics_are_fetched_once_for_all_who_look(cluster: tuple[ApiServer, Any]) -> None:
    server, client = cluster
    now = 0.0
    shared = SharedFigures(ProxiedMetrics(KubernetesApi(client), "knafka"), lambda: now)
    for _ in range(3):
        await shared.current()
    assert server.asked.count(PODS) == 1
    now = 1.0
    await shared.current()
    assert server.asked.count(PODS) == 2


async def test_a_kafka_that_is_not_reached_says_how_to_name_another_address(
    cluster: tuple[ApiServer, Any], memory: MemoryLog
) -> None:
    def unreached(_: object) -> MemoryAdmin:
        raise LogError("no answer")

    api = KubernetesApi(cluster[1])
    console = ClusterConsole(
        api,
        SharedFigures(ProxiedMetrics(api, "knafka")),
        ClusterKafka(cluster[1], "knafka"),
        ConsoleScope("dev", unreached_hint="name another with --bootstrap-servers"),
        letters=DeadLetterTopics(unreached),
    )
    with pytest.raises(KafkaNotReached, match="no answer: name another with --bootstrap-servers"):
        await console.failures(MAIL)


def test_in_a_cluster_each_replica_is_asked_at_its_own_address(
    cluster: tuple[ApiServer, Any],
) -> None:
    server, client = cluster
    server.raw["/metrics"] = metrics(True)
    host, _, port = client.configuration.host.removeprefix("http://").partition(":")
    (text,) = DirectMetrics(host, int(port)).read()
    assert figures.parse_figures([text]).written[TOPIC] == 42
    with pytest.raises(MetricsUnavailable, match=r"isn't found at nowhere\.invalid"):
        DirectMetrics("nowhere.invalid").read()
    with pytest.raises(MetricsUnavailable, match="can't be read"):
        DirectMetrics(host, 1).read()


async def test_one_replica_that_does_not_answer_leaves_the_other(
    cluster: tuple[ApiServer, Any], console: ClusterConsole
) -> None:
    server, _ = cluster
    path = f"{PODS}/operator-a:9090/proxy/metrics"
    del server.raw[path]
    server.refused[path] = 503
    found = await console.state()
    assert (found.triggers[0].lag, found.problems) == (12, ())


def test_a_replica_that_no_longer_acts_has_no_say() -> None:
    both = figures.parse_figures([metrics(True, 7), metrics(False)])
    assert both.triggers[TriggerKey("Trigger", "shop", "mail")].outcomes["delivered"] == 7
    old = metrics(True, 5).replace("knafka_operator_leader 1.0", "knafka_operator_leader 0.0")
    assert figures.parse_figures([old]).triggers == {}
    with pytest.raises(figures.InvalidMetrics):
        figures.parse_figures(["knafka_trigger_lag{ nonsense"])
    with pytest.raises(figures.InvalidMetrics, match="no label topic"):
        figures.parse_figures([f"{metrics(True, 7)}\n{PRODUCED}{{}} 3\n"])
