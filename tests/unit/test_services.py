"""The functions as Knative Services (design: two planes, one contract; naming.md)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from support.certificates import PEM

from knafka.core import contract, documents
from knafka.core.contract import Egress, Kafka, Shard, Sink
from knafka.core.filters.declared_filters import AttributesFilter
from knafka_operator.decisions.status import NotReady
from knafka_operator.functions import receiver_services, services
from knafka_operator.functions.dispatcher_services import dispatcher_service, shard_service
from knafka_operator.installation.settings import Settings
from knafka_operator.installation.tracing import FunctionTracing
from knafka_operator.kafka import desired, egresses
from knafka_operator.kafka.desired import Defaults
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.resources import Broker, Trigger

SETTINGS = Settings(namespace="knafka", image="example.com/knafka:1")
DEFAULTS = Defaults(kafka=Kafka(bootstrap_servers="kafka:9092"))


def _broker(**metadata: Any) -> Broker:
    return documents.parse(
        Broker,
        {
            "apiVersion": "eventing.knative.dev/v1",
            "kind": "Broker",
            "metadata": {"name": "default", "namespace": "shop", "uid": "b-1", **metadata},
        },
    )


def _trigger(**metadata: Any) -> Trigger:
    return documents.parse(
        Trigger,
        {
            "apiVersion": "eventing.knative.dev/v1",
            "kind": "Trigger",
            "metadata": {"name": "orders", "namespace": "shop", "uid": "t-1", **metadata},
            "spec": {"broker": "default", "subscriber": {"uri": "http://there"}},
        },
    )


FOLLOWED = contract.Receiver(
    kafka=DEFAULTS.kafka, contract_topic="knafka-contract", path="/shop/default"
)


def _receiver(broker: Broker, secret: tuple[str, str] | None = None) -> dict[str, Any]:
    return receiver_services.receiver_service(broker, FOLLOWED, secret, SETTINGS)


def _egress(**changed: Any) -> Egress:
    broker = _broker()
    topic = desired.broker_topic(broker, None, DEFAULTS)
    egress = egresses.trigger_egress(
        _trigger(), broker, topic, egresses.TriggerDestinations(Sink(url="http://there")), DEFAULTS
    )
    return egress.model_copy(update=changed)


def _dispatcher(egress: Egress, autoscaling: Autoscaling, partitions: int) -> dict[str, Any]:
    return dispatcher_service(_trigger(), egress, autoscaling, partitions, None, SETTINGS)


def _template(service: dict[str, Any]) -> dict[str, Any]:
    template: dict[str, Any] = service["spec"]["template"]
    return template


def _environment(service: dict[str, Any]) -> dict[str, str]:
    container = _template(service)["spec"]["containers"][0]
    return {each["name"]: each["value"] for each in container["env"]}


def test_the_receiver_reads_its_contract_back_from_its_environment() -> None:
    service = _receiver(_broker())
    told = documents.parse_json(contract.Receiver, _environment(service)["KNAFKA_RECEIVER"])
    assert told == FOLLOWED
    assert _environment(service)["FUNCTION_TARGET"] == "receive"


def test_the_dispatcher_reads_its_contract_back_from_its_environment() -> None:
    egress = _egress()
    environment = _environment(_dispatcher(egress, Autoscaling(), 10))
    assert documents.parse_json(Egress, environment["KNAFKA_EGRESS"]) == egress
    assert environment["FUNCTION_TARGET"] == "dispatch"


@pytest.mark.parametrize("text", ["$$", "$(HOSTNAME)", "$${type}"])
def test_kubernetes_finds_nothing_to_expand_in_a_contract(text: str) -> None:
    egress = _egress(filter=AttributesFilter(attributes={"type": text}))
    value = _environment(_dispatcher(egress, Autoscaling(), 10))["KNAFKA_EGRESS"]
    assert "$" not in value
    assert json.loads(value)["filter"]["attributes"]["type"] == text


@pytest.mark.parametrize(
    ("max_scale", "partitions", "expected"), [(50, 8, "8"), (3, 8, "3"), (50, 1, "1")]
)
def test_a_dispatcher_has_never_more_pods_than_partitions(
    max_scale: int, partitions: int, expected: str
) -> None:
    service = _dispatcher(_egress(), Autoscaling(max_scale=max_scale), partitions)
    annotations = _template(service)["metadata"]["annotations"]
    assert annotations["autoscaling.knative.dev/max-scale"] == expected


def test_one_drain_is_one_pod() -> None:
    template = _template(_dispatcher(_egress(), Autoscaling(), 8))
    assert template["spec"]["containerConcurrency"] == 1
    annotations = template["metadata"]["annotations"]
    assert annotations["autoscaling.knative.dev/target-utilization-percentage"] == "100"
    assert annotations["autoscaling.knative.dev/min-scale"] == "0"


def test_services_belong_to_what_they_were_made_for() -> None:
    service = _receiver(_broker())
    assert services.is_owned(service, _broker())
    assert not services.is_owned(service, _broker(uid="another"))
    assert not services.is_owned({"metadata": {}}, _broker())


def test_nothing_but_the_one_secret_gets_into_a_pod() -> None:
    spec = _template(_receiver(_broker(), secret=("credentials", "7")))["spec"]
    assert spec["volumes"] == [{"name": "kafka", "secret": {"secretName": "credentials"}}]
    assert spec["automountServiceAccountToken"] is False
    assert "envFrom" not in spec["containers"][0]


def test_a_changed_secret_makes_another_revision() -> None:
    one, other = (
        _template(_receiver(_broker(), secret=("credentials", version))) for version in "78"
    )
    assert one != other


def test_a_broker_may_say_how_its_receiver_scales() -> None:
    broker = _broker(annotations={"autoscaling.knative.dev/min-scale": "2"})
    annotations = _template(_receiver(broker))["metadata"]["annotations"]
    assert annotations["autoscaling.knative.dev/min-scale"] == "2"


@pytest.mark.parametrize(
    ("settings", "said"), [(SETTINGS, None), (replace(SETTINGS, profiling=True), "enabled")]
)
def test_every_function_can_be_profiled_where_the_installation_says_so(
    settings: Settings, said: str | None
) -> None:
    """DSP-14; where it doesn't, nothing is added, so that no Revision rolls."""
    broker = _broker()
    shard = Shard(group="knafka-shard-0", kafka=DEFAULTS.kafka, contract_topic="knafka-contract")
    for service in (
        receiver_services.receiver_service(broker, FOLLOWED, None, settings),
        dispatcher_service(_trigger(), _egress(), Autoscaling(), 3, None, settings),
        shard_service(broker, shard, 0, None, settings),
    ):
        assert _environment(service).get("KNAFKA_PROFILING") == said


def test_every_function_logs_json_and_traces_as_the_installation_says() -> None:
    """DSP-12; without traces there is no variable of them, so that no Revision rolls."""
    tracing = {"OTEL_TRACES_EXPORTER": "zipkin"}
    traced = replace(SETTINGS, tracing=FunctionTracing(tracing))
    for settings, said in ((SETTINGS, None), (traced, "zipkin")):
        broker = _broker()
        for service in (
            receiver_services.receiver_service(broker, FOLLOWED, None, settings),
            dispatcher_service(_trigger(), _egress(), Autoscaling(), 3, None, settings),
        ):
            assert _environment(service).get("OTEL_TRACES_EXPORTER") == said
            assert _environment(service)["KNAFKA_LOG_FORMAT"] == "json"


def test_a_contract_that_fits_into_no_environment_variable_is_refused() -> None:
    """A container with it can't start: `Argument list too long`."""
    sink = contract.Sink(url="https://there/", ca_certs=PEM * (90_000 // len(PEM)))
    assert _dispatcher(_egress(subscriber=sink), Autoscaling(), 1)
    attributes = AttributesFilter(attributes={"type": "ä" * 30_000})  # six characters each in JSON
    with pytest.raises(NotReady, match="its dispatcher's contract has") as refused:
        _dispatcher(_egress(filter=attributes), Autoscaling(), 1)
    assert refused.value.reason == "ContractTooLarge"


def test_functions_are_for_the_cluster_only_and_run_without_privileges() -> None:
    service = _receiver(_broker())
    assert service["metadata"]["labels"]["networking.knative.dev/visibility"] == "cluster-local"
    context = _template(service)["spec"]["containers"][0]["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(
    "manifest", [_receiver(_broker()), _dispatcher(_egress(), Autoscaling(), 1)]
)
def test_a_function_is_restarted_when_it_says_that_only_this_helps(
    manifest: dict[str, Any],
) -> None:
    (container,) = _template(manifest)["spec"]["containers"]
    assert container["livenessProbe"]["httpGet"] == {"path": "/health/liveness"}


@pytest.mark.parametrize(
    ("timeout", "at_most_once", "seconds"),
    [
        pytest.param(600.0, False, services.TIMEOUT_SECONDS, id="what nobody has declared"),
        pytest.param(5.0, False, services.TIMEOUT_SECONDS, id="short"),
        pytest.param(120.5, False, 168, id="declared: two minutes"),
        pytest.param(590.0, False, 600, id="never more than Knative's maximum"),
        pytest.param(600.0, True, 600, id="nothing is repeated"),
        pytest.param(5.0, True, services.TIMEOUT_SECONDS, id="nothing is repeated, short"),
    ],
)
def test_a_pods_grace_is_what_attempts_take_and_not_the_longest_that_they_may(
    timeout: float, at_most_once: bool, seconds: int
) -> None:
    """Issue 30: a namespace with a pod of 600 s of grace takes five minutes to go."""
    delivery = contract.Delivery(timeout=timeout)
    egress = _egress(delivery=delivery, at_most_once=at_most_once)
    service = dispatcher_service(_trigger(), egress, Autoscaling(), 1, None, SETTINGS)
    spec = service["spec"]["template"]["spec"]
    given = {each["name"]: each["value"] for each in spec["containers"][0]["env"]}
    assert spec["timeoutSeconds"] == seconds
    assert int(given["KNAFKA_GRACE_PERIOD"]) == seconds - services.STOP_SECONDS
    receiver = _receiver(_broker())["spec"]["template"]["spec"]
    assert receiver["timeoutSeconds"] == services.TIMEOUT_SECONDS


@pytest.mark.parametrize("allowed", [False, True])
def test_functions_are_told_of_local_addresses_only_where_they_are_allowed(allowed: bool) -> None:
    """One variable more would be a new Revision of every function."""
    settings = replace(SETTINGS, local_addresses=allowed)
    service = dispatcher_service(_trigger(), _egress(), Autoscaling(), 1, None, settings)
    (container,) = service["spec"]["template"]["spec"]["containers"]
    told = services.environment_of(container).get("KNAFKA_LOCAL_ADDRESSES")
    assert told == ("allowed" if allowed else None)
