"""The examples of docs/how-to/connect-to-kafka.md are what the code takes (CHN-21)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from confluent_kafka import Consumer, Producer

from knafka.core.contract import Kafka
from knafka.core.kafka_settings.client_settings import PRODUCER, REFUSED, SIDES, for_librdkafka
from knafka.core.kafka_settings.kafka_oauth import MSK_REGION
from knafka.core.kafka_settings.kafka_secret import for_java
from knafka.core.kafka_settings.kafka_secret import for_librdkafka as secret_for_librdkafka
from knafka_operator.decide import desired
from knafka_operator.decide.admission import check_trigger
from knafka_operator.decide.desired import Defaults
from knafka_operator.model.resources import ConfigMap, parse_resource

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to" / "connect-to-kafka.md").read_text()
EXAMPLES: Final[list[dict[str, Any]]] = [
    document
    for block in re.findall(r"(?s)```yaml\n(.*?)```", PAGE)
    for document in yaml.safe_load_all(block)
]


def of(kind: str) -> list[dict[str, Any]]:
    return [each for each in EXAMPLES if each["kind"] == kind]


def named(secret: Mapping[str, Any]) -> str:
    data = secret["stringData"]
    return " ".join(data.get(key, "") for key in ("protocol", "sasl.mechanism", "tokenProvider"))


@pytest.mark.conformance("CHN-21")
@pytest.mark.parametrize("secret", of("Secret"), ids=named)
def test_a_secret_of_the_documentation_is_one_for_every_client(secret: dict[str, Any]) -> None:
    data = secret["stringData"]
    configuration = secret_for_librdkafka(data)
    assert for_java(data)["security.protocol"] == data["protocol"]
    if MSK_REGION not in configuration and not any("PEM" in each for each in data.values()):
        configuration.pop("ssl.ca.pem", None)  # not a whole one
        Consumer({"group.id": "g", "log_level": 0, **configuration}).close()


def test_there_is_one_for_each_kind_of_provider() -> None:
    found = [named(each).strip() for each in of("Secret")]
    assert found == [
        "SASL_SSL SCRAM-SHA-512",
        "SSL",
        "SASL_SSL OAUTHBEARER",
        "SASL_SSL OAUTHBEARER MSKAccessTokenProvider",
        "SASL_SSL OAUTHBEARER MSKRoleAccessTokenProvider",
        "SASL_SSL PLAIN",
        "SASL_SSL OAUTHBEARER",
    ]


@pytest.mark.parametrize("document", of("ConfigMap"), ids=lambda each: str(len(each["data"])))
def test_a_config_map_of_the_documentation_configures_a_broker(document: dict[str, Any]) -> None:
    config = parse_resource(document)
    assert isinstance(config, ConfigMap)
    found = desired.defaults_with_config(config, Defaults(kafka=Kafka(bootstrap_servers="k:1")))
    assert found.kafka.bootstrap_servers == document["data"]["bootstrap.servers"]
    given = sum(key.startswith(("consumer.", "producer.")) for key in document["data"])
    assert len(found.kafka.consumer) + len(found.kafka.producer) == given


@pytest.mark.parametrize("document", of("Trigger"), ids=lambda each: each["metadata"]["name"])
def test_a_trigger_of_the_documentation_is_admitted(document: dict[str, Any]) -> None:
    check_trigger(document)


REFERENCE = (DOCS / "reference" / "settings.md").read_text()
SETTINGS = REFERENCE[REFERENCE.index("## Settings of Kafka clients") :]


@pytest.mark.parametrize("side", SIDES)
def test_the_settings_of_the_documentation_are_those_of_the_code(side: str) -> None:
    rows = re.findall(rf"(?s)\| (?:{side}|both) \| values.*?\n\n", SETTINGS)
    found = {name for rows_of in rows for name in re.findall(r"(?m)^\| `([a-z.]+)`", rows_of)}
    assert found == set(SIDES[side])


def test_the_ranges_of_the_documentation_are_those_of_the_code() -> None:
    ranges = re.findall(r"(?m)^\| `([a-z.]+)` \| (-?\d+) to (\d+) \|", SETTINGS)
    assert len(ranges) == 9
    for name, least, most in ranges:
        check = {**SIDES["consumer"], **SIDES["producer"]}[name]
        for value in (least, most):
            given = for_librdkafka({name: check(value)})
            if name in PRODUCER:
                Producer({"log_level": 0, **given})
            else:
                Consumer({"group.id": "g", "log_level": 0, **given}).close()
        for value in (int(least) - 1, int(most) + 1):
            with pytest.raises(ValueError, match=f"a whole number from {least} to {most}"):
                check(str(value))


def test_what_is_refused_is_documented() -> None:
    refused = SETTINGS[SETTINGS.index("Refused, because") :]
    rows = re.findall(r"(?m)^\| (`.*?) \|", refused)
    assert {name for row in rows for name in re.findall(r"`([a-z.]+)`", row)} == set(REFUSED)
