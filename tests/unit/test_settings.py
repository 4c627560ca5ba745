"""What a function takes from its environment."""

from __future__ import annotations

import json

import pytest
from support.receiver_requests import ingress

from knafka import settings
from knafka.core.contract import Egress, Kafka, Receiver, Shard, Sink
from knafka.core.documents import dump
from knafka.core.errors import InvalidDocument
from knafka.settings import (
    EGRESS,
    EVENT_TYPES,
    INGRESSES,
    LOG_LEVEL,
    RECEIVER,
    SHARD,
    STATISTICS_INTERVAL,
    ListenAddress,
)

EGRESS_DOCUMENT = Egress(
    namespace="ns",
    broker="b",
    trigger="t",
    topic="events",
    group="g",
    dead_letter_topic="d",
    kafka=Kafka(bootstrap_servers="k:9092"),
    subscriber=Sink(url="http://s/"),
)


def test_it_listens_everywhere_on_8080_by_default() -> None:
    assert settings.listen_address({}) == ListenAddress("0.0.0.0", 8080)


def test_host_and_port_are_taken_from_the_environment() -> None:
    assert settings.listen_address({"HOST": "127.0.0.1", "PORT": "0"}) == ListenAddress(
        "127.0.0.1", 0
    )


@pytest.mark.parametrize("port", ["", "x", "-1", "80.0", "65536", "²", "9" * 5000])
def test_a_port_that_is_none_is_told(port: str) -> None:
    with pytest.raises(InvalidDocument, match=r"^PORT: invalid value") as raised:
        settings.listen_address({"PORT": port})
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize(
    ("environment", "level"),
    [({}, "warning"), ({LOG_LEVEL: "INFO"}, "info"), ({LOG_LEVEL: "debug"}, "debug")],
)
def test_the_log_level(environment: dict[str, str], level: str) -> None:
    assert settings.log_level(environment) == level


@pytest.mark.parametrize("level", ["", "loud", "10"])
def test_a_log_level_that_is_none_is_told(level: str) -> None:
    with pytest.raises(InvalidDocument, match=f"^{LOG_LEVEL}: .*debug, info, warning, error"):
        settings.log_level({LOG_LEVEL: level})


def test_a_receivers_contract_is_a_list_of_ingresses() -> None:
    brokers = [ingress(), ingress(topic="others").model_copy(update={"broker": "other"})]
    text = json.dumps([dump(each) for each in brokers])
    assert list(settings.ingresses({INGRESSES: text})) == brokers
    assert list(settings.ingresses({INGRESSES: "[]"})) == []


def test_two_brokers_with_one_path_are_told() -> None:
    """One of them would never get an event."""
    text = json.dumps([dump(ingress()), dump(ingress(topic="others"))])
    with pytest.raises(InvalidDocument, match=f"^{INGRESSES}: 2 Brokers have the path /"):
        settings.ingresses({INGRESSES: text})


def test_a_receiver_may_have_a_topic_of_ingresses_in_their_place() -> None:
    topic = Receiver(kafka=Kafka(bootstrap_servers="k:9092"), contract_topic="contract")
    text = json.dumps(dump(topic))
    assert settings.receiver({RECEIVER: text}) == topic
    assert settings.receiver({INGRESSES: "[]"}) is None
    with pytest.raises(InvalidDocument, match=f"^{RECEIVER}: {INGRESSES} is set, too"):
        settings.receiver({RECEIVER: text, INGRESSES: "[]"})
    with pytest.raises(InvalidDocument, match=f"^{RECEIVER}: contractTopic"):
        settings.receiver({RECEIVER: text.replace('"contract"', '""')})


def test_a_dispatchers_contract_is_one_egress() -> None:
    text = json.dumps(dump(EGRESS_DOCUMENT))
    assert settings.egress({EGRESS: text}) == EGRESS_DOCUMENT


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "is not set"),
        ("", "is not set"),
        ("{", "JSON"),
        ("[1]", ""),
        ('[{"namespace":"n"}]', r"missing field\(s\): \[0\].broker"),
    ],
)
def test_a_broken_contract_is_told_by_its_variable_and_field(text: str | None, told: str) -> None:
    environment = {} if text is None else {INGRESSES: text}
    with pytest.raises(InvalidDocument, match=f"^{INGRESSES}: .*{told}"):
        settings.ingresses(environment)


@pytest.mark.parametrize(
    ("text", "told"), [(None, "is not set"), ("[]", "object"), ("{}", "missing field")]
)
def test_a_broken_egress_is_told_by_its_variable_and_field(text: str | None, told: str) -> None:
    environment = {} if text is None else {EGRESS: text}
    with pytest.raises(InvalidDocument, match=f"^{EGRESS}: .*{told}"):
        settings.egress(environment)


SHARD_DOCUMENT = Shard(
    group="shard", kafka=Kafka(bootstrap_servers="k:9092"), contract_topic="contract"
)


def test_many_egresses_are_a_shard_and_without_one_there_is_none() -> None:
    assert settings.shard({SHARD: json.dumps(dump(SHARD_DOCUMENT))}) == SHARD_DOCUMENT
    assert settings.shard({}) is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"group": ""}, "group: "),
        ({"contractTopic": ""}, "contractTopic: "),
        ({"kafka": {}}, r"missing .*kafka.bootstrapServers"),
        ({"egresses": []}, "egresses: unknown field"),
    ],
)
def test_a_broken_shard_is_told_by_its_variable_and_field(
    changes: dict[str, object], told: str
) -> None:
    with pytest.raises(InvalidDocument, match=f"^{SHARD}: {told}"):
        settings.shard({SHARD: json.dumps({**dump(SHARD_DOCUMENT), **changes})})


@pytest.mark.parametrize("field", ["group", "kafka", "contractTopic"])
def test_a_shard_without_one_of_its_fields_is_told(field: str) -> None:
    document = {name: each for name, each in dump(SHARD_DOCUMENT).items() if name != field}
    with pytest.raises(InvalidDocument, match=rf"missing field\(s\): {field}"):
        settings.shard({SHARD: json.dumps(document)})


def test_librdkafka_reports_every_fifteen_seconds_unless_it_is_set() -> None:
    assert settings.statistics_interval({}) == 15.0
    assert settings.statistics_interval({STATISTICS_INTERVAL: "0"}) == 0.0


@pytest.mark.parametrize("interval", ["", "-1", "1.5", "x", "86401", "9" * 5000])
def test_an_interval_that_is_none_is_told(interval: str) -> None:
    with pytest.raises(InvalidDocument, match=f"^{STATISTICS_INTERVAL}: invalid value"):
        settings.statistics_interval({STATISTICS_INTERVAL: interval})


def test_new_types_of_events_are_told_where_that_is_asked_for() -> None:
    assert not settings.lists_event_types({})
    assert settings.lists_event_types({EVENT_TYPES: "Enabled"})
    with pytest.raises(InvalidDocument, match=r"^KNAFKA_EVENT_TYPES: invalid value: yes"):
        settings.lists_event_types({EVENT_TYPES: "yes"})
