"""Broker receivers: a Broker's entry in the contract that its receiver follows (decision 0024).

    observe -> record the topic in the status -> entry -> (its Service) -> awaited at every replica

Not here: the Service itself (`brokers`), and what stands in a topic (`receivers`, `contracts`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from knafka.core.contract import Receiver
from knafka.core.errors import LogError
from knafka_operator.decide import broker as deciding
from knafka_operator.decide import services
from knafka_operator.decide.broker import Connection, ObservedBroker
from knafka_operator.decide.receivers import is_contract_of_brokers, is_of_secret_in
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import Broker, Resource
from knafka_operator.model.settings import Settings
from knafka_operator.reconcile.receivers import ReceiverRecord, Receivers
from knafka_operator.scale.kafka_clusters import KafkaCluster

log = logging.getLogger(__name__)


@dataclass(eq=False)
class BrokerReceivers:
    """The entries of all Brokers."""

    settings: Settings
    receivers: Receivers

    async def observe(self, seen: ObservedBroker, kafka: KafkaCluster) -> ObservedBroker:
        """With its entry, and whether every replica has read that. Raises `ClusterError`."""
        identity = Identity.of(seen.document)
        try:
            receiver = await self._at(seen, kafka)
            await self.receivers.check(receiver, identity)
        except LogError:
            return seen  # its topic can't be had either, or what writes its entry says why
        path = f"/{identity}"
        ingress = receiver.contract.records.get(path)
        accepted = receiver.has_read(path) or receiver.was_read(path, seen.document)
        return replace(seen, ingress=ingress, accepted=ingress is not None and accepted)

    def contract_of(self, seen: ObservedBroker) -> Receiver:
        """What its receiver follows."""
        assert isinstance(seen.broker, Broker)
        assert isinstance(seen.connection, Connection)
        return deciding.receiver_contract(seen.broker, seen.connection, self.settings)

    async def withdraw(self, broker: Resource, topic: str | None, kafka: KafkaCluster) -> None:
        """Leave no entry in a contract's topic, as the Broker's status names it; its receiver is
        gone. The topic goes with its last Broker if its Secret is its namespace's, where nobody
        might follow; the installation's own stays. Raises `LogError`."""
        namespace = broker.metadata.namespace
        if topic is None or not is_contract_of_brokers(topic, namespace, self.settings):
            return  # somebody wrote it there: it would be read to its end
        receiver = await self.receivers.at(_service(broker), kafka, topic)
        path = f"/{services.identity_of(broker)}"
        if path in receiver.contract.records:
            await receiver.write(path, None)
        namespace = broker.metadata.namespace
        if is_of_secret_in(topic, namespace, self.settings):
            await self.receivers.delete_contract(receiver)

    def forget(self, broker: Resource) -> None:
        """It is gone, whatever stands there."""
        self.receivers.forget(_service(broker))

    async def _at(self, seen: ObservedBroker, kafka: KafkaCluster) -> ReceiverRecord:
        assert isinstance(seen.broker, Broker)
        topic = self.contract_of(seen).contract_topic
        return await self.receivers.at(_service(seen.broker), kafka, topic)


def _service(broker: Resource) -> Identity:
    return Identity(broker.metadata.namespace, services.receiver_name(broker))
