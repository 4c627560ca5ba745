"""Dispatcher services: builds the Knative Services of dispatchers, replayers and shards. Pure.

    Trigger, Egress  -> a dispatcher's Service, and one for its replays
    Broker, Shard    -> the Service of a dispatcher that many Triggers share

An Egress is the contract that says how one Trigger is delivered. A shard is a dispatcher that many
Triggers of a Broker share; its contract is in a topic. A drain is a period in which one pod
delivers, mostly kept going by a request that the operator holds.

The environment has an Egress as JSON, so that a change creates a new Revision; of a contract in a
topic it has only the topic's name.

Not here: what all functions' Services have (`services`), and how many drains are held
(`scale.scaler`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from knafka.core import documents, names
from knafka.core.contract import Delivery, Egress, Shard
from knafka.settings import LEAVING_SECONDS, SERVICE_URL
from knafka_operator.functions.contract_variables import contract_variable
from knafka_operator.functions.services import (
    BROKER_LABEL,
    DISPATCHER_ROLE,
    GRACE_PERIOD,
    MAX_TIMEOUT_SECONDS,
    OIDC_DIGEST_INPUT,
    REPLAYER_ROLE,
    ROLE_LABEL,
    SHARD_NUMBER_LABEL,
    SHARD_ROLE,
    STOP_SECONDS,
    TIMEOUT_SECONDS,
    TRIGGER_LABEL,
    FunctionService,
    Manifest,
    compact_json,
    function_namespace,
    identity_of,
    knative_service,
    one_pod_per_drain_annotations,
    owned_metadata,
    owner_key,
    service_url,
)
from knafka_operator.installation.settings import Settings
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.family import Family, family_of
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import Broker, Trigger

EGRESS_VARIABLE: Final = "KNAFKA_EGRESS"
"""Environment variable with a dispatcher's contract, as JSON."""
SHARD_VARIABLE: Final = "KNAFKA_SHARD"
"""Environment variable with a shared dispatcher's shard, as JSON."""
SHARD_PODS: Final = 2
"""Most pods of a shard: the old and the new one during a roll. Only one drains, as only one request
is held."""


def dispatcher_name(family: Family, trigger: Identity) -> str:
    """Return the name of the Knative Service of a Trigger's own dispatcher."""
    return names.child(family.function_name_prefix(trigger), f"-kn{family.infix}-dispatcher")


def replayer_name(family: Family, trigger: Identity) -> str:
    """Return the name of the Knative Service of a Trigger's replayer."""
    return names.child(family.function_name_prefix(trigger), f"-kn{family.infix}-replayer")


def shard_name(family: Family, broker: Identity, number: int) -> str:
    """Return the name of the Knative Service of a Broker's shared dispatcher `number`."""
    return names.child(family.function_name_prefix(broker), f"-kn{family.infix}-shard-{number}")


def shard_number(service: Mapping[str, Any]) -> int | None:
    """Return the shard's number from the labels of its Service; None: the Service isn't a
    shard's."""
    text = (service["metadata"].get("labels") or {}).get(SHARD_NUMBER_LABEL, "")
    return int(text) if text.isdecimal() else None


def dispatcher_service(
    trigger: Trigger,
    egress: Egress,
    autoscaling: Autoscaling,
    partitions: int,
    secret: tuple[str, str] | None,
    settings: Settings,
    *,
    replays: bool = False,
    account: str | None = None,
) -> Manifest:
    """Return the manifest of the Knative Service of a Trigger's own dispatcher, or with `replays`
    of its replayer. There is one pod for each drain, so at most one for each of the topic's
    `partitions`.

    `secret` is the name and version of the Secret for Kafka (None: none). `account` is the service
    account that the pods run as, to get tokens; None: they need none. With min-scale, Knative keeps
    that many pods, which drain from their start without a request; a replayer has no min-scale.

    Raises `NotReady` for an Egress that is too large.
    """
    contract = contract_variable(
        documents.dump(egress), "dispatcher", "declare shorter CACerts or filters"
    )
    max_pods = max(1, min(autoscaling.max_scale, partitions))
    min_pods = 0 if replays else min(autoscaling.min_scale, max_pods)
    family, identity = family_of(trigger.kind), identity_of(trigger)
    name = replayer_name(family, identity) if replays else dispatcher_name(family, identity)
    timeout = dispatcher_timeout(egress)
    environment = {
        "FUNCTION_TARGET": "dispatch",
        EGRESS_VARIABLE: contract,
        # The URL at which the dispatcher requests its own next drain if work is left and the
        # operator sends no request.
        SERVICE_URL: service_url(name, function_namespace(family, identity, settings), settings),
        "KNAFKA_GRACE_PERIOD": str(timeout - STOP_SECONDS),
    }
    if min_pods:
        environment["KNAFKA_DRAIN_AT_START"] = "true"
    return knative_service(
        FunctionService(
            name=name,
            ownership=owned_metadata(trigger, family, settings),
            labels={
                ROLE_LABEL: REPLAYER_ROLE if replays else DISPATCHER_ROLE,
                BROKER_LABEL: family.label_value(Identity(egress.namespace, egress.broker)),
                TRIGGER_LABEL: family.label_value(identity),
            },
            annotations=one_pod_per_drain_annotations(min_pods, max_pods, settings),
            declared={"pods": [min_pods, max_pods]},
            environment=environment,
            secret=secret,
            credentials=family.credentials_volume_of(trigger),
            resources=settings.pods.dispatcher_resources,
            tracing=settings.tracing.variables_of(owner_key(trigger)),
            concurrency=1,
            timeout=timeout,
            sends=True,
            oidc=account is not None,
            account=account,
        ),
        settings,
    )


def dispatcher_timeout(egress: Egress) -> int:
    """Return the `timeoutSeconds` of a dispatcher's Service, which is also its pods' grace period:
    `TIMEOUT_SECONDS`, or more, so that an attempt of the declared delivery timeout can finish.

    With the default delivery timeout nothing is added: an attempt that takes longer is repeated
    elsewhere. With at-most-once semantics nothing is repeated, so every attempt gets its time.
    """
    attempt_seconds = egress.delivery.timeout
    if attempt_seconds == Delivery().timeout and not egress.at_most_once:
        return TIMEOUT_SECONDS
    needed_seconds = math.ceil(attempt_seconds + LEAVING_SECONDS) + STOP_SECONDS
    return min(max(TIMEOUT_SECONDS, needed_seconds), MAX_TIMEOUT_SECONDS)


def shard_service(
    broker: Broker,
    shard: Shard,
    number: int,
    secret: tuple[str, str] | None,
    settings: Settings,
    *,
    account: str | None = None,
) -> Manifest:
    """Return the manifest of the Knative Service of a Broker's shared dispatcher `number`. `secret`
    is the name and version of the Secret for Kafka (None: none); `account` is the service account
    that it runs as, to get tokens (None: it needs none)."""
    family, identity = family_of(broker.kind), identity_of(broker)
    name = shard_name(family, identity, number)
    return knative_service(
        FunctionService(
            name=name,
            ownership=owned_metadata(broker, family, settings),
            labels={
                ROLE_LABEL: SHARD_ROLE,
                BROKER_LABEL: family.label_value(identity),
                SHARD_NUMBER_LABEL: str(number),
            },
            annotations=one_pod_per_drain_annotations(0, SHARD_PODS, settings),
            declared={} if account is None else OIDC_DIGEST_INPUT,
            environment={
                "FUNCTION_TARGET": "dispatch",
                SHARD_VARIABLE: compact_json(documents.dump(shard)),
                SERVICE_URL: service_url(
                    name, function_namespace(family, identity, settings), settings
                ),
                "KNAFKA_GRACE_PERIOD": str(GRACE_PERIOD),
            },
            secret=secret,
            resources=settings.pods.shard_resources,
            tracing=settings.tracing.variables_of(owner_key(broker)),
            concurrency=1,
            sends=True,
            oidc=account is not None,
            account=account,
        ),
        settings,
    )
