"""Broker defaults: the delivery of Brokers that declare none, by namespace and class. Pure.

    ConfigMap `config-br-defaults`, namespace, class -> DeliverySpec

The format is upstream's: key `default-br-config`, YAML with `clusterDefault` and
`namespaceDefaults`; each may have a `delivery`, and others for `brokerClasses`. Upstream writes it
into a new Broker; here it holds where a Broker declares no delivery, and so also for old ones.

Not here: `brokerClass` and references to a config. Upstream's webhook fills these in where Knative
Eventing is installed, KNAFKA_DEFAULT_CLASS and KNAFKA_CONFIG are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import yaml

from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument
from knafka_operator.model.resources import BROKER_CLASS, Broker, ConfigMap, DeliverySpec

KEY: Final = "default-br-config"
_CONFIG_FIELDS: Final = frozenset({"apiVersion", "kind", "name", "namespace", "delivery"})
"""With any of these an entry says what its class is configured with."""


def with_default_delivery(broker: Broker, defaults: ConfigMap | None) -> Broker:
    """The Broker with the delivery that applies to it; its own is never mixed with a default.

    Raises `InvalidDocument` that names the ConfigMap.
    """
    if broker.spec.delivery.is_set or defaults is None or not defaults.data.get(KEY, "").strip():
        return broker
    where = f"data.{KEY} of ConfigMap {defaults.id}"
    try:
        entry = yaml.safe_load(defaults.data[KEY])
    except yaml.YAMLError as error:
        raise InvalidDocument(where, f"no YAML: {error!s:.300}") from None
    class_ = broker.metadata.annotations.get(BROKER_CLASS, "")
    declared = _config(_mapping(entry), broker.metadata.namespace, class_).get("delivery")
    if declared is None:
        return broker
    try:
        delivery = parse(DeliverySpec, declared)
    except InvalidDocument as error:
        raise InvalidDocument(where, f"delivery of {class_:.100}: {error}") from None
    return broker.model_copy(update={"spec": broker.spec.model_copy(update={"delivery": delivery})})


def _config(defaults: Mapping[str, Any], namespace: str, class_: str) -> Mapping[str, Any]:
    """The entry that applies, as upstream looks it up: the namespace's, else the cluster's."""
    of_namespace = _mapping(_mapping(defaults.get("namespaceDefaults")).get(namespace))
    if of_namespace.get("brokerClass") == class_:
        if _CONFIG_FIELDS & of_namespace.keys():
            return of_namespace
    elif found := _mapping(_mapping(of_namespace.get("brokerClasses")).get(class_)):
        return found
    of_cluster = _mapping(defaults.get("clusterDefault"))
    if of_cluster.get("brokerClass") == class_:
        return of_cluster
    return _mapping(_mapping(of_cluster.get("brokerClasses")).get(class_)) or of_cluster


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
