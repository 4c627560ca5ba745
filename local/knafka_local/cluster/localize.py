"""Localize: changes documents where one machine differs from a cluster. Pure.

    Broker        is of class `kafka` unless it names another
    KafkaChannel  is stored in one version, with one copy of each event
    Trigger, Subscription
                  its lag is read every second, and its dispatcher ends after ten idle seconds
    ConfigMap     one copy of each record; neither another Kafka's address nor its credentials;
                  senders must show tokens only after `knafka up --require-auth`
    address       a Broker's is a path below one URL of this machine, a KafkaChannel's below another

On a cluster, webhooks change declared documents in the same place; so the operator needn't know
that it runs on one machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from knafka.core import names
from knafka_operator.brokers import admission
from knafka_operator.brokers.external_topics import EXTERNAL_TOPICS
from knafka_operator.channels import admission as channel_admission
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka import desired
from knafka_operator.kafka.topics import TOPIC_ID
from knafka_operator.model.cluster import Document
from knafka_operator.model.family import CHANNELS
from knafka_operator.model.resources import (
    AUTOSCALING,
    CORE,
    EXTERNAL_TOPIC,
    GROUP_STATUS,
    TOPIC_STATUS,
)
from knafka_operator.model.topics import REPLICATION_KEY
from knafka_operator.senders.authentication import OIDC
from knafka_operator.triggers.admission import with_trigger_defaults

LOCAL_OPERATOR_SETTINGS: Final = Settings(
    namespace="knafka",
    image="none",
    default_class="kafka",
    deletion_timeout=10.0,
    sensors=True,
    local_addresses=True,
    trusts_statuses=True,
)
"""The operator's settings on this machine."""

LOCAL_SCALING: Final[Mapping[str, str]] = {
    AUTOSCALING + "polling-interval": "1",
    AUTOSCALING + "cooldown-period": "10",
}
"""Scaling annotations, used where an object has none: reading lags is cheap on one machine, and a
person is watching."""

LOCAL_PARTITIONS: Final = "10"
"""Partitions of a Broker's topic: upstream's default, so that Triggers scale here as on a
cluster."""


def localized_document(document: Document) -> dict[str, Any]:
    """Return a declared document as `LocalCluster` stores it: with defaults, without a status, and
    without the metadata that only an API server sets."""
    declared_metadata = _without_nulls(document.get("metadata"))
    # All other fields that `kubectl get -o yaml` shows are set by the API server.
    kept_fields = {
        key: declared_metadata[key]
        for key in ("name", "namespace", "labels", "annotations")
        if key in declared_metadata
    }
    metadata = {"namespace": "default", **kept_fields}
    document = {**document, "metadata": metadata}
    match document["kind"]:
        case "Broker":
            stored = admission.with_broker_defaults(
                document, default_class=LOCAL_OPERATOR_SETTINGS.default_class
            )
        case "Trigger":
            stored = with_trigger_defaults(document)
            stored["metadata"] = with_local_scaling(stored["metadata"])
        case "KafkaChannel":
            stored = channel_admission.with_channel_defaults(document)
            stored["apiVersion"] = CHANNELS.broker_version
            if isinstance(stored.get("spec"), Mapping):
                stored["spec"] = {**stored["spec"], "replicationFactor": 1}
        case "Subscription":
            stored = channel_admission.with_subscription_defaults(document)
            stored["metadata"] = with_local_scaling(stored["metadata"])
        case "Sensor":
            stored = dict(document)
            stored["metadata"] = with_local_scaling(stored["metadata"])
        case "ConfigMap":
            stored = {**document, "data": _local_config(_without_nulls(document.get("data")))}
        case _:
            stored = dict(document)
    stored.pop("status", None)
    return stored


def with_local_scaling(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object's metadata with the annotations of `LOCAL_SCALING`; the object's own
    annotations have precedence."""
    return {
        **metadata,
        "annotations": {**LOCAL_SCALING, **_without_nulls(metadata.get("annotations"))},
    }


def installation_config_map(
    name: str, declared: Document | None, bootstrap_servers: str
) -> Document:
    """Return the installation's ConfigMap of this name, which has the defaults of all Brokers or of
    all KafkaChannels.

    `declared` is the ConfigMap that a file declares under the name, None if none does. Its data has
    precedence, except that Kafka's address is `bootstrap_servers`, and that Brokers may use any
    external topic.
    """
    namespace = LOCAL_OPERATOR_SETTINGS.namespace
    data = {
        desired.PARTITIONS_KEY: LOCAL_PARTITIONS,
        REPLICATION_KEY: "1",
        **(declared or {}).get("data", {}),
        desired.BOOTSTRAP_SERVERS: bootstrap_servers,
        # Whoever starts `knafka up` administers it, so every external topic that may be allowed is
        # allowed.
        EXTERNAL_TOPICS: "*",
    }
    return config_map(namespace, name, data)


def features_config_map(declared: Document | None, *, requires_auth: bool) -> Document:
    """Return Knative Eventing's ConfigMap `config-features`, with the data of the one that a file
    declares (None if none does).

    `requires_auth` alone decides whether senders must show tokens, since only then an issuer runs.
    """
    data = {**(declared or {}).get("data", {}), OIDC: "enabled" if requires_auth else "disabled"}
    return config_map(*LOCAL_OPERATOR_SETTINGS.features_config, data)


def config_map(namespace: str, name: str, data: Mapping[str, str]) -> Document:
    """Return a ConfigMap with this data."""
    metadata = {"namespace": namespace, "name": name}
    return {"apiVersion": CORE, "kind": "ConfigMap", "metadata": metadata, "data": dict(data)}


def with_local_address(status: Document, url: str) -> Document:
    """Return a Broker's or KafkaChannel's status with an address below `url`, a URL of this
    machine, in place of its Service's address; unchanged if it has no address."""
    address = status.get("address")
    if not address:
        return status
    address_here = {**address, "url": url + urlsplit(address["url"]).path}
    # The further addresses are also the Service's, whose host doesn't exist on this machine.
    other_addresses = {"addresses": [address_here]} if status.get("addresses") else {}
    return {**status, "address": address_here, **other_addresses}


def adopted_annotations(document: Document) -> dict[str, str]:
    """Return the status annotations that an object had in an older Knafka, which didn't keep them:
    they follow from its name. Empty if an object of its kind had none, or if its topic is external.

    The topic's id is empty: so the operator takes over the existing topic instead of creating one.
    """
    metadata = document["metadata"]
    identity = metadata["namespace"], metadata["name"]
    if document["kind"] == "Trigger":
        return {GROUP_STATUS: names.trigger_group(*identity)}
    if document["kind"] != "Broker":
        return {}  # the other kinds did not exist before annotations were kept
    if EXTERNAL_TOPIC in (metadata.get("annotations") or {}):
        return {}
    return {TOPIC_STATUS: names.broker_topic(*identity), TOPIC_ID: ""}


def _local_config(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ConfigMap's data, with one copy of each record and without Kafka's address and
    credentials."""
    kept = {
        key: value
        for key, value in data.items()
        if key != desired.BOOTSTRAP_SERVERS and not key.startswith("auth.secret.")
    }
    # A single node holds only one copy. Zero (empty after `lstrip`), or a value that isn't a
    # number, is kept: the operator refuses it.
    if str(kept.get(REPLICATION_KEY, "")).strip().lstrip("0").isdecimal():
        kept[REPLICATION_KEY] = "1"
    return kept


def _without_nulls(fields: Any) -> dict[str, Any]:
    """Return the fields whose value isn't null: Kubernetes treats null as left out. Empty if
    `fields` itself is None."""
    return {key: value for key, value in (fields or {}).items() if value is not None}
