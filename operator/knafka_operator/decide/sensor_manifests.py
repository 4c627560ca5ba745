"""Sensor manifests: what is applied for one: its function, and the Triggers of its actions. Pure.

    Sensor, its contract -> the function's Service
    Sensor               -> a Trigger for each of its own, which delivers what that has fired; on a
                            KafkaChannel a Subscription

How many pods its function has, the scaler says by its drains (`scale.scaler`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from knafka.core import documents, names
from knafka.core.sensor import contract, records
from knafka.settings import DRAIN_AT_START, GRACE_PERIOD, SENSOR, SERVICE_URL
from knafka_operator.decide import services
from knafka_operator.decide.effects import Manifest
from knafka_operator.decide.kafka_settings import AT_MOST_ONCE
from knafka_operator.decide.services import ROLE
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.family import BROKERS, CHANNELS, Family
from knafka_operator.model.identity import Identity
from knafka_operator.model.isolation import Isolation
from knafka_operator.model.resources import (
    BATCH,
    DELIVERY_ORDER,
    ISOLATION,
    PAYLOAD,
    RATE_LIMIT,
    SEMANTICS,
    START,
    Resource,
)
from knafka_operator.model.sensors import OF_SENSOR, Sensor, TriggerOfSensor, delivery_of
from knafka_operator.model.settings import Settings

SENSOR_ROLE: Final = "sensor"
ORDERS: Final = {"key": "key", "partition": "ordered", "unordered": "unordered"}
"""A trigger's order, in the words of the annotation."""


def function_name(family: Family, sensor: Identity) -> str:
    """Of its Knative Service; the family is its bus's."""
    return names.child(family.parent(sensor), f"-kn{family.infix}-sensor")


def function_identity(family: Family, sensor: Identity, settings: Settings) -> Identity:
    """Where its Knative Service is."""
    namespace = services.namespace_of(family, sensor, settings)
    return Identity(namespace, function_name(family, sensor))


def function(
    sensor: Sensor,
    wanted: contract.Sensor,
    autoscaling: Autoscaling,
    partitions: int,
    secret: tuple[str, str] | None,
    settings: Settings,
) -> Manifest:
    """One pod for each drain that is held against it; `secret` is the mounted Secret's name and
    version.

    With min-scale, Knative itself keeps that many, which drain from their start without being
    asked.
    """
    family, who = sensor.bus.family, services.identity_of(sensor)
    name, namespace = function_name(family, who), services.namespace_of(family, who, settings)
    most = max(1, min(autoscaling.max_scale, partitions))
    always = min(autoscaling.min_scale, most)
    environment = {
        "FUNCTION_TARGET": "sense",
        SENSOR: services.one_line(documents.dump(wanted)),
        SERVICE_URL: services.url(name, namespace, settings),
        GRACE_PERIOD: str(services.GRACE_PERIOD),
    }
    if always:
        environment[DRAIN_AT_START] = "true"
    return services.knative_service(
        name,
        services.ownership_of(sensor, family, settings),
        labels={
            ROLE: SENSOR_ROLE,
            services.BROKER: family.label(sensor.bus.who),
            OF_SENSOR: family.label(who),
        },
        annotations=services.exact_scaling(always, most, settings),
        declared={"pods": [always, most]},
        environment=environment,
        secret=secret,
        resources=settings.pods.dispatcher_resources,
        settings=settings,
        tracing=settings.tracing.of(services.owner_key(sensor)),
        concurrency=1,
    )


def triggers(sensor: Sensor, document: Mapping[str, Any]) -> tuple[Manifest, ...]:
    """`document` is the Sensor as it is stored: subscriber and delivery are passed on as there.

    The annotation and the owner say together that it delivers the Sensor's actions (`actions`).
    """
    both = zip(sensor.spec.triggers, document["spec"]["triggers"], strict=True)
    return tuple(_trigger(sensor, each, declared) for each, declared in both)


def label(sensor: Resource) -> str:
    """What stands for it in labels of its Triggers, which are in its own namespace."""
    return names.child(sensor.metadata.name, "")


def _trigger(sensor: Sensor, trigger: TriggerOfSensor, declared: Mapping[str, Any]) -> Manifest:
    semantics = {} if trigger.at_least_once else {SEMANTICS: AT_MOST_ONCE}  # BUS-5, BUS-S7
    delivery = delivery_of(trigger, declared)
    payload = {PAYLOAD: BATCH} if trigger.payload == BATCH else {}
    rate = {}
    if (limit := trigger.rate_limit) is not None:
        rate = {RATE_LIMIT: f"{limit.requests_per_unit}/{limit.unit}"}
    family = sensor.bus.family
    order = {}
    if trigger.order is not None:
        order = {DELIVERY_ORDER: ORDERS[trigger.order]}
    elif family is not BROKERS:
        order = {DELIVERY_ORDER: "key"}  # as on a Broker
    return {
        "apiVersion": family.trigger_version,
        "kind": family.trigger,
        "metadata": {
            "namespace": sensor.metadata.namespace,
            "name": names.sensor_trigger(sensor.metadata.name, trigger.name),
            "labels": {**services.with_common_labels({}), OF_SENSOR: label(sensor)},
            "annotations": {
                OF_SENSOR: sensor.metadata.name,
                START: "earliest",
                # What reads another topic than its Broker's shares nothing with those that do.
                ISOLATION: Isolation.OWN.value,
                **order,
                **semantics,
                **rate,
                **payload,
            },
            "ownerReferences": [services.owner_reference(sensor)],
        },
        "spec": {
            **_source(sensor, trigger),
            "subscriber": declared["subscriber"],
            **({"reply": declared["reply"]} if trigger.reply is not None else {}),
            **({"delivery": delivery} if delivery else {}),
        },
    }


def _source(sensor: Sensor, trigger: TriggerOfSensor) -> Mapping[str, Any]:
    family, who = sensor.bus
    if family is CHANNELS:
        of = {"apiVersion": family.broker_version, "kind": family.broker}
        return {"channel": {**of, "name": who.name}}
    return {"broker": who.name, "filters": [{"exact": {records.TRIGGER: trigger.name}}]}
