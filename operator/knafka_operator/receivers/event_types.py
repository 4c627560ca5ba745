"""Event types: creates EventTypes for the events that Brokers and KafkaChannels accept, if Knative
Eventing's feature `eventtype-auto-create` is on.

    every 30 s: ask receivers' pods for new types --> create the EventTypes that don't exist

Sleeping receivers aren't woken: without a pod they have no new types. The number per Broker or
KafkaChannel is limited, and so is the rate per Broker or KafkaChannel and in all.

Not here: what a receiver keeps (`knafka.receiver.event_types`), and what an EventType says
(`receivers.event_type_manifests`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from knafka_operator.functions import receiver_services, services
from knafka_operator.installation.settings import Settings
from knafka_operator.model.cluster import Cluster, ClusterError, Document, Rejected
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import CORE
from knafka_operator.receivers import event_type_manifests
from knafka_operator.receivers.event_type_manifests import (
    EVENT_TYPE,
    EVENT_TYPE_VERSION,
    ReportedType,
)
from knafka_operator.receivers.receivers import (
    CONTRACT_PORT,
    Receivers,
    identity_at_path,
    takes_requests,
    url_host,
)
from knafka_operator.records.state import States
from knafka_operator.scale.answers import get_answer
from knafka_operator.scale.http_sessions import open_checked_session
from knafka_operator.senders.observe import makes_event_types

log = logging.getLogger(__name__)

EVENT_TYPES_INTERVAL: Final = 30.0
"""Seconds between two rounds; a receiver reports a new type for four rounds."""
MAX_TYPES: Final = 1_000
"""Most EventTypes that one Broker or KafkaChannel may own, including those that others created."""
MAX_PER_OWNER: Final = 20
"""Most EventTypes created for one Broker or KafkaChannel in a round."""
MAX_PER_ROUND: Final = 200
"""Most EventTypes created in a round; each is a write to etcd."""
MAX_CONCURRENT_RECEIVERS: Final = 20
"""Most receivers that are asked at the same time."""
ASK_TIMEOUT: Final = 2.0
"""Seconds for a pod's answer."""
ANSWER_BYTES: Final = 128 * 1024
"""Most bytes of a pod's answer."""

AskEventTypes = Callable[[Identity, Sequence[str]], Awaitable[list[ReportedType]]]
"""A receiver's Service and its pods' addresses -> the types that they report; pods that don't
answer report none."""


@dataclass(eq=False)
class EventTypes:
    """Creates the EventTypes of one family's Brokers or channels; belongs to one event loop. The
    owner of an EventType is the Broker or KafkaChannel that has accepted events of this type."""

    settings: Settings
    cluster: Cluster
    states: States
    receivers: Receivers
    """The family's receivers: only their pods are asked."""
    ask: AskEventTypes
    """Asks the pods of one receiver for their new types."""
    _known: dict[Identity, tuple[str, set[int]]] = field(default_factory=dict)
    """By Broker or KafkaChannel: its UID, and the hashes of its EventTypes' names."""

    async def create_new_types(self) -> None:
        """Ask the pods of all running receivers for new types, and create the EventTypes that are
        missing. Called every `EVENT_TYPES_INTERVAL` seconds. Does nothing while the feature is off.
        Raises `ClusterError`, and `InvalidDocument` if the feature's ConfigMap can't be parsed."""
        if not self.states.brokers or not await makes_event_types(self.cluster, self.settings):
            self._known.clear()
            return
        for deleted_owner in self._known.keys() - self.states.brokers.keys():
            del self._known[deleted_owner]
        # The keys of the inner dict are an ordered set: several pods may report the same type.
        new_types: dict[Identity, dict[ReportedType, None]] = defaultdict(dict)
        for service, reported_types in (await self._ask_receivers()).items():
            for reported_type in reported_types:
                if (owner := self._find_owner(service, reported_type.path)) is not None:
                    new_types[owner][reported_type] = None
        await self._create_types(new_types)

    async def _ask_receivers(self) -> Mapping[Identity, list[ReportedType]]:
        """Ask the Ready pods of the family's receivers for new types; returns the types by the
        receiver's Service. Receivers without such a pod are left out. Raises `ClusterError`."""
        addresses: dict[Identity, list[str]] = defaultdict(list)
        namespace = self.settings.namespace if self.states.family.centralized else None
        labels = {services.ROLE_LABEL: services.RECEIVER_ROLE}
        for pod in await self.cluster.list(CORE, "Pod", labels, namespace):
            pod_labels = pod["metadata"].get("labels") or {}
            name = pod_labels.get("serving.knative.dev/service", "")
            service = Identity(pod["metadata"]["namespace"], name)
            if service in self.receivers.records and takes_requests(pod):
                addresses[service].append(
                    f"http://{url_host(pod['status']['podIP'])}:{CONTRACT_PORT}"
                )
        concurrency_limit = asyncio.Semaphore(MAX_CONCURRENT_RECEIVERS)

        async def ask(service: Identity) -> list[ReportedType]:
            """Ask the pods of one receiver; waits while `MAX_CONCURRENT_RECEIVERS` others are
            asked."""
            async with concurrency_limit:
                return await self.ask(service, addresses[service])

        answers = await asyncio.gather(*map(ask, addresses))
        return dict(zip(addresses, answers, strict=True))

    def _find_owner(self, service: Identity, path: str) -> Identity | None:
        """Return the Broker or KafkaChannel whose events the receiver `service` accepts at this
        path; None: there is no such object, or the receiver doesn't serve it."""
        owner = identity_at_path(path)
        record = self.states.brokers.get(owner)
        if record is None or record.state is None:
            return None
        if self.states.family.centralized:
            return owner  # channels share receivers
        # Only a Broker's own receiver accepts its events; the report of another one is ignored.
        own_receiver = Identity(
            owner.namespace, receiver_services.receiver_name(record.state.broker)
        )
        return owner if own_receiver == service else None

    async def _create_types(
        self, new_types: Mapping[Identity, Mapping[ReportedType, None]]
    ) -> None:
        """Create the EventTypes that owners lack, at most `MAX_PER_ROUND` in all and
        `MAX_PER_OWNER` for each owner. An error is logged, and the other owners go on."""
        remaining, owners = MAX_PER_ROUND, list(new_types)
        random.shuffle(owners)  # else the same owners would always be last
        for owner in owners:
            try:
                remaining -= await self._create_types_of_owner(
                    owner, new_types[owner], min(remaining, MAX_PER_OWNER)
                )
            except ClusterError as error:  # an error in one namespace doesn't stop the others
                log.warning("EventTypes of %s %s: %s", self.states.family.broker, owner, error)
            if remaining <= 0:
                return

    async def _create_types_of_owner(
        self, owner: Identity, reported_types: Mapping[ReportedType, None], at_most: int
    ) -> int:
        """Create EventTypes for those of `reported_types` for which the owner has none, at most
        `at_most`, and remember them as known. Returns their number, including those that the API
        server rejected. Raises `ClusterError`."""
        family = self.states.family
        unknown = [
            reported_type
            for reported_type in reported_types
            if not self._is_known(owner, reported_type)
        ]
        if not unknown:
            return 0
        document = await self.cluster.get(family.broker_version, family.broker, *owner)
        if document is None or "deletionTimestamp" in document["metadata"]:
            return 0
        # The set in `_known` itself: the loop adds the EventTypes that it creates.
        name_hashes = await self._ensure_name_hashes(owner, document)
        created = 0
        for reported_type in unknown:
            if (name_hash := _name_hash(owner, reported_type)) in name_hashes:
                continue
            if len(name_hashes) >= MAX_TYPES:
                kind = document["kind"]
                log.warning(
                    "%s %s has %d EventTypes: no more are made", kind, owner, len(name_hashes)
                )
                break
            if created >= at_most:
                break
            try:
                await self.cluster.create(event_type_manifests.event_type(document, reported_type))
            except Rejected as error:  # counts as created: it would be rejected again and again
                log.info("%s", error)
            name_hashes.add(name_hash)
            created += 1
        return created

    def _is_known(self, owner: Identity, reported_type: ReportedType) -> bool:
        """Whether the owner is known to have this EventType, or as many EventTypes as it may
        have."""
        if (uid_and_hashes := self._known.get(owner)) is None:
            return False
        _, name_hashes = uid_and_hashes
        return len(name_hashes) >= MAX_TYPES or _name_hash(owner, reported_type) in name_hashes

    async def _ensure_name_hashes(self, owner: Identity, document: Document) -> set[int]:
        """Return the set with the hashes of the names of an owner's EventTypes; the caller adds
        those that it creates. The API server is asked only at the first call for the UID in
        `document`, the owner as stored. Raises `ClusterError`."""
        uid = str(document["metadata"].get("uid", ""))
        if (uid_and_hashes := self._known.get(owner)) is not None:
            known_uid, known_hashes = uid_and_hashes
            if known_uid == uid:
                return known_hashes
        stored_types = await self.cluster.list(
            EVENT_TYPE_VERSION, EVENT_TYPE, None, owner.namespace
        )
        own_names = (
            event_type["metadata"]["name"]
            for event_type in stored_types
            if event_type_manifests.is_owned_by(event_type, uid)
        )
        name_hashes = set(map(hash, own_names))
        self._known[owner] = uid, name_hashes
        return name_hashes


def _name_hash(owner: Identity, reported_type: ReportedType) -> int:
    """Return a hash of an EventType's name, which needs less memory than the name."""
    return hash(event_type_manifests.event_type_name(owner, reported_type))


class PodEventTypes:
    """`AskEventTypes` in a cluster: asks each pod at its own address."""

    def __init__(self, bearers: Callable[[str, str], Sequence[str]]) -> None:
        """`bearers` returns the tokens that pods accept, by their Service's name and namespace."""
        self._bearers = bearers

    async def __call__(self, service: Identity, addresses: Sequence[str]) -> list[ReportedType]:
        """Ask the receiver's pods at these addresses for the event types that they have received;
        pods that don't answer report none."""
        bearers = self._bearers(service.name, service.namespace)
        timeout = aiohttp.ClientTimeout(total=ASK_TIMEOUT)
        async with open_checked_session(timeout) as session:
            answers = await asyncio.gather(
                *(_request_types(session, address, bearers) for address in addresses)
            )
        return [reported_type for answer in answers for reported_type in answer]


async def _request_types(
    session: aiohttp.ClientSession, address: str, bearers: Sequence[str]
) -> list[ReportedType]:
    """Return the event types that one pod reports; empty if it doesn't answer, or if its answer is
    invalid."""
    try:
        answer = await get_answer(session, f"{address}/event-types", bearers, ANSWER_BYTES)
        # None: the pod started before the feature was on.
        return [] if answer is None else event_type_manifests.parse_reported_types(answer)
    except (aiohttp.ClientError, TimeoutError, ValueError, RecursionError):
        return []
