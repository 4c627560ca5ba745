"""What the commands take for the target of events: Brokers and KafkaChannels by name."""

from __future__ import annotations

from typing import Literal

import pytest
import typer

from knafka.core.contract import Egress, Ingress, Kafka, Sink
from knafka_cli.shared.options import egress_of, ingress_of
from knafka_client.declared.declared_source import DeclaredView, broker_name_of
from knafka_client.declared.triggers import UnknownObject
from knafka_client.state.installation import RunningState

KAFKA = Kafka(bootstrap_servers="127.0.0.1:9092")


def broker(name: str, namespace: str = "default") -> Ingress:
    return Ingress(namespace=namespace, broker=name, topic="of-a-broker", kafka=KAFKA)


def channel(name: str, namespace: str = "default") -> Ingress:
    return Ingress(
        namespace=namespace, broker=name, kind="KafkaChannel", topic="of-a-channel", kafka=KAFKA
    )


def running(*ingresses: Ingress) -> RunningState:
    return RunningState(
        pid=1,
        url="http://127.0.0.1:8080",
        channels_url="http://127.0.0.1:8081",
        bootstrap_servers="127.0.0.1:9092",
        ingresses=ingresses,
    )


def test_a_channel_is_addressed_where_channels_are() -> None:
    state = running(broker("shop"), channel("shop"))
    assert state.url_of(ingress_of(state, "shop")) == "http://127.0.0.1:8080/default/shop"
    for name in ("channel/shop", "channel/default/shop"):
        assert state.url_of(ingress_of(state, name)) == "http://127.0.0.1:8081/default/shop"


def test_without_a_name_it_is_the_only_one_of_both() -> None:
    assert ingress_of(running(channel("shop")), None).kind == "KafkaChannel"


def test_a_broker_in_a_namespace_called_channel_comes_first() -> None:
    found = ingress_of(running(channel("shop"), broker("shop", "channel")), "channel/shop")
    assert found.kind == "Broker"


@pytest.mark.parametrize("name", [None, "other", "channel/other"])
def test_what_is_not_there_is_refused_with_the_names_to_give(
    name: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit):
        ingress_of(running(broker("shop"), channel("orders")), name)
    assert "default/shop, channel/default/orders" in capsys.readouterr().err


def egress(name: str, kind: Literal["Trigger", "Subscription"], topic: str) -> Egress:
    return Egress(
        namespace="default",
        broker="shop",
        trigger=name,
        kind=kind,
        topic=topic,
        group=name,
        dead_letter_topic=f"{name}-dead",
        kafka=KAFKA,
        subscriber=Sink(url="http://127.0.0.1:1/"),
    )


def test_a_view_keeps_a_channel_and_a_broker_of_one_name_apart() -> None:
    of_broker = egress("orders", "Trigger", "of-a-broker")
    of_channel = egress("audit", "Subscription", "of-a-channel")
    both = broker("shop"), channel("shop")
    reached = {"bootstrap.servers": KAFKA.bootstrap_servers}
    connections = {broker_name_of(each): reached for each in both}
    view = DeclaredView(both, (of_broker, of_channel), connections)
    assert view.find_ingress("shop").kind == "Broker"
    for name in ("channel/shop", "channel/default/shop"):
        assert view.find_ingress(name).kind == "KafkaChannel"
    assert view.egresses_of(view.find_ingress("shop")) == [of_broker]
    assert view.egresses_of(view.find_ingress("channel/shop")) == [of_channel]
    assert view.kafka_configuration(of_channel) == reached
    with pytest.raises(UnknownObject, match="there is default/shop, channel/default/shop"):
        view.find_ingress("channel/other")


def test_a_subscription_is_asked_for_by_its_name_unless_a_trigger_has_it() -> None:
    trigger = egress("orders", "Trigger", "of-a-broker")
    subscriptions = [egress(each, "Subscription", "of-a-channel") for each in ("orders", "audit")]
    state = running(broker("shop")).model_copy(update={"egresses": (trigger, *subscriptions)})
    assert egress_of(state, "orders") is trigger
    assert egress_of(state, "subscription/orders") is subscriptions[0]
    for name in ("audit", "default/audit", "subscription/default/audit"):
        assert egress_of(state, name) is subscriptions[1]
