"""Receivers' contracts: builds the configuration and the contract topic of receivers. Pure.

    all objects of one kind that use the same Kafka Secret -> one topic, with an entry for each

Not here: the content of an entry (`desired.broker_ingress`).
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
"""Setting of a contract topic, by which Kafka keeps the last record of each entry for ever."""
ACCEPTED_ANNOTATION: Final = "knafka.dev/accepted"
"""Key of `status.annotations`: the `entry_digest` of the entry that all replicas have read. Kept in
the status, so that a starting operator needn't ask all replicas again."""
_INSTALLATION_LENGTH: Final = 8
"""Characters of the installation's UID that are part of a contract topic's name."""


def receiver_for_secret(
    kinds: Literal["Brokers", "KafkaChannels"],
    kafka: Kafka,
    secret: Identity | None,
    settings: Settings,
    path: str | None = None,
) -> Receiver:
    """Return the configuration of a receiver of Brokers or KafkaChannels. The receiver connects to
    `kafka` with the Secret `secret` (None: Kafka needs none); its contract topic is named after
    that Secret. `path` is the path of the only Ingress that the receiver serves; None: it serves
    all."""
    namespace, secret_name = (settings.namespace, None) if secret is None else secret
    # With the installation in the name, two clusters with one Kafka don't serve or remove each
    # other's entries.
    name_parts = (kinds, secret_name, settings.installation[:_INSTALLATION_LENGTH])
    topic = names.contract_topic(namespace, "-".join(part for part in name_parts if part))
    return Receiver(kafka=kafka, contract_topic=topic, path=path)


def is_of_namespace_secret(topic: str, namespace: str, settings: Settings) -> bool:
    """Whether a contract topic of Brokers is named after a Secret of this namespace.

    The topic's name comes from a status, which others may write, so the name is built again from
    its parts and compared. False for a name that was shortened, as its parts aren't known.
    """
    installation = settings.installation[:_INSTALLATION_LENGTH]
    prefix = f"{names.CONTRACTS}{namespace}-Brokers-"
    ending = f"-{installation}" if installation else ""
    # `names.contract_topic` appends a dash and a digest: PREFIX SECRET ENDING -DIGEST.
    secret = topic.removeprefix(prefix).rpartition("-")[0].removesuffix(ending)
    if not topic.startswith(prefix) or not secret:
        return False
    return topic == names.contract_topic(namespace, f"Brokers-{secret}{ending}")


def may_hold_brokers_of(topic: str, namespace: str, settings: Settings) -> bool:
    """Whether a contract topic of this name may have entries of Brokers in this namespace: if its
    name begins with this namespace or the operator's, as `receiver_for_secret` names the contract
    topics of these Brokers."""
    prefixes = tuple(
        f"{names.CONTRACTS}{secret_namespace}-Brokers"
        for secret_namespace in (namespace, settings.namespace)
    )
    return topic.startswith(prefixes)


def contract_topic(receiver: Receiver, defaults: Defaults) -> Topic:
    """Return the desired topic of a receiver's contract; it has one partition, which orders its
    records. If no replication is declared, the result also names the topics with fewer replicas to
    create instead (`with_fewer_replicas`) if Kafka has too few brokers."""
    replication = min(defaults.replication, defaults.max_replication)
    if defaults.declares_replication:
        return _topic_with_replicas(receiver, replication, None)
    # The topic is Knafka's own, so an undeclared replication may be reduced to what Kafka's brokers
    # allow: each topic in this chain names the one with a replica fewer.
    topic = _topic_with_replicas(receiver, 1, None)
    for replicas in range(2, replication + 1):
        topic = _topic_with_replicas(receiver, replicas, topic)
    return topic


def _topic_with_replicas(receiver: Receiver, replication: int, fewer: Topic | None) -> Topic:
    """Return the compacted topic of a receiver's contract with this replication; `fewer` is the
    topic to create instead if Kafka has too few brokers (None: none)."""
    config = dict(COMPACTED)
    if replication >= 3:
        config[MIN_IN_SYNC] = "2"  # an acknowledged record is on two of three replicas
    return Topic(receiver.contract_topic, 1, replication, config, with_fewer_replicas=fewer)


def entry_digest(topic: str, ingress: Ingress) -> str:
    """Return a digest that identifies an entry and the contract topic that holds it."""
    text = json.dumps([topic, documents.dump(ingress)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
