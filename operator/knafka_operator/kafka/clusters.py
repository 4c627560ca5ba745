"""KafkaClusters: one connection to each Kafka that Brokers use, with its admin client and its
scaler.

Brokers with the same servers and the same Secret share a connection. It stays open while a Broker
or Trigger uses it, even if its ConfigMap is missing. Twice a second one request reads the end
offsets of a Kafka's topics, and topics that have grown wake their Triggers, so an idle Trigger
causes no requests of its own. Only one in eight of these checks includes a resting topic:

    rests    no process writes to it (`resting`), none delivers from it (an open drain), and it
             hasn't grown for a minute

Not here: which Broker uses which Kafka, and connecting (`connect` is passed in).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from knafka.core.errors import LogError
from knafka.core.kafka_settings.kafka_secret import for_librdkafka
from knafka.ports.log import LogAdmin, LogWriter, Positions
from knafka_operator.installation.kafka_trust import KafkaTrust
from knafka_operator.kafka.servers import ANY_SERVER, check_servers
from knafka_operator.scale.drains_port import Drains
from knafka_operator.scale.repeat import run_repeatedly
from knafka_operator.scale.scaler import Scaler

ENDS_CHECK_INTERVAL: Final = 0.5
"""Seconds between two checks of the ends of topics."""
RESTING_TURNS: Final = 8
"""A resting topic is included in one of this many checks."""
REST_AFTER_SECONDS: Final = 60.0
"""Seconds without a new record after which a topic may rest."""
UNUSED_TIMEOUT: Final = 1800.0
"""Seconds after which an unused Kafka is disconnected."""
ENDS_CHECK_TIMEOUT: Final = 10.0
"""Seconds after which a check is cancelled; the next one follows."""
MAX_ANSWER: Final = 16 * 1024 * 1024
"""Most bytes of one response of a Kafka. The metadata of 200,000 partitions, Kafka's own limit for
a cluster, take 12 MB. librdkafka's default of 100 MB, as Python objects, would take several times
the operator's memory."""
CONTRACT_WRITER_CLOSE_TIMEOUT: Final = 1.0
"""Seconds for which closing a writer waits for its records in flight."""


@dataclass(eq=False, repr=False)
class KafkaCluster:
    """One Kafka: its admin client, scaler and writer."""

    topics: LogAdmin
    """The admin client: it reads and changes topics and consumer groups."""
    scaler: Scaler
    """Scales the Triggers and Sensors whose consumer groups are in this Kafka."""
    bootstrap_servers: str = ""
    """`host:port` of its servers, comma-separated."""
    open_writer: Callable[[], LogWriter] | None = None
    """Opens a writer; None: contracts can't be written, so there are no shared dispatchers."""
    watched: set[str] = field(default_factory=set)
    """Topics whose new records wake Triggers or Sensors."""
    last_needed_at: float = 0.0
    """When this KafkaCluster was last requested or seen in use, by the event loop's clock."""
    on_return: Callable[[], None] = lambda: None
    """Called when Kafka answers again after a failure."""
    resting: Callable[[KafkaCluster], Collection[str]] = lambda _: ()
    """Returns the topics to which no process writes; called before each check."""
    _ends: dict[str, Positions] = field(default_factory=dict)
    """End offsets of the watched topics at the last check."""
    _grown_at: dict[str, float] = field(default_factory=dict)
    """When each topic was first seen or last grew, by the event loop's clock."""
    _writer: LogWriter | None = None
    """The open writer; None: not opened yet, or closed after a fatal error."""
    _closing: set[asyncio.Future[None]] = field(default_factory=set)
    """Writers that are being closed."""
    _turn: int = 0
    """Number of the check modulo `RESTING_TURNS`, which selects the resting topics to include."""
    _is_away: bool = False
    """Whether the last check has failed, or hasn't been answered yet."""

    @property
    def ends(self) -> Mapping[str, Positions]:
        """End offsets of watched topics, as of the last check."""
        return self._ends

    def unwatch(self, topic: str) -> None:
        """Stop watching a topic, unless another Trigger or Sensor reads it."""
        if not self.scaler.reads(topic):
            self.watched.discard(topic)

    def ensure_writer(self) -> LogWriter:
        """Return the writer for contracts; opens one at the first call, and a new one after a fatal
        error. Only for a KafkaCluster with `open_writer`."""
        assert self.open_writer is not None
        if self._writer is not None and self._writer.failure is not None:
            self._close_writer()
        if self._writer is None:
            self._writer = self.open_writer()
        return self._writer

    def _close_writer(self) -> None:
        """Start to close the writer, if there is one, without waiting for its end."""
        if self._writer is not None:
            closing = asyncio.ensure_future(self._writer.close(CONTRACT_WRITER_CLOSE_TIMEOUT))
            self._closing.add(closing)  # the event loop alone wouldn't keep the task alive
            closing.add_done_callback(self._closing.discard)
            self._writer = None

    async def run(self) -> None:
        """Scale Triggers and Sensors, and wake them for new events, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(run_repeatedly("scaling", self.scaler.run, ENDS_CHECK_INTERVAL))
                ends_checks = run_repeatedly(
                    "looking at the ends of topics", self._check_ends, ENDS_CHECK_INTERVAL
                )
                tasks.create_task(ends_checks)
        finally:
            self._close_writer()
            if self._closing:
                await asyncio.wait(set(self._closing))

    async def _check_ends(self) -> None:
        """Read the end offsets of the topics whose turn it is, and wake the Triggers and Sensors
        of topics that have grown. At the first answer after a failure, call `on_return`. Raises
        `LogError`."""
        if not (due_topics := self._begin_turn()):
            return
        was_away, self._is_away = self._is_away, True  # stays True unless Kafka answers
        try:
            async with asyncio.timeout(ENDS_CHECK_TIMEOUT):
                ends = await self.topics.end_offsets_of_all(due_topics)
        except TimeoutError:
            raise LogError(f"Kafka did not answer within {ENDS_CHECK_TIMEOUT:g} s") from None
        self._is_away = False
        if was_away:
            self.on_return()
        for topic, current_ends in ends.items():
            # Also at the first check: records since the scaler's own check mustn't wait for the
            # next one. But only growth between two checks is known to be new.
            if (previous_ends := self._ends.get(topic)) != current_ends:
                self._ends[topic] = current_ends
                self._grown_at[topic] = asyncio.get_running_loop().time()
                self.scaler.wake(topic, grown=_added_records(previous_ends or {}, current_ends))

    def _begin_turn(self) -> frozenset[str]:
        """Begin the next turn, and return the topics to check in it: all watched topics that don't
        rest, and one in `RESTING_TURNS` of the resting ones. Also forget topics that are no longer
        watched."""
        self._turn = (self._turn + 1) % RESTING_TURNS
        now = asyncio.get_running_loop().time()
        may_rest = set(self.resting(self)) - self.scaler.topics_with_drains()
        for topic in self._grown_at.keys() - self.watched:
            del self._grown_at[topic]
            self._ends.pop(topic, None)
        return frozenset(
            topic
            for topic in self.watched
            # The hash spreads the topics evenly over the turns.
            if hash(topic) % RESTING_TURNS == self._turn
            or topic not in may_rest
            # A topic seen for the first time counts as grown now.
            or now - self._grown_at.setdefault(topic, now) < REST_AFTER_SECONDS
        )


def _added_records(previous_ends: Positions, current_ends: Positions) -> int:
    """Return the number of records that a topic has got since `previous_ends`, by its end offsets;
    a partition without a previous end counts as 0."""
    return sum(
        max(0, end - previous_ends.get(partition, end)) for partition, end in current_ends.items()
    )


class KafkaClusters:
    """Connects to Kafkas, one `KafkaCluster` for each configuration, and disconnects unused
    ones."""

    def __init__(
        self,
        connect: Callable[[Mapping[str, Any]], LogAdmin],
        drains: Drains,
        used: Callable[[], Collection[KafkaCluster]] = tuple,
        on_return: Callable[[], None] = lambda: None,
        resting: Callable[[KafkaCluster], Collection[str]] = lambda _: (),
        open_writer: Callable[[Mapping[str, Any]], LogWriter] | None = None,
        allowed: Collection[str] = ANY_SERVER,
        trust: KafkaTrust | None = None,
    ) -> None:
        """`connect` and `open_writer` get librdkafka's configuration of one Kafka; `open_writer`
        None: no contracts are written. `drains` is passed to each `Scaler`, `resting` to each
        `KafkaCluster`. `used` returns the KafkaClusters that Brokers and Triggers use; it is called
        rarely. `on_return` is called when a Kafka answers again, so that waiting objects needn't
        wait for their back-off. `allowed` has patterns of the servers that may be connected to, and
        `trust` checks users' Secrets (None: with the default rules).
        """
        self._connect = connect
        self._drains = drains
        self._used = used
        self._on_return = on_return
        self._resting = resting
        self._open_writer = open_writer
        self._allowed = allowed
        self._trust = trust or KafkaTrust()
        self._clusters: dict[str, tuple[KafkaCluster, asyncio.Task[None]]] = {}
        """By digest of the configuration: the KafkaCluster, and the task of its `run`."""

    def ensure_cluster(
        self, bootstrap_servers: str, secret: Mapping[str, str] | None, *, is_own: bool = False
    ) -> KafkaCluster:
        """Return the KafkaCluster at these servers with this Secret (None: without credentials),
        connecting if needed. Also disconnects unused ones. `is_own`: the Secret is the
        installation's own, written by an administrator, and so isn't checked.

        Raises `InvalidDocument` for a Secret that is invalid or not allowed, and `NotReady` for
        servers that are not allowed.
        """
        check_servers(bootstrap_servers, self._allowed)
        if not is_own:
            self._trust.check(bootstrap_servers, secret)
        configuration = {
            "bootstrap.servers": bootstrap_servers,
            **(for_librdkafka(secret) if secret is not None else {}),
            "receive.message.max.bytes": MAX_ANSWER,
        }
        configuration_json = json.dumps(configuration, sort_keys=True)
        key = hashlib.sha256(configuration_json.encode()).hexdigest()
        if key not in self._clusters:
            admin = self._connect(configuration)
            kafka_cluster = KafkaCluster(
                topics=admin,
                scaler=Scaler(admin, self._drains),
                bootstrap_servers=bootstrap_servers,
                open_writer=self._open_writer and partial(self._open_writer, configuration),
                on_return=self._on_return,
                resting=self._resting,
            )
            self._clusters[key] = kafka_cluster, asyncio.create_task(kafka_cluster.run())
        kafka_cluster, _ = self._clusters[key]
        kafka_cluster.last_needed_at = asyncio.get_running_loop().time()
        self._drop_unused(kafka_cluster.last_needed_at)
        return kafka_cluster

    def find_cluster(
        self, servers: str | None, candidates: Iterable[KafkaCluster]
    ) -> KafkaCluster | None:
        """Return the first of `candidates` at these bootstrap servers (None: at any). If there is
        none, connect to the servers without credentials; without servers, return None. Raises
        `NotReady` for servers that are not allowed."""
        for candidate in candidates:
            if servers in (None, candidate.bootstrap_servers):
                return candidate
        return None if servers is None else self.ensure_cluster(servers, None)

    def _drop_unused(self, now: float) -> None:
        """Disconnect the KafkaClusters that were neither requested nor in use for `UNUSED_TIMEOUT`
        seconds; `now` is the event loop's time."""
        earliest_use = now - UNUSED_TIMEOUT
        # `used` goes through all Brokers and Triggers, so it is only called if it can matter.
        if all(kafka_cluster.last_needed_at >= earliest_use for kafka_cluster in self.all()):
            return
        for kafka_cluster in self._used():
            kafka_cluster.last_needed_at = now
        for key, (kafka_cluster, task) in list(self._clusters.items()):
            if kafka_cluster.last_needed_at < earliest_use:
                task.cancel()  # cancelling `KafkaCluster.run` also closes its writer
                del self._clusters[key]

    def all(self) -> list[KafkaCluster]:
        """Return all connected KafkaClusters."""
        return [kafka_cluster for kafka_cluster, _ in self._clusters.values()]

    async def close(self) -> None:
        """Disconnect all KafkaClusters, and wait for their tasks."""
        tasks = [task for _, task in self._clusters.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._clusters.clear()
