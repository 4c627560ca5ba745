"""What every `DeclaredSource` promises: what `knafka up` runs, and a cluster's API server."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.api_server import ApiServer, api_server, kubeconfig

from knafka.core.contract import Egress, Ingress, Kafka, Sink
from knafka.core.errors import LogError
from knafka.core.filters.declared_filters import AttributesFilter
from knafka.core.names import dead_letter_topic
from knafka_client.declared.cluster_source import ClusterSource, client_of
from knafka_client.declared.declared_source import (
    DeclaredSource,
    InstallationSource,
    KafkaNotReached,
    trigger_name_of,
)
from knafka_client.declared.triggers import UnknownObject
from knafka_client.state import snapshot_file
from knafka_client.state.installation import Installation, RunningState
from knafka_client.state.snapshot import Snapshot, TriggerRow
from knafka_operator.model.cluster import ClusterError, NotAllowed
from knafka_operator.model.resources import CORE, EVENTING

KAFKA = Kafka(bootstrap_servers="kafka:9092")
LETTERS = dead_letter_topic("shop", "main", "mail")


class DeclaredSourceContract:
    """`tested` has the Broker shop/main with its Triggers mail (orders only) and audit (paused),
    and the Broker shop/more with none."""

    def test_brokers_have_their_topics(self, tested: DeclaredSource) -> None:
        view = tested.read("shop")
        topics = {each.broker: each.topic for each in view.ingresses}
        assert topics == {"main": "main-topic", "more": "knative-broker-shop-more"}
        assert (
            view.find_ingress("shop/main") == view.find_ingress("main") != view.find_ingress("more")
        )

    def test_triggers_have_their_groups_dead_letter_topics_and_filters(
        self, tested: DeclaredSource
    ) -> None:
        view = tested.read("shop")
        mail = view.find_egress("mail")
        assert (mail.topic, mail.group) == ("main-topic", "knative-trigger-shop-mail")
        assert mail.dead_letter_topic == LETTERS
        assert mail.filter.attributes == {"type": "order"}
        assert mail.subscriber.url == "http://mail/"
        assert mail.dead_letter_sink == Sink(url="http://sink/")
        assert [each.trigger for each in view.egresses_of(view.find_ingress("main"))] == [
            "audit",
            "mail",
        ]
        assert view.egresses_of(view.find_ingress("more")) == []

    def test_paused_triggers_are_known(self, tested: DeclaredSource) -> None:
        assert tested.read("shop").paused == {"shop/audit"}

    def test_kafka_is_reached_as_the_broker_says(self, tested: DeclaredSource) -> None:
        view = tested.read("shop")
        for of in (view.find_ingress("main"), view.find_egress("mail")):
            assert view.kafka_configuration(of)["bootstrap.servers"] == "kafka:9092"

    def test_what_there_is_not_is_said_with_what_there_is(self, tested: DeclaredSource) -> None:
        view = tested.read("shop")
        with pytest.raises(UnknownObject, match="no Broker other: there is shop/main, shop/more"):
            view.find_ingress("other")
        with pytest.raises(
            UnknownObject, match="no Trigger shop/other: there is shop/audit, shop/mail"
        ):
            view.find_egress("other")
        with pytest.raises(UnknownObject, match="which Broker"):
            view.find_ingress(None)

    def test_another_namespace_has_none_of_it(self, tested: DeclaredSource) -> None:
        view = tested.read("elsewhere")
        assert (view.ingresses, view.egresses) == ([], [])


class ChannelsContract:
    """`tested` has the Broker shop/main with its Trigger mail, and a KafkaChannel of the same name
    with the Subscriptions mail (with a reply and a dead letter sink) and audit (paused)."""

    def test_a_channel_has_its_topic_and_is_no_broker_of_its_name(
        self, tested: DeclaredSource
    ) -> None:
        view = tested.read("shop")
        for name in ("channel/main", "channel/shop/main"):
            found = view.find_ingress(name)
            assert (found.kind, found.topic) == (
                "KafkaChannel",
                "knative-messaging-kafka.shop.main",
            )
        assert view.find_ingress("main").kind == "Broker"
        assert (
            view.kafka_configuration(view.find_ingress("channel/main"))["bootstrap.servers"]
            == "kafka:9092"
        )
        with pytest.raises(UnknownObject, match=r"there is shop/main, .*channel/shop/main"):
            view.find_ingress("channel/other")

    def test_subscriptions_have_their_groups_dead_letter_topics_and_replies(
        self, tested: DeclaredSource
    ) -> None:
        view = tested.read("shop")
        for name in ("subscription/mail", "subscription/shop/mail"):
            mail = view.find_egress(name)
            assert (mail.kind, mail.topic) == (
                "Subscription",
                view.find_ingress("channel/main").topic,
            )
            assert mail.group == "kafka.shop.main.uid-of-mail"
            assert mail.dead_letter_topic == dead_letter_topic("shop", "KafkaChannel-main", "mail")
        assert mail.subscriber.url == "http://mail/"
        assert mail.reply == Sink(url="http://reply/")
        assert mail.dead_letter_sink == Sink(url="http://sink/")
        assert view.find_egress("audit").kind == "Subscription"
        assert view.find_egress("mail").kind == "Trigger"
        assert [
            trigger_name_of(each) for each in view.egresses_of(view.find_ingress("channel/main"))
        ] == [
            "subscription/shop/audit", "subscription/shop/mail",
        ]  # fmt: skip
        with pytest.raises(
            UnknownObject, match=r"no subscription/shop/other: there is .*on/shop/audit"
        ):
            view.find_egress("subscription/other")

    def test_a_paused_subscription_is_no_trigger_of_its_name(self, tested: DeclaredSource) -> None:
        assert tested.read("shop").paused == {"subscription/shop/audit"}


def subscription(name: str) -> Egress:
    return Egress(
        namespace="shop", broker="main", trigger=name, kind="Subscription",
        topic="knative-messaging-kafka.shop.main", group=f"kafka.shop.main.uid-of-{name}",
        dead_letter_topic=dead_letter_topic("shop", "KafkaChannel-main", name), kafka=KAFKA,
        subscriber=Sink(url="http://mail/"), reply=Sink(url="http://reply/"),
        dead_letter_sink=Sink(url="http://sink/"),
    )  # fmt: skip


class TestLocalChannels(ChannelsContract):
    @pytest.fixture
    def tested(self, tmp_path: Path) -> Iterator[DeclaredSource]:
        installation = Installation(tmp_path)
        trigger = Egress(
            namespace="shop", broker="main", trigger="mail", topic="main", group="mail",
            kafka=KAFKA, dead_letter_topic=LETTERS, subscriber=Sink(url="http://mail/"),
        )  # fmt: skip
        channel = Ingress(
            namespace="shop", broker="main", kind="KafkaChannel", kafka=KAFKA,
            topic="knative-messaging-kafka.shop.main",
        )  # fmt: skip
        broker = Ingress(namespace="shop", broker="main", topic="main", kafka=KAFKA)
        with installation.hold_lock():
            installation.write_state(
                RunningState(
                    pid=1, url="http://x", bootstrap_servers="kafka:9092",
                    ingresses=(broker, channel),
                    egresses=(trigger, subscription("audit"), subscription("mail")),
                )
            )  # fmt: skip
            paused = TriggerRow("shop/audit", paused=True, kind="Subscription")
            snapshot_file.write_snapshot(
                installation, Snapshot("", triggers=(TriggerRow("shop/audit"), paused))
            )
            yield InstallationSource(installation)


class TestLocal(DeclaredSourceContract):
    @pytest.fixture
    def tested(self, tmp_path: Path) -> Iterator[DeclaredSource]:
        installation = Installation(tmp_path)
        egresses = tuple(
            Egress(
                namespace="shop", broker="main", trigger=name, topic="main-topic",
                group=f"knative-trigger-shop-{name}", kafka=KAFKA,
                dead_letter_topic=dead_letter_topic("shop", "main", name),
                subscriber=Sink(url="http://mail/"), dead_letter_sink=Sink(url="http://sink/"),
                filter=AttributesFilter(attributes={"type": "order"}),
            )
            for name in ("audit", "mail")
        )  # fmt: skip
        ingresses = tuple(
            Ingress(namespace="shop", broker=name, topic=topic, kafka=KAFKA)
            for name, topic in (("main", "main-topic"), ("more", "knative-broker-shop-more"))
        )
        with installation.hold_lock():
            installation.write_state(
                RunningState(
                    pid=1, url="http://x", bootstrap_servers="kafka:9092", ingresses=ingresses,
                    egresses=egresses,
                )
            )  # fmt: skip
            paused = (TriggerRow("shop/audit", paused=True), TriggerRow("shop/mail"))
            snapshot_file.write_snapshot(installation, Snapshot("", triggers=paused))
            yield InstallationSource(installation)


@pytest.fixture
def cluster() -> Iterator[tuple[ApiServer, Any]]:
    """An API server with what the contract speaks of; Broker main has credentials."""
    with api_server() as (server, client):
        server.put(
            CORE, "ConfigMap", "shop", "kafka",
            data={"bootstrap.servers": "kafka:9092", "auth.secret.ref.name": "login"},
        )  # fmt: skip
        server.put(
            CORE, "ConfigMap", "knafka", "kafka-broker-config",
            data={"bootstrap.servers": "kafka:9092"},
        )  # fmt: skip
        login = {"protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "user": "me", "password": "pw"}
        server.put(
            CORE, "Secret", "shop", "login",
            data={key: base64.b64encode(value.encode()).decode() for key, value in login.items()},
        )  # fmt: skip
        own = {"eventing.knative.dev/broker.class": "Kafka"}
        server.put(
            EVENTING, "Broker", "shop", "main",
            metadata={
                "annotations": {**own, "kafka.eventing.knative.dev/external.topic": "main-topic"}
            },
            spec={"config": {"apiVersion": "v1", "kind": "ConfigMap", "name": "kafka"}},
            status={"annotations": {"default.topic": "main-topic"}},
        )  # fmt: skip
        server.put(EVENTING, "Broker", "shop", "more", metadata={"annotations": own}, spec={})
        foreign = {"eventing.knative.dev/broker.class": "MTChannelBasedBroker"}
        server.put(EVENTING, "Broker", "shop", "foreign", metadata={"annotations": foreign})
        for name, paused in (("audit", "true"), ("mail", "false")):
            server.put(
                EVENTING, "Trigger", "shop", name,
                metadata={"annotations": {"knafka.dev/paused": paused}},
                spec={
                    "broker": "main", "filter": {"attributes": {"type": "order"}},
                    "subscriber": {"uri": "http://declared/"},
                },
                status={
                    "subscriberUri": "http://mail/", "deadLetterSinkUri": "http://sink/",
                    "annotations": {
                        "group.id": f"knative-trigger-shop-{name}",
                        "knafka.dev/dead-letter-topic": dead_letter_topic("shop", "main", name),
                    },
                },
            )  # fmt: skip
        yield server, client


CHANNELS = {
    "messaging.knative.dev/v1beta1": {"KafkaChannel": "kafkachannels"},
    "messaging.knative.dev/v1": {"Subscription": "subscriptions"},
}
V1BETA1, V1 = CHANNELS


@pytest.fixture
def channels(cluster: tuple[ApiServer, Any]) -> tuple[ApiServer, Any]:
    """The same with KafkaChannels."""
    server, _ = cluster
    server.kinds |= CHANNELS
    server.remove(EVENTING, "Trigger", "shop", "audit")
    server.put(
        CORE, "ConfigMap", "knafka", "kafka-channel-config",
        data={"bootstrap.servers": "kafka:9092", "auth.secret.ref.name": "channels"},
    )  # fmt: skip
    for name, user in (("channels", "all"), ("second", "another")):
        login = {"protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "user": user, "password": "pw"}
        if name == "second":
            login["bootstrap.servers"] = "second:9092"
        server.put(
            CORE, "Secret", "knafka", name,
            metadata={"labels": {"knafka.dev/kafka-secret": "true"}},
            data={key: base64.b64encode(value.encode()).decode() for key, value in login.items()},
        )  # fmt: skip
    server.put(
        V1BETA1, "KafkaChannel", "shop", "main", spec={"numPartitions": 3},
        status={"annotations": {"bootstrap.servers": "known:9092"}},
    )  # fmt: skip
    for name, paused in (("audit", "true"), ("mail", "false")):
        server.put(
            V1, "Subscription", "shop", name,
            metadata={"uid": f"uid-of-{name}", "annotations": {"knafka.dev/paused": paused}},
            spec={
                "channel": {"apiVersion": V1, "kind": "KafkaChannel", "name": "main"},
                "subscriber": {"uri": "http://declared/"},
            },
            status={
                "physicalSubscription": {
                    "subscriberUri": "http://mail/", "replyUri": "http://reply/",
                    "deadLetterSinkUri": "http://sink/",
                },
            },
        )  # fmt: skip
    in_memory = {"apiVersion": V1, "kind": "InMemoryChannel", "name": "main"}
    spec = {"channel": in_memory, "subscriber": {"uri": "http://declared/"}}
    server.put(V1, "Subscription", "shop", "of-another-kind", spec=spec)
    return cluster


class TestClusterChannels(ChannelsContract):
    @pytest.fixture
    def tested(self, channels: tuple[ApiServer, Any]) -> DeclaredSource:
        return ClusterSource(channels[1], "shop")


def test_a_channel_has_the_credentials_of_all_or_of_the_secret_that_it_names(
    channels: tuple[ApiServer, Any],
) -> None:
    """CHN-20."""
    server, client = channels
    view = ClusterSource(client, "shop").read()
    main = view.kafka_configuration(view.find_ingress("channel/main"))
    assert (main["bootstrap.servers"], main["sasl.username"]) == ("kafka:9092", "all")
    named = {"annotations": {"knafka.dev/kafka-secret": "second"}}
    server.put(V1BETA1, "KafkaChannel", "shop", "main", metadata=named)
    view = ClusterSource(client, "shop").read()
    main = view.kafka_configuration(view.find_ingress("channel/main"))
    assert (main["bootstrap.servers"], main["sasl.username"]) == ("second:9092", "another")
    server.put(CORE, "Secret", "knafka", "second", metadata={"labels": {}})
    view = ClusterSource(client, "shop").read()
    assert view.problems == [
        "KafkaChannel shop/main: Secret knafka/second is not labelled knafka.dev/kafka-secret: true"
    ]
    assert [each.kind for each in view.ingresses] == ["Broker", "Broker"]


def test_without_the_channels_config_map_the_status_says_where_kafka_is(
    channels: tuple[ApiServer, Any],
) -> None:
    server, client = channels
    server.refused[server.path(CORE, "ConfigMap", "knafka", "kafka-channel-config")] = 403
    view = ClusterSource(client, "shop").read()
    of = view.find_ingress("channel/main")
    assert view.kafka_configuration(of) == {"bootstrap.servers": "known:9092"}
    assert "can't get ConfigMap knafka/kafka-channel-config: refused" in view.problems[0]


def test_who_may_only_list_one_family_sees_that_one(channels: tuple[ApiServer, Any]) -> None:
    server, client = channels
    server.refused["/apis/eventing.knative.dev/v1/namespaces/shop/brokers"] = 403
    view = ClusterSource(client, "shop").read()
    assert [each.kind for each in view.ingresses] == ["KafkaChannel"]
    assert "ask for a role that may list brokers" in view.problems[0]
    server.refused |= {f"/apis/{V1BETA1}/namespaces/shop/kafkachannels": 403}
    with pytest.raises(NotAllowed, match="list brokers"):
        ClusterSource(client, "shop").read()


class TestCluster(DeclaredSourceContract):
    @pytest.fixture
    def tested(self, cluster: tuple[ApiServer, Any]) -> DeclaredSource:
        return ClusterSource(cluster[1], "shop")


def test_credentials_are_those_of_the_secret_that_names_the_servers(
    cluster: tuple[ApiServer, Any],
) -> None:
    view = ClusterSource(cluster[1]).read("shop")
    main, more = (
        view.kafka_configuration(view.find_ingress("main")),
        view.kafka_configuration(view.find_ingress("more")),
    )
    assert (main["sasl.username"], main["sasl.password"]) == ("me", "pw")
    assert "sasl.username" not in more


def test_an_address_that_is_given_takes_the_place_of_the_declared_one(
    cluster: tuple[ApiServer, Any],
) -> None:
    view = ClusterSource(cluster[1], "shop", bootstrap_servers="localhost:19092").read()
    main = view.kafka_configuration(view.find_ingress("main"))
    assert (main["bootstrap.servers"], main["sasl.username"]) == ("localhost:19092", "me")


def test_without_the_installations_config_map_the_status_says_where_kafka_is(
    cluster: tuple[ApiServer, Any],
) -> None:
    """A status that somebody else wrote gets no credentials."""
    server, client = cluster
    server.refused[server.path(CORE, "ConfigMap", "knafka", "kafka-broker-config")] = 403
    server.put(
        EVENTING, "Broker", "shop", "more",
        status={"annotations": {"bootstrap.servers": "known:9092"}},
    )  # fmt: skip
    view = ClusterSource(client, "shop").read()
    assert view.kafka_configuration(view.find_ingress("more")) == {
        "bootstrap.servers": "known:9092"
    }
    assert "can't get ConfigMap knafka/kafka-broker-config: refused" in view.problems[0]


def test_one_that_cannot_be_read_leaves_the_others_and_is_said(
    cluster: tuple[ApiServer, Any],
) -> None:
    server, client = cluster
    server.remove(CORE, "Secret", "shop", "login")
    server.put(EVENTING, "Broker", "shop", "more", spec={})
    view = ClusterSource(client, "shop").read()
    assert [each.broker for each in view.ingresses] == ["more"]
    assert view.problems == ["Broker shop/main: Secret shop/login does not exist"]
    with pytest.raises(UnknownObject, match="Secret shop/login does not exist"):
        view.find_ingress("main")


def test_who_may_not_list_is_said_what_to_ask_for(cluster: tuple[ApiServer, Any]) -> None:
    server, client = cluster
    server.refused["/apis/eventing.knative.dev/v1/namespaces/shop/brokers"] = 403
    with pytest.raises(NotAllowed, match="ask for a role that may list brokers"):
        ClusterSource(client, "shop").read()


def test_a_cluster_without_eventing_is_said(cluster: tuple[ApiServer, Any]) -> None:
    server, client = cluster
    server.refused["/apis/eventing.knative.dev/v1/namespaces/shop/brokers"] = 404
    with pytest.raises(ClusterError, match="Knative Eventing is not in this cluster"):
        ClusterSource(client, "shop").read()


def test_a_kafka_that_is_not_reached_says_how_to_name_another_address(
    cluster: tuple[ApiServer, Any],
) -> None:
    view = ClusterSource(cluster[1], "shop").read()
    with (
        pytest.raises(
            KafkaNotReached, match=r"Kafka at kafka:9092: .*--bootstrap-servers HOST:PORT"
        ),
        view.explain_unreached_kafka(view.find_ingress("main")),
    ):
        raise LogError("no answer")


def test_a_context_gives_the_namespace(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path)
    assert client_of("dev", file)[1] == "shop"
    assert client_of(None, file)[1] == "default"


def test_a_context_that_is_not_there_is_said_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="no context other: there is dev, plain"):
        client_of("other", kubeconfig(tmp_path))


def test_no_kubeconfig_says_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="--kubeconfig or KUBECONFIG"):
        client_of(None, tmp_path / "none")


def test_an_api_server_that_does_not_answer_is_said(tmp_path: Path) -> None:
    client, namespace = client_of("dev", kubeconfig(tmp_path))
    with pytest.raises(ClusterError, match="the API server does not answer"):
        ClusterSource(client, namespace).read()
