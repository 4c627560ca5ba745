"""Credentials: which Secret goes with which Kafka, and whether a Broker's pods may mount it. Pure.

    ConfigMap of the Broker, ConfigMap of the installation -> one ConfigMap, and its Secret
    Broker, Secret -> what its pods mount

Credentials belong to their servers: a Secret that one ConfigMap names is never sent to the servers
that another one names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from knafka.core.errors import InvalidDocument
from knafka_operator.decide import desired, services
from knafka_operator.decide.status import NotReady
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import Broker, ConfigMap
from knafka_operator.model.settings import Settings


@dataclass(frozen=True, slots=True)
class Configuration:
    """The Broker's ConfigMap over the installation's."""

    config: ConfigMap
    secret: Identity | None
    """The Secret for its servers; None: it names none."""


@dataclass(frozen=True, slots=True)
class Mount:
    """What a Broker's pods mount."""

    name: str
    version: str
    """The Secret's: another one is another Revision."""
    projected: services.Manifest | None = None
    """The copy beside the Broker that has to be made."""


def configuration(
    reference: tuple[str, str] | None,
    own: ConfigMap | None,
    base: ConfigMap | None,
    default: Identity,
) -> Configuration:
    """Merge what `spec.config` refers to over the installation's own, which is `default`.

    Raises `NotReady` if there is no ConfigMap `reference`, `InvalidDocument` if none says where
    Kafka is.
    """
    if reference is not None and own is None and reference != default:
        raise NotReady(
            "ConfigMapNotFound", f"ConfigMap {reference[0]}/{reference[1]} does not exist"
        )
    data = {**(base.data if base else {}), **(own.data if own else {})}
    merged = own or base
    if merged is None or not data.get(desired.BOOTSTRAP_SERVERS, "").strip():
        where = reference or default
        raise InvalidDocument(
            f"data.{desired.BOOTSTRAP_SERVERS}",
            f"missing: ConfigMap {where[0]}/{where[1]} says where Kafka is (host:port)",
        )
    # Who names servers says with what Secret: another's credentials never go there.
    names_servers = own is not None and desired.BOOTSTRAP_SERVERS in own.data
    names_secret = own is not None and desired.SECRET in own.data
    secret = desired.secret_reference(own if names_servers or names_secret else base)
    return Configuration(
        merged.model_copy(update={"data": data}), None if secret is None else Identity(*secret)
    )


def mount(broker: Broker, secret: Mapping[str, Any], settings: Settings) -> Mount:
    """How the Broker's pods get this Secret; raises `NotReady` if they may not."""
    metadata = secret["metadata"]
    version = str(metadata.get("resourceVersion", ""))
    if metadata["namespace"] == broker.metadata.namespace:
        return Mount(str(metadata["name"]), version)
    if not settings.project_secrets or metadata["namespace"] != settings.namespace:
        raise NotReady(
            "SecretNotProjected",
            f"Secret {metadata['namespace']}/{metadata['name']} is in another namespace: name "
            "a ConfigMap and Secret of the Broker's own in spec.config, or have the operator "
            "copy its own with KNAFKA_PROJECT_SECRETS=true",
        )
    copy = services.projected_secret(broker, secret.get("data") or {})
    return Mount(copy["metadata"]["name"], version, copy)
