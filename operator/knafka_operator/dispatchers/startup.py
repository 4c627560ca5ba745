"""Startup: resumes the delivery of all Triggers before anything is reconciled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import starmap
from typing import Any, Final

from knafka_operator.dispatchers.resuming import Resuming
from knafka_operator.functions import services
from knafka_operator.model.cluster import Cluster, Document
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import SERVING
from knafka_operator.records.state import Watched, broker_of, has_contract

DISPATCHER_LABELS: Final = {services.ROLE_LABEL: services.DISPATCHER_ROLE}
"""Labels that select the Services of Triggers' own dispatchers, without replayers."""

SHARD_LABELS: Final = {services.ROLE_LABEL: services.SHARD_ROLE}
"""Labels that select the Services of shared dispatchers."""


async def connect_kafkas(cluster: Cluster, resuming: Resuming) -> None:
    """List all dispatchers' Services, and connect to every Kafka that they use. Raises
    `ClusterError`; a Kafka that can't be connected is only logged."""
    own_services, shard_services = await asyncio.gather(
        cluster.list(SERVING, "Service", DISPATCHER_LABELS),
        cluster.list(SERVING, "Service", SHARD_LABELS),
    )
    await resuming.connect([*own_services, *shard_services])


async def resume_deliveries(
    cluster: Cluster,
    resuming: Resuming,
    brokers: Mapping[Identity, Document],
    triggers: Sequence[Document],
    dispatcher_services: Sequence[Document],
    resume: Callable[[Document, Watched], Awaitable[Any]],
) -> None:
    """Call `resume` with each Trigger that refers to one of the `brokers` and is being delivered,
    and with its delivery. `dispatcher_services` are the Services of Triggers' own dispatchers;
    those of shared dispatchers are listed here. Raises `ClusterError`.

    Brokers with shared dispatchers are resumed concurrently, as each reads a contract from Kafka.
    """
    triggers_by_broker: dict[Identity, list[Document]] = {identity: [] for identity in brokers}
    for trigger in triggers:
        if (broker := broker_of(trigger)) in triggers_by_broker:
            triggers_by_broker[broker].append(trigger)
    brokers_with_shards = {
        identity: broker for identity, broker in brokers.items() if has_contract(broker)
    }
    # Triggers whose Broker has no shared dispatcher, so that they have their own.
    unshared_triggers = [
        trigger
        for identity, broker_triggers in triggers_by_broker.items()
        if identity not in brokers_with_shards
        for trigger in broker_triggers
    ]
    for trigger, watched in await resuming.find_delivered_by_services(
        unshared_triggers, dispatcher_services
    ):
        await resume(trigger, watched)
    if not brokers_with_shards:
        return
    shards = await cluster.list(SERVING, "Service", SHARD_LABELS)

    async def resume_broker(identity: Identity, broker: Document) -> None:
        """Resume the deliveries of a Broker with a contract: those by shards, and those by
        Triggers' own dispatchers."""
        delivered = await resuming.find_delivered_with_shards(
            broker, triggers_by_broker[identity], dispatcher_services, shards
        )
        for trigger, watched in delivered:
            await resume(trigger, watched)

    await asyncio.gather(*starmap(resume_broker, brokers_with_shards.items()))
