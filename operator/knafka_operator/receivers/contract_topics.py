"""Receivers' contracts: which topic has what a receiver accepts, and how that is made. Pure.

    all objects of one kind that reach Kafka with one Secret -> one topic, an entry for each

Not here: what an entry is (`desired.broker_ingress`).
"""

from __future__ import annotations

import hashlib
import json
from typing import Final, Literal

from knafka.core import documents, names
from knafka.core.contract import Ingress, Kafka, Receiver
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka.desired import MIN_IN_SYNC, Defaults
from knafka_operator.kafka.kafka_settings import CLEANUP
from knafka_operator.model.identity import Identity
from knafka_operator.model.topics import Topic

COMPACTED: Final = {CLEANUP: "compact"}
"""Setting of a contract's topic: the last record of each entry is kept for ever."""
ACCEPTED: Final = "knafka.dev/accepted"
"""Key of `status.annotations`: the entry that all replicas have read, by `entry_digest`. Kept
there, since an operator that starts should not ask them all, nor wait for what was waited for."""


def contract_for_secret(
    of: Literal["Brokers", "KafkaChannels"],
    kafka: Kafka,
    secret: Identity | None,
    settings: Settings,
    path: str | None = None,
) -> Receiver:
    """The configuration of a receiver that reaches this Kafka with this Secret; `path` is that of
    the only Ingress that it serves, None: it serves all. The contract topic is named after the
    Secret."""
    namespace, name = (settings.namespace, None) if secret is None else secret
    # Two clusters with one Kafka must not serve, or withdraw, each other's.
    parts = (of, name, settings.installation[:8])
    topic = names.contract_topic(namespace, "-".join(each for each in parts if each))
    return Receiver(kafka=kafka, contract_topic=topic, path=path)


def is_of_namespace_secret(topic: str, namespace: str, settings: Settings) -> bool:
    """Whether a contract topic is named after a Secret of this namespace.

    The name comes from a status, where anybody may write any name, so its digest is checked. False
    for names so long that they were shortened.
    """
    installation = settings.installation[:8]
    prefix, ending = (
        f"{names.CONTRACTS}{namespace}-Brokers-",
        f"-{installation}" * bool(installation),
    )
    secret = topic.removeprefix(prefix).rpartition("-")[0].removesuffix(ending)
    if not topic.startswith(prefix) or not secret:
        return False
    return topic == names.contract_topic(namespace, f"Brokers-{secret}{ending}")


def may_hold_brokers_of(topic: str, namespace: str, settings: Settings) -> bool:
    """Whether a contract topic of this name may hold Brokers of this namespace: it must be named
    after a Secret of that namespace or of the operator's (`contract_for_secret`)."""
    beginnings = (f"{names.CONTRACTS}{each}-Brokers" for each in (namespace, settings.namespace))
    return topic.startswith(tuple(beginnings))


def contract_topic(receiver: Receiver, defaults: Defaults) -> Topic:
    """The declared topic of a receiver's contract; it has one partition, which orders its
    records."""
    replication = min(defaults.replication, defaults.max_replication)
    if defaults.declares_replication:
        return _contract_topic(receiver, replication, None)
    # It is no user's, so what nobody has declared is no reason to have none on a single node.
    topic = _contract_topic(receiver, 1, None)
    for more in range(2, replication + 1):
        topic = _contract_topic(receiver, more, topic)
    return topic


def _contract_topic(receiver: Receiver, replication: int, fewer: Topic | None) -> Topic:
    config = dict(COMPACTED)
    if replication >= 3:
        config[MIN_IN_SYNC] = "2"
    return Topic(receiver.contract_topic, 1, replication, config, fewer=fewer)


def entry_digest(topic: str, ingress: Ingress) -> str:
    """A digest that identifies an entry and the contract topic that holds it."""
    text = json.dumps([topic, documents.dump(ingress)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
