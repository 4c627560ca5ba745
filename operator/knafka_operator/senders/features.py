"""Features: Knative Eventing's ConfigMap `config-features`, read once per reconciled object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument, KnafkaError
from knafka_operator.decisions.status import EXPECTED
from knafka_operator.installation.settings import Settings
from knafka_operator.model.cluster import Cluster
from knafka_operator.model.features import EVENT_TYPES, is_enabled
from knafka_operator.model.resources import CORE, ConfigMap
from knafka_operator.senders.authentication import Authentication
from knafka_operator.senders.encryption import Encryption
from knafka_operator.senders.policies import Policies

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Features:
    """The features of one namespace; where one can't be read, the error stands for the value."""

    authentication: Authentication | KnafkaError
    encryption: Encryption | KnafkaError
    event_types: bool
    """Whether EventTypes are created; False if that can't be read."""


async def observe_features(
    cluster: Cluster, settings: Settings, policies: Policies, namespace: str
) -> Features:
    """The features of a namespace. Raises `ClusterError`."""
    try:
        config = await _read_config(cluster, settings)
    except InvalidDocument as error:
        return Features(error, error, False)

    def authentication() -> Authentication:
        found = Authentication.of(config)
        return replace(found, policies=policies.of(namespace)) if found.is_on else found

    return Features(
        _value_or_error(authentication),
        _value_or_error(lambda: Encryption.of(config)),
        is_enabled(config, EVENT_TYPES),
    )


async def makes_event_types(cluster: Cluster, settings: Settings) -> bool:
    """Whether EventTypes are made of events. Raises `ClusterError`, `InvalidDocument`."""
    return is_enabled(await _read_config(cluster, settings), EVENT_TYPES)


async def _read_config(cluster: Cluster, settings: Settings) -> ConfigMap | None:
    """The ConfigMap; None if it doesn't exist. Raises `ClusterError`, `InvalidDocument`."""
    stored = await cluster.get(CORE, "ConfigMap", *settings.features_config)
    return None if stored is None else parse(ConfigMap, stored)


def _value_or_error(read: Callable[[], T]) -> T | KnafkaError:
    try:
        return read()
    except EXPECTED as error:
        return error


def is_authentication_on(authentication: Authentication | KnafkaError) -> bool:
    """Whether tokens are sent and required. True if that can't be read: destinations that require
    tokens still get them."""
    return isinstance(authentication, KnafkaError) or authentication.is_on
