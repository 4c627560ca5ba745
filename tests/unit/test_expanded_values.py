"""Kubernetes expands `$(NAME)` in arguments and variables: nothing declared gets a value so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.expanded import arguments, environment
from support.operator_world import SETTINGS

from knafka.core.contract import Egress, Kafka, Sink
from knafka.core.documents import parse, parse_json
from knafka_jobs import pod
from knafka_operator.archives import manifests
from knafka_operator.archives.model import ARCHIVE, DeadLetterArchive
from knafka_operator.functions.dispatcher_services import dispatcher_service
from knafka_operator.installation.tracing import FunctionTracing
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.resources import EVENTING, Trigger
from knafka_operator.model.sensors import KNAFKA

KEYS = {"AWS_SECRET_ACCESS_KEY": "the key", "KNAFKA_LOG_LEVEL": "info"}
HOSTILE = ["$(AWS_SECRET_ACCESS_KEY)", "$$(AWS_SECRET_ACCESS_KEY)", "a$$b", "$", "$(", "$$$"]
BUCKET = {"url": "s3a://bucket/shop", "credentials": {"name": "keys"}}


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("option", ["bootstrap_servers", "group"])
def test_no_argument_of_a_job_shows_a_key_of_the_store(option: str, text: str) -> None:
    metadata = {"namespace": "shop", "name": "kept", "uid": "uid-1", "generation": 2}
    document = {"apiVersion": KNAFKA, "kind": ARCHIVE, "metadata": metadata}
    archive = parse(DeadLetterArchive, {**document, "spec": {"storage": BUCKET}})
    declared = {"bootstrap_servers": "kafka:9092", "group": "group", option: text}
    settings = replace(SETTINGS, jobs_image="jobs:1")
    made = manifests.job_manifest(
        archive, 7, declared["group"], declared["bootstrap_servers"], None, settings, report=True
    )
    (container,) = made["spec"]["template"]["spec"]["containers"]
    given = pod._pod_parser().parse_args(arguments(container, KEYS))
    assert getattr(given, option) == text


@pytest.mark.parametrize("text", HOSTILE)
def test_a_function_gets_every_variable_as_it_was_declared(text: str) -> None:
    """Not only its contract: addresses of collectors stand there, too."""
    trigger = parse(
        Trigger,
        {
            "apiVersion": EVENTING,
            "kind": "Trigger",
            "metadata": {"namespace": "shop", "name": "orders", "uid": "uid-2"},
            "spec": {"broker": "default", "subscriber": {"uri": "http://there/"}},
        },
    )
    egress = Egress(
        namespace="shop", broker="default", trigger="orders", topic="topic", group=text,
        dead_letter_topic="letters", kafka=Kafka(bootstrap_servers=text),
        subscriber=Sink(url="http://there/"),
    )  # fmt: skip
    told = {"OTEL_EXPORTER_ZIPKIN_ENDPOINT": text}
    settings = replace(SETTINGS, tracing=FunctionTracing(told))
    service = dispatcher_service(trigger, egress, Autoscaling(), 1, None, settings)
    (container,) = service["spec"]["template"]["spec"]["containers"]
    given = environment(container, KEYS)
    assert parse_json(Egress, given["KNAFKA_EGRESS"]) == egress
    assert given["OTEL_EXPORTER_ZIPKIN_ENDPOINT"] == text
