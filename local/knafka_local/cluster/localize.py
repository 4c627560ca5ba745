"""Localize: what one machine has differently, in documents. Pure.

    Broker        is of class `kafka` unless it names another
    KafkaChannel  is stored in one version, with one copy of each event
    Trigger, Subscription
                  its lag is looked at every second, and ten idle seconds end a dispatcher
    ConfigMap     one copy of everything; neither another Kafka nor its credentials; senders show
                  tokens where `knafka up` is asked for it
    address       a Broker's is a path below one URL of this machine, a KafkaChannel's below another

A cluster's webhooks fill declared documents in, too, so the operator knows of none of this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from knafka.core import names
from knafka_operator.decide import admission, channel_admission, desired
from knafka_operator.decide.authentication import OIDC
from knafka_operator.decide.external_topics import EXTERNAL_TOPICS
from knafka_operator.decide.topics import TOPIC_ID
from knafka_operator.model.cluster import Document
from knafka_operator.model.family import CHANNELS
from knafka_operator.model.resources import (
    AUTOSCALING,
    CORE,
    EXTERNAL_TOPIC,
    GROUP_STATUS,
    TOPIC_STATUS,
)
from knafka_operator.model.settings import Settings

LOCAL_SETTINGS: Final = Settings(
    namespace="knafka",
    image="none",
    default_class="kafka",
    deletion_timeout=10.0,
    sensors=True,
    local_addresses=True,
    trusts_statuses=True,
)
"""The operator's on this machine."""

LOCAL_SCALING: Final[Mapping[str, str]] = {
    AUTOSCALING + "polling-interval": "1",
    AUTOSCALING + "cooldown-period": "10",
}
"""A look at the lag costs next to nothing on one machine, and a person is watching."""

LOCAL_PARTITIONS: Final = "10"
"""Upstream's default number, so that a Trigger scales here as it does there."""


def localized(document: Document) -> dict[str, Any]:
    """A declared document as it is stored here; its status is not for files to say."""
    given = _given(document.get("metadata"))
    # What else `kubectl get -o yaml` shows is the API server's.
    named = {
        key: given[key] for key in ("name", "namespace", "labels", "annotations") if key in given
    }
    metadata = {"namespace": "default", **named}
    document = {**document, "metadata": metadata}
    match document["kind"]:
        case "Broker":
            stored = admission.defaulted_broker(
                document, default_class=LOCAL_SETTINGS.default_class
            )
        case "Trigger":
            stored = admission.defaulted_trigger(document)
            stored["metadata"] = scaled_here(stored["metadata"])
        case "KafkaChannel":
            stored = channel_admission.defaulted_channel(document)
            stored["apiVersion"] = CHANNELS.broker_version
            if isinstance(stored.get("spec"), Mapping):
                stored["spec"] = {**stored["spec"], "replicationFactor": 1}
        case "Subscription":
            stored = channel_admission.defaulted_subscription(document)
            stored["metadata"] = scaled_here(stored["metadata"])
        case "Sensor":
            stored = dict(document)
            stored["metadata"] = scaled_here(stored["metadata"])
        case "ConfigMap":
            stored = {**document, "data": _config(_given(document.get("data")))}
        case _:
            stored = dict(document)
    stored.pop("status", None)
    return stored


def scaled_here(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """An object's metadata with how it scales where it doesn't say so itself."""
    return {**metadata, "annotations": {**LOCAL_SCALING, **_given(metadata.get("annotations"))}}


def installation(name: str, users: Document | None, bootstrap_servers: str) -> Document:
    """The ConfigMap with the defaults of all Brokers, or of all KafkaChannels, over what `users`
    declare under its name."""
    namespace = LOCAL_SETTINGS.namespace
    data = {
        desired.PARTITIONS: LOCAL_PARTITIONS,
        desired.REPLICATION: "1",
        **(users or {}).get("data", {}),
        desired.BOOTSTRAP_SERVERS: bootstrap_servers,
        # Who starts this is the installation: all topics that can be allowed are.
        EXTERNAL_TOPICS: "*",
    }
    return config_map(namespace, name, data)


def features(users: Document | None, *, requires_auth: bool) -> Document:
    """Knative Eventing's features, over what `users` declare under that name: whether senders must
    show tokens is for whoever starts this to say, as only then there is an issuer."""
    data = {**(users or {}).get("data", {}), OIDC: "enabled" if requires_auth else "disabled"}
    return config_map(*LOCAL_SETTINGS.features_config, data)


def config_map(namespace: str, name: str, data: Mapping[str, str]) -> Document:
    metadata = {"namespace": namespace, "name": name}
    return {"apiVersion": CORE, "kind": "ConfigMap", "metadata": metadata, "data": dict(data)}


def with_local_address(status: Document, url: str) -> Document:
    """A Broker's or KafkaChannel's status with the path of its address below `url`, in place of its
    Service's."""
    address = status.get("address")
    if not address:
        return status
    here = {**address, "url": url + urlsplit(address["url"]).path}
    # Whatever else it is addressed by leads to its Service, too, which is nowhere here.
    more = {"addresses": [here]} if status.get("addresses") else {}
    return {**status, "address": here, **more}


def adopted(document: Document) -> dict[str, str]:
    """What the status annotations of an object say that ran here before these were kept.

    An empty id of a topic: it was about to be made for this Broker, so the one that is there is it.
    """
    metadata = document["metadata"]
    identity = metadata["namespace"], metadata["name"]
    if document["kind"] in (CHANNELS.broker, CHANNELS.trigger):
        return {}  # they ran nowhere before these were kept
    if document["kind"] == "Sensor":
        return {}  # neither did they
    if document["kind"] == "Trigger":
        return {GROUP_STATUS: names.trigger_group(*identity)}
    if EXTERNAL_TOPIC in (metadata.get("annotations") or {}):
        return {}
    return {TOPIC_STATUS: names.broker_topic(*identity), TOPIC_ID: ""}


def _config(data: Mapping[str, Any]) -> dict[str, Any]:
    here = {
        key: value
        for key, value in data.items()
        if key != desired.BOOTSTRAP_SERVERS and not key.startswith("auth.secret.")
    }
    # More copies than nodes can't be made; what is no number is for the operator to refuse.
    if str(here.get(desired.REPLICATION, "")).strip().lstrip("0").isdecimal():
        here[desired.REPLICATION] = "1"
    return here


def _given(mapping: Any) -> dict[str, Any]:
    """What is set in it: null is as good as left out."""
    return {key: value for key, value in (mapping or {}).items() if value is not None}
