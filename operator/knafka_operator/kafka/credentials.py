"""Credentials: selects the Secret for a Kafka, and checks that a Broker's pods may mount it. Pure.

    ConfigMap of the Broker, ConfigMap of the installation -> one ConfigMap, and its Secret
    Broker, Secret -> what its pods mount
    KafkaChannel, ConfigMap of all channels -> the channel's Secret, and its configuration

Credentials belong to their servers: a Secret from one ConfigMap is never sent to servers from
another one. They also belong to their namespace: a Broker may use a Secret of its own namespace, or
one that the installation offers. Every other Secret is refused before it is read.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from knafka.core import names
from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument
from knafka_operator.decisions.status import NotReady
from knafka_operator.functions import services
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka import desired
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import CORE, KNAFKA_PREFIX, Broker, ConfigMap

KAFKA_SECRET: Final = f"{KNAFKA_PREFIX}kafka-secret"
"""Annotation of a KafkaChannel: the Secret in the operator's namespace with the credentials of its
Kafka; that Secret has the same key as a label (CHN-20). Without it: the Secret that the
installation's ConfigMap names."""
BROKER_CONFIG_LABEL: Final = f"{KNAFKA_PREFIX}broker-config"
"""Label of a ConfigMap of the operator's namespace that Brokers of all namespaces may name."""
SECRET_NAMESPACE: Final = "auth.secret.ref.namespace"
"""Key of the channels' ConfigMap: namespace of its Secret; without it, the operator's."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A Broker's ConfigMap merged over the installation's, and the Secret that applies."""

    config: ConfigMap
    """The merged ConfigMap."""
    secret: Identity | None
    """The Secret for the configured servers; None: no Secret is needed."""
    is_offered: bool = False
    """Whether the installation offers that Secret: a ConfigMap in the operator's namespace names
    it."""


@dataclass(frozen=True, slots=True)
class Mount:
    """The Secret that a Broker's pods mount."""

    name: str
    """The Secret's name in the pods' namespace: that of the copy if there is one."""
    version: str
    """The Secret's resourceVersion; a new one creates a new Revision."""
    secret: Identity
    """The Secret that an administrator or the user has created, not the copy."""
    projected: services.Manifest | None = None
    """The copy to be created in the Broker's namespace; None: none is needed."""


def check_config_map_reference(
    reference: tuple[str, str] | None,
    broker_config: ConfigMap | None,
    broker: Broker,
    default: Identity,
) -> None:
    """Refuse a Broker of another namespace that names a ConfigMap in the operator's namespace,
    unless that ConfigMap is for Brokers: it is the installation's own, whose identity is `default`,
    or an administrator has labelled it. The channels' ConfigMap, for example, isn't for Brokers.

    `reference` is the ConfigMap's namespace and name (None: the Broker names none), `broker_config`
    the ConfigMap itself (None: it doesn't exist). Raises `NotReady`, with the same message whether
    or not the ConfigMap exists.
    """
    if reference in (None, default) or broker.metadata.namespace == default.namespace:
        return
    assert reference is not None
    if reference[0] != default.namespace:
        return
    if broker_config is None or broker_config.metadata.labels.get(BROKER_CONFIG_LABEL) != "true":
        raise NotReady(
            "ConfigMapNotAllowed",
            f"ConfigMap {reference[0]}/{reference[1]} is not for Brokers: in spec.config name "
            f"{default}, or one of the Broker's own namespace; an administrator may label "
            f"others {BROKER_CONFIG_LABEL}: true",
        )


def merge_configuration(
    reference: tuple[str, str] | None,
    broker_config: ConfigMap | None,
    installation_config: ConfigMap | None,
    default: Identity,
) -> Configuration:
    """Merge `broker_config`, the ConfigMap that the Broker's `spec.config` names, over
    `installation_config`, whose identity is `default`, and select the Secret; either ConfigMap is
    None if it doesn't exist. `reference` is the namespace and name in `spec.config`; None: the
    Broker names no ConfigMap.

    Raises `NotReady` if the Broker's ConfigMap doesn't exist, `InvalidDocument` if neither
    ConfigMap names Kafka's servers.
    """
    if reference is not None and broker_config is None and reference != default:
        raise NotReady(
            "ConfigMapNotFound", f"ConfigMap {reference[0]}/{reference[1]} does not exist"
        )
    data = {
        **(installation_config.data if installation_config else {}),
        **(broker_config.data if broker_config else {}),
    }
    merged = broker_config or installation_config
    if merged is None or not data.get(desired.BOOTSTRAP_SERVERS, "").strip():
        config_identity = reference or default
        raise InvalidDocument(
            f"data.{desired.BOOTSTRAP_SERVERS}",
            f"missing: ConfigMap {config_identity[0]}/{config_identity[1]} says where "
            "Kafka is (host:port)",
        )
    # The ConfigMap that names the servers also decides their Secret: they never get another one's
    # credentials.
    names_servers = broker_config is not None and desired.BOOTSTRAP_SERVERS in broker_config.data
    names_secret = broker_config is not None and desired.SECRET_NAME_KEY in broker_config.data
    uses_own_secret = (names_servers or names_secret) and reference != default
    secret = desired.secret_reference(broker_config if uses_own_secret else installation_config)
    config_is_in_operator_namespace = reference is not None and reference[0] == default.namespace
    return Configuration(
        merged.model_copy(update={"data": data}),
        None if secret is None else Identity(*secret),
        is_offered=not uses_own_secret or config_is_in_operator_namespace,
    )


def check_secret(configured: Configuration, broker: Broker, settings: Settings) -> None:
    """Refuse the Secret of a Broker's merged configuration if it is in another namespace, unless
    the installation offers it and lets the operator copy Secrets. Raises `NotReady`.

    Call it before the Secret is read: a refused Secret must not be sent to any server.
    """
    secret = configured.secret
    if secret is None or secret.namespace == broker.metadata.namespace:
        return
    if not (settings.project_secrets and configured.is_offered):
        raise NotReady(
            "SecretNotProjected",
            f"Secret {secret} is in another namespace: name a ConfigMap and Secret of the "
            "Broker's own in spec.config, or have the operator copy its own with "
            "KNAFKA_PROJECT_SECRETS=true",
        )


def secret_mount(broker: Broker, secret: Mapping[str, Any]) -> Mount:
    """Return how the Broker's pods mount this Secret, which `check_secret` must have accepted:
    directly, or by a copy in the Broker's namespace if the Secret is in another one."""
    metadata = secret["metadata"]
    version, identity = str(metadata.get("resourceVersion", "")), Identity.of(secret)
    if metadata["namespace"] == broker.metadata.namespace:
        return Mount(str(metadata["name"]), version, identity)
    copy = _secret_copy(broker, secret.get("data") or {})
    return Mount(copy["metadata"]["name"], version, identity, copy)


def channel_secret(
    secret_name: str | None, installation_config: ConfigMap | None, namespace: str
) -> Identity | None:
    """Return the identity of the Secret for a KafkaChannel's Kafka, in the operator's `namespace`;
    None: no Secret is named. `secret_name`, from the channel's annotation `KAFKA_SECRET` (None: not
    annotated), takes precedence over the name in `installation_config`, the channels' ConfigMap
    (None: it doesn't exist). Raises `NotReady` if the ConfigMap's Secret counts and is elsewhere.
    """
    data = {} if installation_config is None else installation_config.data
    name = secret_name or data.get(desired.SECRET_NAME_KEY, "").strip()
    if not name:
        return None
    secret_namespace = data.get(SECRET_NAMESPACE, "").strip() or namespace
    if secret_name is None and secret_namespace != namespace:
        message = f"Secret {secret_namespace}/{name}: want one in {namespace}, where functions are"
        raise NotReady("SecretElsewhere", message)
    return Identity(namespace, name)


def check_channel_secret(
    secret_name: str | None, secret: Mapping[str, Any] | None, identity: Identity
) -> Mapping[str, Any]:
    """Return `secret`, which has this `identity`, if a channel may use it. Raises `NotReady` if the
    Secret doesn't exist (None), or if the channel's annotation names it (`secret_name` isn't None)
    and it isn't labelled for channels."""
    if secret is None:
        raise NotReady("SecretNotFound", f"Secret {identity} does not exist")
    labels = secret["metadata"].get("labels") or {}
    if secret_name is not None and labels.get(KAFKA_SECRET) != "true":
        message = f"Secret {identity} is not labelled {KAFKA_SECRET}: true"
        raise NotReady("SecretNotAllowed", message)
    return secret


def channel_config(
    secret_name: str | None,
    values: MutableMapping[str, str] | None,
    installation_config: ConfigMap | None,
    default: Identity,
) -> ConfigMap:
    """Return a KafkaChannel's configuration: `installation_config`, the channels' ConfigMap (None:
    it doesn't exist), whose identity is `default`. If the channel's annotation names a Secret
    (`secret_name`) whose `values` have bootstrap servers, these replace the ConfigMap's and are
    removed from `values`; None: the channel has no Secret.

    Raises `InvalidDocument` if no bootstrap servers are configured.
    """
    if secret_name is not None and values is not None and desired.BOOTSTRAP_SERVERS in values:
        servers = values.pop(desired.BOOTSTRAP_SERVERS)
        data = {
            **(installation_config.data if installation_config else {}),
            desired.BOOTSTRAP_SERVERS: servers,
        }
        metadata = {"namespace": default.namespace, "name": default.name}
        document = {"apiVersion": CORE, "kind": "ConfigMap", "metadata": metadata, "data": data}
        installation_config = parse(ConfigMap, document)
    return merge_configuration(None, None, installation_config, default).config


def _secret_copy(broker: Broker, data: Mapping[str, str]) -> services.Manifest:
    """Return the manifest of a Secret's copy in the Broker's namespace; `data` has the Secret's
    values in base64, as the API returns them."""
    labels = {services.BROKER_LABEL: names.child(broker.metadata.name, "")}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": names.child(broker.metadata.name, "-kn-kafka"),
            "namespace": broker.metadata.namespace,
            "labels": services.with_common_labels(labels),
            "ownerReferences": [services.owner_reference(broker)],
        },
        "type": "Opaque",
        "data": dict(data),
    }
