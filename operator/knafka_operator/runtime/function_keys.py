"""Function keys: reads the keys of functions' tokens from a Secret in the operator's namespace,
creates it if needed, and follows its changes.

    Secret knafka-function-keys: NAME: KEY, ...   the alphabetically last name has the newest key
    no key                                        one key is created, named by the date
    a key is added or removed                     functions get new Revisions, a few at a time
    the Secret is deleted                         it is created again with the same keys

While there are two keys, functions accept tokens of both; a function that knows only one key gets a
token of that one (docs/how-to/secure.md, decision 0038).

Not here: what a token is (`core.caller_tokens`).
"""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from knafka.core.tokens.caller_tokens import MAX_VERIFIERS
from knafka_operator.installation.settings import Settings
from knafka_operator.model.cluster import Cluster, ClusterError, Document, decode_secret
from knafka_operator.model.identity import Key
from knafka_operator.model.resources import CORE
from knafka_operator.model.sensors import SENSOR
from knafka_operator.model.sources import KAFKA_SOURCE
from knafka_operator.operator import Operator
from knafka_operator.sinks.model import KAFKA_SINK

log = logging.getLogger(__name__)

KEYS_SECRET: Final = "knafka-function-keys"
"""Name of the Secret, in the operator's namespace."""
MIN_KEY_LENGTH: Final = 32
"""Fewest characters of a key; `openssl rand -hex 32` writes 64. A token is only as hard to guess as
its key."""
KEYS_RETRY_INTERVAL: Final = 1.0
"""Seconds before a failed request to the API server is repeated."""


class FunctionKeys:
    """Updates `Settings.tokens` from the Secret."""

    def __init__(self, settings: Settings, cluster: Cluster) -> None:
        """Begin without keys. `cluster` reads and writes the Secret."""
        self._settings = settings
        self._cluster = cluster
        self._keys: Mapping[str, str] = {}
        """The keys by name, as last read or created; they survive the Secret's deletion."""
        self._changed = asyncio.Event()
        """Set when the Secret may have changed; wakes `follow`."""

    async def start(self) -> None:
        """Read the keys, or create one if there is none; returns when that has succeeded. Retries
        until the API server answers, as functions without keys would require no token."""
        while True:
            try:
                await self._read_or_write()
                return
            except ClusterError as error:
                log.warning("can't read the keys of functions' tokens: %s", error)
                await asyncio.sleep(KEYS_RETRY_INTERVAL)

    def on_secret(self, document: Document) -> None:
        """Request a new reading if the changed or deleted Secret is the one with the keys."""
        metadata = document["metadata"]
        if (metadata["namespace"], metadata["name"]) == (self._settings.namespace, KEYS_SECRET):
            self.reread_soon()

    def reread_soon(self) -> None:
        """Request that the Secret is read again, as it may have changed."""
        self._changed.set()

    async def follow(self, operator: Operator, enqueue: Callable[[Key], None]) -> None:
        """Read the Secret after each of its changes, and enqueue all owners of functions if the
        keys differ, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            previous_keys = self._settings.tokens.keys
            await self.start()
            if self._settings.tokens.keys != previous_keys:
                log.info("the keys of functions' tokens have changed: functions roll")
                for key in _function_owners(operator):
                    enqueue(key)

    async def _read_or_write(self) -> None:
        """Read the Secret, and update `Settings.tokens` from it. If the Secret is missing or has no
        usable key, first write the last known keys to it, or else a new key, named by the date.
        Raises `ClusterError`."""
        stored = await self._cluster.get(CORE, "Secret", self._settings.namespace, KEYS_SECRET)
        keys = {} if stored is None else _usable_keys(decode_secret(stored))
        if not keys:
            keys = self._keys or {f"{datetime.now(UTC):%Y-%m-%d}": secrets.token_hex(32)}
            manifest = _secret_manifest(self._settings.namespace, keys)
            if stored is not None:
                log.warning(
                    "Secret %s has no usable key: it gets the last known keys, or else a new one",
                    KEYS_SECRET,
                )
                await self._cluster.apply(manifest)
            elif not await self._cluster.create(manifest):
                await self._read_or_write()  # another replica has just created it
                return
        self._keys = keys
        newest_first = sorted(keys, reverse=True)
        self._settings.tokens.keys = tuple(keys[name].encode() for name in newest_first)


def _usable_keys(values: Mapping[str, str]) -> Mapping[str, str]:
    """Return the newest `MAX_VERIFIERS` of the keys in a Secret that are long enough, by name. The
    names of the newest `MAX_VERIFIERS` keys that are too short are logged."""
    names = sorted(values)  # oldest first
    usable_names = [name for name in names if len(values[name]) >= MIN_KEY_LENGTH]
    if short_names := [name for name in names if len(values[name]) < MIN_KEY_LENGTH]:
        requirement = (
            f"want {MIN_KEY_LENGTH} characters or more, such as `openssl rand -hex 32` writes"
        )
        log.warning(
            "Secret %s: %s is too short to be a key: %s",
            KEYS_SECRET,
            ", ".join(short_names[-MAX_VERIFIERS:]),
            requirement,
        )
    return {name: values[name] for name in usable_names[-MAX_VERIFIERS:]}


def _secret_manifest(namespace: str, keys: Mapping[str, str]) -> Document:
    """Return the manifest of the Secret that holds the functions' keys, by name."""
    return {
        "apiVersion": CORE,
        "kind": "Secret",
        "metadata": {"name": KEYS_SECRET, "namespace": namespace},
        "type": "Opaque",
        "data": {name: base64.b64encode(key.encode()).decode() for name, key in keys.items()},
    }


def _function_owners(operator: Operator) -> Sequence[Key]:
    """Return the keys (kind, namespace, name) of all objects that have functions, by which they
    are enqueued for reconciliation."""
    all_states = [family_operator.states for family_operator in operator.all_operators]
    owners = [
        (states.family.broker, *identity) for states in all_states for identity in states.brokers
    ]
    owners += [
        (states.family.trigger, *identity) for states in all_states for identity in states.triggers
    ]
    if operator.sources is not None:
        owners += [(KAFKA_SOURCE, *identity) for identity in operator.sources.states.triggers]
    if operator.sinks is not None:
        owners += [(KAFKA_SINK, *identity) for identity in operator.sinks.records]
    if operator.sensors is not None:
        owners += [(SENSOR, *identity) for identity in operator.sensors.states.sensors]
    return owners
