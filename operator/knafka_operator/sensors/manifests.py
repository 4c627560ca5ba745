"""Sensor manifests: builds the Service of a Sensor's function, and the Triggers of its actions.
Pure.

    Sensor, its contract -> the function's Service
    Sensor               -> for each trigger of the Sensor a Trigger (on a KafkaChannel, a
                            Subscription) that delivers its firings

A drain is a lease by which one pod of the function handles events. Not here: the number of drains,
and so of pods, within the bounds of the manifest (`scale.scaler`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from knafka.core import documents, names
from knafka.core.sensor import contract, records
from knafka.settings import DRAIN_AT_START, GRACE_PERIOD, SENSOR, SERVICE_URL
from knafka_operator.decisions.effects import Manifest
from knafka_operator.functions import services
from knafka_operator.functions.contract_variables import contract_variable
from knafka_operator.functions.services import ROLE_LABEL
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka.kafka_settings import AT_MOST_ONCE
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.family import BROKERS, CHANNELS, Family
from knafka_operator.model.identity import Identity
from knafka_operator.model.isolation import Isolation
from knafka_operator.model.resources import (
    BATCH_PAYLOAD,
    DELIVERY_ORDER,
    ISOLATION,
    PAYLOAD,
    RATE_LIMIT,
    SEMANTICS,
    START,
    Resource,
)
from knafka_operator.model.sensors import SENSOR_NAME_KEY, Sensor, TriggerOfSensor, delivery_of

SENSOR_ROLE: Final = "sensor"
"""Value of `ROLE_LABEL` for Sensors' functions."""
ORDER_ANNOTATIONS: Final = {"key": "key", "partition": "ordered", "unordered": "unordered"}
"""Value of a Trigger's annotation `DELIVERY_ORDER`, by the `order` of a Sensor's trigger."""


def function_name(family: Family, sensor: Identity) -> str:
    """Return the name of a Sensor's Knative Service; `family` is that of its bus."""
    return names.child(family.function_name_prefix(sensor), f"-kn{family.infix}-sensor")


def function_identity(family: Family, sensor: Identity, settings: Settings) -> Identity:
    """Return namespace and name of a Sensor's Knative Service."""
    namespace = services.function_namespace(family, sensor, settings)
    return Identity(namespace, function_name(family, sensor))


def function_service(
    sensor: Sensor,
    function_contract: contract.SensorContract,
    autoscaling: Autoscaling,
    partitions: int,
    secret: tuple[str, str] | None,
    settings: Settings,
) -> Manifest:
    """Return the manifest of the Knative Service of a Sensor's function. It has one pod for each
    drain, and at most `partitions` pods, the greatest number of partitions of a topic that it
    reads. `secret`: name and version of the Secret that pods mount; None: none is needed.

    With a min-scale Knative itself keeps that many pods, which drain from their start without a
    request. Raises `NotReady` for a contract that is too large.
    """
    family, identity = sensor.bus.family, services.identity_of(sensor)
    namespace, name = function_identity(family, identity, settings)
    max_pods = max(1, min(autoscaling.max_scale, partitions))
    min_pods = min(autoscaling.min_scale, max_pods)
    environment = {
        "FUNCTION_TARGET": "sense",
        SENSOR: contract_variable(
            documents.dump(function_contract), "function", "declare shorter filters and texts"
        ),
        SERVICE_URL: services.service_url(name, namespace, settings),
        GRACE_PERIOD: str(services.GRACE_PERIOD),
    }
    if min_pods:
        environment[DRAIN_AT_START] = "true"
    return services.knative_service(
        services.FunctionService(
            name=name,
            ownership=services.owned_metadata(sensor, family, settings),
            labels={
                ROLE_LABEL: SENSOR_ROLE,
                services.BROKER_LABEL: family.label_value(sensor.bus.identity),
                SENSOR_NAME_KEY: family.label_value(identity),
            },
            annotations=services.one_pod_per_drain_annotations(min_pods, max_pods, settings),
            declared={"pods": [min_pods, max_pods]},
            environment=environment,
            secret=secret,
            resources=settings.pods.dispatcher_resources,
            tracing=settings.tracing.variables_of(services.owner_key(sensor)),
            concurrency=1,
        ),
        settings,
    )


def trigger_manifests(sensor: Sensor, document: Mapping[str, Any]) -> tuple[Manifest, ...]:
    """Return the manifests of a Sensor's Triggers or Subscriptions, one for each trigger of the
    Sensor. `document` is the stored Sensor, whose subscribers and delivery options are copied.

    A Trigger delivers the Sensor's actions only if both its annotation and its owner name the
    Sensor (`actions`).
    """
    triggers_with_declarations = zip(
        sensor.spec.triggers, document["spec"]["triggers"], strict=True
    )
    return tuple(
        _trigger_manifest(sensor, trigger, declared)
        for trigger, declared in triggers_with_declarations
    )


def sensor_label(sensor: Resource) -> str:
    """Return the label value that identifies a Sensor on its Triggers, which are in its
    namespace."""
    return names.child(sensor.metadata.name, "")


def _trigger_manifest(
    sensor: Sensor, trigger: TriggerOfSensor, declared: Mapping[str, Any]
) -> Manifest:
    """Return the manifest of the Trigger or Subscription that delivers the actions of `trigger`,
    one of the Sensor's; `declared` is that trigger as stored."""
    family, delivery = sensor.bus.family, delivery_of(trigger, declared)
    annotations = {
        SENSOR_NAME_KEY: sensor.metadata.name,
        START: "earliest",
        # A Trigger that reads another topic than its Broker's can't share a dispatcher.
        ISOLATION: Isolation.OWN.value,
    }
    if trigger.order is not None:
        annotations[DELIVERY_ORDER] = ORDER_ANNOTATIONS[trigger.order]
    elif family is not BROKERS:
        annotations[DELIVERY_ORDER] = "key"  # the default of a Trigger, but not of a Subscription
    if not trigger.at_least_once:
        annotations[SEMANTICS] = AT_MOST_ONCE  # BUS-5, BUS-S7
    if (limit := trigger.rate_limit) is not None:
        annotations[RATE_LIMIT] = f"{limit.requests_per_unit}/{limit.unit}"
    if trigger.payload == BATCH_PAYLOAD:
        annotations[PAYLOAD] = BATCH_PAYLOAD
    return {
        "apiVersion": family.trigger_version,
        "kind": family.trigger,
        "metadata": {
            "namespace": sensor.metadata.namespace,
            "name": names.sensor_trigger(sensor.metadata.name, trigger.name),
            "labels": {**services.with_common_labels({}), SENSOR_NAME_KEY: sensor_label(sensor)},
            "annotations": annotations,
            "ownerReferences": [services.owner_reference(sensor)],
        },
        "spec": {
            **_trigger_source(sensor, trigger),
            "subscriber": declared["subscriber"],
            **({"reply": declared["reply"]} if trigger.reply is not None else {}),
            **({"delivery": delivery} if delivery else {}),
        },
    }


def _trigger_source(sensor: Sensor, trigger: TriggerOfSensor) -> Mapping[str, Any]:
    """Return the spec fields that say from where events come: a channel, or a Broker and a filter
    by the name of the Sensor's `trigger`."""
    family, identity = sensor.bus
    if family is CHANNELS:
        channel_kind = {"apiVersion": family.broker_version, "kind": family.broker}
        return {"channel": {**channel_kind, "name": identity.name}}
    return {"broker": identity.name, "filters": [{"exact": {records.TRIGGER: trigger.name}}]}
