"""Authentication: what is asked of senders in a namespace, read from features and policies."""

from __future__ import annotations

from dataclasses import replace

from knafka.core.documents import parse
from knafka.core.errors import KnafkaError
from knafka_operator.decide.authentication import Authentication
from knafka_operator.decide.status import EXPECTED
from knafka_operator.model.cluster import Cluster
from knafka_operator.model.resources import CORE, ConfigMap
from knafka_operator.model.settings import Settings
from knafka_operator.reconcile.policies import Policies


def is_on(authentication: Authentication | KnafkaError) -> bool:
    """Whether tokens are shown and asked for; where that can't be read, they go on to be shown to
    whoever wants some."""
    return isinstance(authentication, KnafkaError) or authentication.is_on


async def observe_authentication(
    cluster: Cluster, policies: Policies, settings: Settings, namespace: str
) -> Authentication | KnafkaError:
    """What holds for Brokers and KafkaChannels of `namespace`, or why that isn't known.

    Raises `ClusterError`.
    """
    stored = await cluster.get(CORE, "ConfigMap", *settings.features_config)
    try:
        found = Authentication.of(None if stored is None else parse(ConfigMap, stored))
        return replace(found, policies=policies.of(namespace)) if found.is_on else found
    except EXPECTED as error:
        return error
