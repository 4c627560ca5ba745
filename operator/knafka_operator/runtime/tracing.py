"""Tracing: applies the tracing settings of Knative's ConfigMaps to functions, when this replica
becomes the leader and after each change.

    config-tracing, config-observability --change--> read --valid--> each Broker and Trigger in turn
                                                          --invalid--> a Warning Event; functions
                                                          keep theirs

A change creates a new Revision of every function, which starts a pod, so one owner of Services is
rolled every `ROLL_OUT_SPACING` seconds. Invalid settings leave functions as they are, even across a
restart of the operator.

Not here: what the ConfigMaps mean (`functions.tracing`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

from knafka.core.errors import InvalidDocument
from knafka_operator.functions import services
from knafka_operator.functions.tracing import (
    OBSERVABILITY,
    TRACING,
    tracing_environment,
    tracing_variables_of,
)
from knafka_operator.installation.settings import Settings
from knafka_operator.installation.tracing import Owner
from knafka_operator.model.cluster import Cluster, ClusterError, Document
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import CORE, SERVING
from knafka_operator.records.state import States

log = logging.getLogger(__name__)

TRACING_CONFIG_MAPS: Final = (OBSERVABILITY, TRACING)
"""Names of Knative's ConfigMaps with tracing settings."""
ROLL_OUT_SPACING: Final = 1.0
"""Seconds between the new Revisions of two owners; a thousand Triggers take 17 minutes."""
TRACING_RETRY_INTERVAL: Final = 1.0
"""Seconds before a failed request to the API server is repeated."""

Post = Callable[[Document, Literal["Normal", "Warning"], str, str], None]
"""Posts an Event: the object, its type, reason and message."""


class Owners(Protocol):
    """The states of all objects with Services; implemented by `Operator`."""

    states: States

    @property
    def all_operators(self) -> Sequence[Owners]:
        """The operators of all families, including this one."""
        ...


class FollowedTracing:
    """Updates `Settings.tracing`, the functions' tracing variables, from the ConfigMaps."""

    def __init__(self, settings: Settings, cluster: Cluster) -> None:
        """`cluster` reads the ConfigMaps, and the Services of functions."""
        self._settings = settings
        self._cluster = cluster
        self._changed = asyncio.Event()
        """Set when one of the ConfigMaps may have changed; wakes `follow`."""
        self._problem = ""
        """The problem of the ConfigMaps, posted as an Event only once; empty: there is none."""

    async def start(self) -> None:
        """Put the tracing settings of the ConfigMaps in force for all functions at once; if they
        are invalid, keep the settings with which functions run now. Called when the process starts
        and when it becomes the leader. Requests are repeated until the API server answers."""
        try:
            desired, _ = await self._retry_until_answered(self._read_variables)
        except InvalidDocument as error:
            desired = await self._retry_until_answered(self._read_variables_in_use)
            log.warning("%s: functions go on as they were", error)
        # No owner keeps its previous settings for a while.
        self._settings.tracing.begin_rollout(desired, owners=())

    def on_config_map(self, document: Document) -> None:
        """Request a new reading if the changed or deleted ConfigMap is one of those with tracing
        settings."""
        metadata = document["metadata"]
        is_own_namespace = metadata["namespace"] == self._settings.namespace
        if is_own_namespace and metadata["name"] in TRACING_CONFIG_MAPS:
            self.reread_soon()

    def reread_soon(self) -> None:
        """Request that both ConfigMaps are read again, as one may have changed."""
        self._changed.set()

    async def follow(self, operator: Owners, enqueue: Callable[[Owner], None], post: Post) -> None:
        """Roll out each change of the ConfigMaps, until cancelled: `enqueue` enqueues an owner of
        Services for reconciling, `post` posts Kubernetes Events. Errors are logged."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._apply_config(operator, post)
            except ClusterError as error:
                log.warning("tracing: %s", error)
                await asyncio.sleep(TRACING_RETRY_INTERVAL)
                self._changed.set()
            except Exception:  # a bug: go on following
                log.exception("tracing")
            await self._roll_out(operator, enqueue)

    async def _apply_config(self, operator: Owners, post: Post) -> None:
        """Read the tracing ConfigMaps, and begin the roll-out if their settings have changed.
        Invalid settings are logged and posted as an Event, and change nothing. Raises
        `ClusterError`."""
        tracing = self._settings.tracing
        try:
            desired, config = await self._read_variables()
        except InvalidDocument as error:
            if self._problem != (problem := f"{error}: functions go on as they were"):
                self._problem = problem
                log.warning("%s", problem)
                config_map_name = error.path  # see `_read_variables`
                if (config := await self._get_config_map(config_map_name)) is not None:
                    post(config, "Warning", "InvalidTracing", problem)
            return
        self._problem = ""
        if desired == tracing.desired:
            return
        tracing.begin_rollout(
            desired,
            [
                owner
                for family_operator in operator.all_operators
                for owner in service_owners(family_operator.states)
            ],
        )
        count = len(tracing.pending_owners)
        seconds = count * ROLL_OUT_SPACING
        message = f"{count} Brokers and Triggers get it in turn, in about {seconds:.0f} s"
        log.info("tracing has changed: %s", message)
        if config is not None:
            post(config, "Normal", "TracingChanged", message)

    async def _roll_out(self, operator: Owners, enqueue: Callable[[Owner], None]) -> None:
        """Give the pending owners the new settings, one every `ROLL_OUT_SPACING` seconds, and
        enqueue each with the Triggers in its shards; stops early if a ConfigMap has changed."""
        tracing = self._settings.tracing
        for owner in tracing.pending_owners:
            if self._changed.is_set():
                return
            tracing.admit(owner)
            enqueue(owner)
            for trigger in _triggers_in_shards(operator, owner):
                enqueue(trigger)
            await asyncio.sleep(ROLL_OUT_SPACING)

    async def _read_variables(self) -> tuple[Mapping[str, str], Document | None]:
        """Return the tracing variables, and the ConfigMap that declares them; None: neither exists.
        Raises `ClusterError`, and `InvalidDocument` with the ConfigMap's name as its path."""
        config_maps = {name: await self._get_config_map(name) for name in TRACING_CONFIG_MAPS}
        data = {
            name: (config_map or {}).get("data") or {} for name, config_map in config_maps.items()
        }
        settings = self._settings
        desired = tracing_environment(
            data[OBSERVABILITY], data[TRACING], settings.namespace, settings.cluster_domain
        )
        return desired, config_maps[OBSERVABILITY] or config_maps[TRACING]

    async def _read_variables_in_use(self) -> Mapping[str, str]:
        """Return the tracing variables with which functions run, from the Service of any one
        function; empty if there is none. Raises `ClusterError`."""
        for role in (services.RECEIVER_ROLE, services.DISPATCHER_ROLE, services.SHARD_ROLE):
            labels = {services.ROLE_LABEL: role}
            if stored_services := await self._cluster.list(SERVING, "Service", labels):
                return tracing_variables_of(stored_services[0])
        return {}

    async def _get_config_map(self, name: str) -> Document | None:
        """Return a ConfigMap of the operator's namespace; None: it doesn't exist. Raises
        `ClusterError`."""
        return await self._cluster.get(CORE, "ConfigMap", self._settings.namespace, name)

    async def _retry_until_answered(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Repeat the request `ask` until the API server answers, and return its result. Without it,
        functions would lose their tracing variables, and each would get a new Revision. Raises any
        error but `ClusterError`."""
        while True:
            try:
                return await ask()
            except ClusterError as error:
                log.warning("tracing: %s", error)
                await asyncio.sleep(TRACING_RETRY_INTERVAL)


def service_owners(states: States) -> list[Owner]:
    """Return the owners of Services: Brokers, for receivers and shards, and Triggers that no shard
    delivers."""
    family = states.family
    brokers = [(family.broker, *broker) for broker in states.brokers]
    triggers = [
        (family.trigger, *identity)
        for identity, record in states.triggers.items()
        if record.watched is not None and record.watched.place is None
    ]
    return [*brokers, *triggers]


def _triggers_in_shards(operator: Owners, owner: Owner) -> list[Owner]:
    """Return the Triggers in the shards of `owner`, if it is a Broker or channel: reconciling them
    applies the shards' Services. Empty for any other owner."""
    kind, namespace, name = owner
    triggers: list[Owner] = []
    for family_operator in operator.all_operators:
        states = family_operator.states
        if states.family.broker != kind:
            continue
        for identity in states.triggers_of(Identity(namespace, name)):
            record = states.triggers.get(identity)
            if record is not None and record.watched is not None and record.watched.place:
                triggers.append((states.family.trigger, *identity))
    return triggers
