"""Broker defaults: class and delivery of Brokers that declare none. Pure.

    ConfigMap `config-br-defaults`, namespace        -> class
    ConfigMap `config-br-defaults`, namespace, class -> DeliverySpec

The format is upstream's: key `default-br-config`, YAML with `clusterDefault` and
`namespaceDefaults`; each may have a `brokerClass` and a `delivery`, and others for `brokerClasses`.
Upstream writes both into a new Broker. Here the webhook writes only the class, as it can't change
later (KN-BRK-05); the delivery applies to every Broker that declares none, also to older ones. Not
here: references to a ConfigMap; Knafka uses KNAFKA_CONFIG.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import yaml

from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument
from knafka_operator.model.resources import BROKER_CLASS, Broker, ConfigMap, DeliverySpec

DEFAULTS_KEY: Final = "default-br-config"
"""Key of the ConfigMap `config-br-defaults`, whose value is YAML."""
_CONFIG_FIELDS: Final = frozenset({"apiVersion", "kind", "name", "namespace", "delivery"})
"""Fields that configure an entry's `brokerClass`; an entry without any of them only names it."""


def default_class(namespace: str, defaults: ConfigMap | None) -> str:
    """Return the default class for a new Broker (KN-BRK-04): the namespace's, else the cluster's;
    empty if there is none. `defaults` None: the ConfigMap doesn't exist. Raises `InvalidDocument`
    with the ConfigMap's name."""
    entries = _parse_entries(defaults)
    namespace_entry = _mapping_at(_mapping_at(entries, "namespaceDefaults"), namespace)
    for entry in (namespace_entry, _mapping_at(entries, "clusterDefault")):
        if isinstance(class_ := entry.get("brokerClass"), str) and class_:
            return class_
    return ""


def with_default_delivery(broker: Broker, defaults: ConfigMap | None) -> Broker:
    """Return the Broker with the default delivery of its namespace and class. It is unchanged if it
    declares a delivery, or if there is no default. Raises `InvalidDocument` with the ConfigMap's
    name."""
    if broker.spec.delivery.is_set or defaults is None:
        return broker
    class_ = broker.metadata.annotations.get(BROKER_CLASS, "")
    entry = _find_class_entry(_parse_entries(defaults), broker.metadata.namespace, class_)
    if (declared := entry.get("delivery")) is None:
        return broker
    try:
        delivery = parse(DeliverySpec, declared)
    except InvalidDocument as error:
        raise InvalidDocument(_location(defaults), f"delivery of {class_:.100}: {error}") from None
    return broker.model_copy(update={"spec": broker.spec.model_copy(update={"delivery": delivery})})


def _parse_entries(defaults: ConfigMap | None) -> Mapping[str, Any]:
    """Return the ConfigMap's parsed YAML, with `clusterDefault` and `namespaceDefaults`; empty if
    there is no ConfigMap or the YAML is no mapping. Raises `InvalidDocument` if it is no YAML."""
    if defaults is None:
        return {}
    try:
        entries = yaml.safe_load(defaults.data.get(DEFAULTS_KEY, ""))
    except yaml.YAMLError as error:
        raise InvalidDocument(_location(defaults), f"no YAML: {error!s:.300}") from None
    return entries if isinstance(entries, Mapping) else {}


def _location(defaults: ConfigMap) -> str:
    """Return where the defaults are declared, for error messages."""
    return f"data.{DEFAULTS_KEY} of ConfigMap {defaults.id}"


def _find_class_entry(
    defaults: Mapping[str, Any], namespace: str, class_: str
) -> Mapping[str, Any]:
    """Return the default entry of a class, looked up as upstream does: the namespace's, else the
    cluster's. If neither has one for the class, return `clusterDefault` itself (empty without one).
    """
    namespace_entry = _mapping_at(_mapping_at(defaults, "namespaceDefaults"), namespace)
    # An entry's own fields are for its `brokerClass`; its `brokerClasses` are for other classes.
    if namespace_entry.get("brokerClass") == class_:
        if _CONFIG_FIELDS & namespace_entry.keys():
            return namespace_entry
    elif class_entry := _mapping_at(_mapping_at(namespace_entry, "brokerClasses"), class_):
        return class_entry
    cluster_entry = _mapping_at(defaults, "clusterDefault")
    if cluster_entry.get("brokerClass") == class_:
        return cluster_entry
    return _mapping_at(_mapping_at(cluster_entry, "brokerClasses"), class_) or cluster_entry


def _mapping_at(mapping: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the mapping at `key`; empty if there is nothing or a value of another type."""
    value = mapping.get(key)
    return value if isinstance(value, Mapping) else {}
