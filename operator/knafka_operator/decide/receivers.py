"""Receivers' contracts: which topic has what a receiver accepts, and how that is made. Pure.

    all objects of one kind that reach Kafka with one Secret -> one topic, an entry for each

Not here: what an entry is (`desired.ingress`).
"""

from __future__ import annotations

import hashlib
import json
from typing import Final, Literal

from knafka.core import documents, names
from knafka.core.contract import Ingress, Kafka, Receiver
from knafka_operator.decide.desired import MIN_IN_SYNC, Defaults, Topic
from knafka_operator.decide.kafka_settings import CLEANUP
from knafka_operator.model.identity import Identity
from knafka_operator.model.settings import Settings

COMPACTED: Final = {CLEANUP: "compact"}
"""Of a contract's topic: the last record of each entry is kept for ever."""
ACCEPTED: Final = "knafka.dev/accepted"
"""Key of `status.annotations`: the entry that all replicas have read, by `entry_digest`. Kept
there, since an operator that starts should not ask them all, nor wait for what was waited for."""


def contract(
    of: Literal["Brokers", "KafkaChannels"],
    kafka: Kafka,
    secret: Identity | None,
    settings: Settings,
    path: str | None = None,
) -> Receiver:
    """The contract of a receiver that reaches this Kafka with this Secret; `path` is that of the
    only Ingress that it serves. The topic is named by the Secret, so by who may read it."""
    namespace, name = (settings.namespace, None) if secret is None else secret
    # Two clusters with one Kafka must not serve, or withdraw, each other's.
    parts = (of, name, settings.installation[:8])
    topic = names.contract_topic(namespace, "-".join(each for each in parts if each))
    return Receiver(kafka=kafka, contract_topic=topic, path=path)


def is_of_secret_in(topic: str, namespace: str, settings: Settings) -> bool:
    """Whether this is the contract's topic of Brokers that have some Secret of this namespace.

    A status tells the topic, where anybody may write any name: the digest in it decides. A name so
    long that it was cut says no.
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


def is_contract_of_brokers(topic: str, namespace: str, settings: Settings) -> bool:
    """Whether Brokers of this namespace can have an entry in a topic of this name: `contract` names
    it by the Secret, which is of that namespace or of the operator's."""
    beginnings = (f"{names.CONTRACTS}{each}-Brokers" for each in (namespace, settings.namespace))
    return topic.startswith(tuple(beginnings))


def contract_topic(receiver: Receiver, defaults: Defaults) -> Topic:
    """The topic with a receiver's contract: one partition, since its records have one order."""
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
    """What stands for an entry in a contract's topic."""
    text = json.dumps([topic, documents.dump(ingress)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
