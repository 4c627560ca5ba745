"""Senders, observed: reads Knative's features for a namespace, and the https address of a receiver.

The ConfigMap `config-features` is read once for each object that is reconciled.

Not here: what the features mean (`authentication`, `encryption`), and following the EventPolicies
(`policies`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument, KnafkaError
from knafka_operator.decisions.status import EXPECTED, NotReady
from knafka_operator.functions import receiver_services
from knafka_operator.installation.settings import Settings
from knafka_operator.model.cluster import Cluster, decode_secret
from knafka_operator.model.features import EVENT_TYPES_FEATURE, is_enabled
from knafka_operator.model.resources import CORE, SERVING, Broker, ConfigMap, Resource
from knafka_operator.scale.parsing import parse_off_loop
from knafka_operator.senders.authentication import Authentication
from knafka_operator.senders.encryption import TLS_SECRET, Encryption, Https, https_of_service
from knafka_operator.senders.policies import Policies

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Features:
    """The features of one namespace; an unreadable feature holds its error as the value."""

    authentication: Authentication | KnafkaError
    """How senders are authenticated in the namespace."""
    encryption: Encryption | KnafkaError
    """Whether senders must use https."""
    event_types: bool
    """Whether EventTypes are created; also False if the features are unreadable."""


async def observe_features(
    cluster: Cluster, settings: Settings, policies: Policies, resource: Resource
) -> Features:
    """Read the features of a resource's namespace. `policies` has all EventPolicies of the cluster;
    those that apply to the resource are parsed here, large ones outside the event loop. An invalid
    feature becomes an error in the result; raises only `ClusterError`."""
    try:
        config = await _read_config(cluster, settings)
    except InvalidDocument as error:
        return Features(authentication=error, encryption=error, event_types=False)

    def read_authentication() -> Authentication:
        """Return how requests are authenticated, with this namespace's policies if authentication
        is on."""
        authentication = Authentication.of(config)
        if not authentication.is_on:
            return authentication
        return replace(authentication, policies=policies.of(resource.metadata.namespace))

    authentication = _value_or_error(read_authentication)
    if isinstance(authentication, Authentication):
        # The result is only for the policies to keep; the decisions ask again.
        unparsed = sum(policy.unparsed_size(resource) for policy in authentication.policies)
        await parse_off_loop(partial(authentication.applied_policies_of, resource), unparsed)
    return Features(
        authentication=authentication,
        encryption=_value_or_error(lambda: Encryption.of(config)),
        event_types=is_enabled(config, EVENT_TYPES_FEATURE),
    )


async def makes_event_types(cluster: Cluster, settings: Settings) -> bool:
    """Whether EventTypes are created from events, by the ConfigMap `config-features`. Raises
    `ClusterError`, and `InvalidDocument` if that can't be parsed."""
    return is_enabled(await _read_config(cluster, settings), EVENT_TYPES_FEATURE)


async def _read_config(cluster: Cluster, settings: Settings) -> ConfigMap | None:
    """Return the ConfigMap `config-features`; None: it doesn't exist. Raises `ClusterError`, and
    `InvalidDocument` if it can't be parsed."""
    stored = await cluster.get(CORE, "ConfigMap", *settings.features_config)
    return None if stored is None else parse(ConfigMap, stored)


def _value_or_error(read: Callable[[], T]) -> T | KnafkaError:
    """Return the result of `read`, or the error that it raises if that is one of `EXPECTED`, which
    become conditions in an object's status. Other errors are raised."""
    try:
        return read()
    except EXPECTED as error:
        return error


def is_authentication_on(authentication: Authentication | KnafkaError) -> bool:
    """Whether tokens are sent and required. True if `authentication` is the error of reading that,
    so that destinations that require tokens still get them."""
    return isinstance(authentication, KnafkaError) or authentication.is_on


async def observe_https(
    cluster: Cluster, broker: Broker, settings: Settings, now: datetime | None = None
) -> Https | NotReady:
    """Return the https address of a Broker's receiver, or the error that explains why it has none.
    A Broker with the annotation `TLS_SECRET` has a receiver that terminates TLS itself; `now` is
    the time at which its certificate must not have expired, None: the present. For any other Broker
    the address is Knative's (`observe_https_of`). Raises `ClusterError`."""
    namespace = broker.metadata.namespace
    if (name := broker.metadata.annotations.get(TLS_SECRET)) is None:
        return await observe_https_of(cluster, namespace, receiver_services.receiver_name(broker))
    # Imported here, as few Brokers name a Secret.
    from knafka_operator.senders.certificates import https_of_secret

    stored = await cluster.get(CORE, "Secret", namespace, name)
    values = None if stored is None else decode_secret(stored)
    try:
        return https_of_secret(broker, name, values, settings, now or datetime.now(UTC))
    except NotReady as error:
        return error


async def observe_https_of(cluster: Cluster, namespace: str, receiver: str) -> Https | NotReady:
    """Return the https address that Knative gives the Knative Service `receiver`, or the error that
    explains why it has none. Raises `ClusterError`."""
    try:
        stored = await cluster.get(SERVING, "Service", namespace, receiver)
        return https_of_service(stored, receiver)
    except NotReady as error:
        return error
