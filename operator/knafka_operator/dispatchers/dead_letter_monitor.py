"""Dead letters: counts the records in dead-letter topics every few seconds.

    offsets of all topics, in two requests --> number of dead letters --> condition, metrics, Event
    description of a new topic, or of one whose retention changes --> its retention

Most Triggers never have such a topic. A missing topic is checked when a dispatcher reports a dead
letter, and otherwise once a minute. So a thousand Triggers cost as many requests as one, and their
conditions are at most some six seconds old.

Not here: who owns a topic (`kafka.dead_letter_topics`), and how a condition is worded
(`dispatchers.dead_letters`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from knafka.core.contract import TopicSettings
from knafka.core.errors import LogError
from knafka.ports.log import Positions, Range, TopicDescription
from knafka_operator.decisions.status import ConditionSet
from knafka_operator.dispatchers import dead_letters
from knafka_operator.dispatchers.dead_letters import WaitingDeadLetters
from knafka_operator.kafka import dead_letter_topics as topics
from knafka_operator.kafka.clusters import KafkaCluster
from knafka_operator.model.channels import is_entry
from knafka_operator.model.cluster import Document, status_annotations
from knafka_operator.model.conditions import Condition, Status
from knafka_operator.model.identity import Identity, Key
from knafka_operator.records.state import States, TriggerRecord, Watched

log = logging.getLogger(__name__)

MISSING_TOPIC_ROUNDS: Final = 12
"""Number of rounds of `check_topics` in which each missing topic is checked once."""
TRIGGERS_AT_ONCE: Final = 20
"""Triggers handled before the event loop gets control."""
MAX_DESCRIBED_TOPICS: Final = 5
"""Most topics of one Kafka described in one round; after the operator's start all of them are
new."""
TOPIC_CHECK_TIMEOUT: Final = 30.0
"""Seconds after which a check of one Kafka is cancelled; the next round tries again."""
MESSAGE_INTERVAL: Final = 60.0
"""Seconds between two updates of the number in a Trigger's status; a new reason is written at
once."""


@dataclass(eq=False, slots=True)
class _DeadLetterTopic:
    """What the operator knows about one Trigger's dead-letter topic."""

    name: str
    kafka: KafkaCluster
    reported: int = 0
    """Number of dead letters that the Trigger's dispatchers have reported."""
    starts: Positions | None = None
    """The topic's start offsets; None: the topic doesn't exist, as far as is known."""
    ends: Positions = field(default_factory=dict)
    """End offsets of the topic's partitions; empty: the topic doesn't exist, as far as is known."""
    waiting: WaitingDeadLetters | None = None
    """The topic's dead letters at the last count; None: not counted yet."""
    decision: topics.RetentionDecision | None = None
    """What was decided about the topic's retention: who owns it, how long it is, and whether Knafka
    may alter it. None: the topic wasn't described yet."""
    decided_inputs: tuple[str, float | None] | None = None
    """The result of `_decision_inputs` right after `decision` was made; None: there is none."""
    enqueued_at: float = -math.inf
    """When the Trigger was last enqueued to write its condition, by the event loop's clock."""
    is_announced: bool = False
    """Whether the first dead letters since the topic was last empty were announced."""

    def needs_decision(self, settings: TopicSettings) -> bool:
        """Whether the topic's retention must be decided: it wasn't yet, or the decision's inputs
        have changed. False as long as offsets or the age of the oldest record aren't known.
        `settings` are the desired settings of the topic."""
        if self.waiting is None or self.starts is None:
            return False
        if self.waiting.records and self.waiting.oldest is None:
            return False  # its oldest record may exceed the new retention
        return self.decided_inputs != self._decision_inputs(settings)

    def set_decision(self, decision: topics.RetentionDecision, settings: TopicSettings) -> None:
        """Keep a decision that was made from the desired `settings`."""
        self.decision = decision
        # After the line above, as `_decision_inputs` reads `self.decision`.
        self.decided_inputs = self._decision_inputs(settings)
        self.copy_retention()

    def clear_decision(self) -> None:
        """Forget the decision, so that the topic is described again."""
        self.decision = self.decided_inputs = None

    def copy_retention(self) -> None:
        """Copy the decided retention into `waiting`, for the Trigger's condition; do nothing before
        the topic was counted and its retention decided."""
        if self.waiting is not None and self.decision is not None:
            retention, would_expire = self.decision.retention, self.decision.would_expire
            self.waiting = replace(self.waiting, retention=retention, would_expire=would_expire)

    def _decision_inputs(self, settings: TopicSettings) -> tuple[str, float | None]:
        """Return two values on which the decision depends; the retention is decided again once one
        of them has changed. First: the desired retention. Second: the time of the oldest record, if
        the last decision left the retention unlimited because of that record, else None."""
        is_blocked = self.decision is not None and self.decision.would_expire
        oldest = self.waiting.oldest if is_blocked and self.waiting is not None else None
        return settings.config[topics.RETENTION_MS], oldest


class _DueTrigger(NamedTuple):
    """A delivered Trigger whose dead-letter topic is checked in this round."""

    identity: Identity
    record: TriggerRecord
    watched: Watched
    """The Trigger's delivery when the round began."""


@dataclass(eq=False)
class DeadLetterMonitor:
    """Checks the dead-letter topics of all delivered Triggers; belongs to one event loop."""

    states: States
    enqueue: Callable[[Key], None]
    """Makes an object due for reconciliation."""
    clock: Callable[[], float] = time.time
    """Returns the time, in seconds since 1970."""
    on_first_dead_letters: Callable[[Document, str], None] = lambda document, message: None
    """Called with a Trigger that has its first dead letters, and a sentence with their number."""
    _topics: dict[Identity, _DeadLetterTopic] = field(default_factory=dict)
    """The dead-letter topic of each delivered Trigger."""
    _round: int = 0
    """Number of the round, modulo `MISSING_TOPIC_ROUNDS`. A missing topic is checked in the rounds
    whose number equals the hash of its name (modulo the same)."""

    def waiting(self, identity: Identity) -> WaitingDeadLetters | None:
        """Return the waiting dead letters of a Trigger; None: its topic was not found yet, as the
        Trigger never had a dead letter or wasn't checked."""
        topic = self._topics.get(identity)
        return None if topic is None else topic.waiting

    def add_to_status(
        self, document: Document, conditions: ConditionSet, annotations: dict[str, str | None]
    ) -> None:
        """Add the condition `DeadLetters` of the Trigger `document`, and the annotations that keep
        its claim to its dead-letter topic (if it has one), to the `conditions` and `annotations` of
        its new status. As long as the topic wasn't checked, the stored condition stays."""
        identity = Identity.of(document)
        condition = self._condition(identity) or dead_letters.stored_condition(document)
        if condition is not None:
            conditions.set(condition)
        topic = self._topics.get(identity)
        decision = None if topic is None else topic.decision
        if decision is not None and decision.owned is not None:
            annotations.update(decision.owned.annotations())

    def _condition(self, identity: Identity) -> Condition | None:
        """Return a Trigger's condition `DeadLetters`; None: its topic was never found."""
        waiting = self.waiting(identity)
        return (
            None if waiting is None else dead_letters.dead_letters_condition(waiting, self.clock())
        )

    async def check_topics(self) -> None:
        """Count the dead letters of all Triggers whose check is due, and enqueue each Trigger whose
        status is outdated."""
        self._round = (self._round + 1) % MISSING_TOPIC_ROUNDS
        due: dict[KafkaCluster, list[_DueTrigger]] = {}
        watched_triggers = [
            (identity, record)
            for identity, record in self.states.triggers.items()
            if record.watched
        ]
        for identity in self._topics.keys() - {identity for identity, _ in watched_triggers}:
            del self._topics[identity]
        for number, (identity, record) in enumerate(watched_triggers, 1):
            if number % TRIGGERS_AT_ONCE == 0:
                await asyncio.sleep(0)  # meanwhile a Trigger's delivery may end
            watched = record.watched
            if watched is not None and self._update_reported(identity, watched):
                trigger = _DueTrigger(identity, record, watched)
                due.setdefault(watched.kafka, []).append(trigger)
        # Concurrently: a Kafka that doesn't answer delays no other one.
        await asyncio.gather(
            *(self._check_kafka(kafka, due_triggers) for kafka, due_triggers in due.items())
        )

    def _update_reported(self, identity: Identity, watched: Watched) -> bool:
        """Record how many dead letters the dispatchers of a Trigger have reported; `watched` is the
        Trigger's delivery. Returns whether to check its dead-letter topic in this round: always if
        the topic is known to exist, else if the reported number has changed, and otherwise once in
        `MISSING_TOPIC_ROUNDS` rounds."""
        name, topic = watched.egress.dead_letter_topic, self._topics.get(identity)
        if topic is None or (topic.name, topic.kafka) != (name, watched.kafka):
            topic = self._topics[identity] = _DeadLetterTopic(name, watched.kafka)
        scaler_status = watched.kafka.scaler.status(self.states.family.trigger_id(identity))
        previously_reported = topic.reported
        topic.reported = scaler_status.counts.dead_lettered if scaler_status else 0
        has_changed = topic.reported != previously_reported
        is_its_turn = hash(name) % MISSING_TOPIC_ROUNDS == self._round
        return topic.starts is not None or has_changed or is_its_turn

    async def _check_kafka(self, kafka: KafkaCluster, due: Sequence[_DueTrigger]) -> None:
        """Check the topics of `due`, Triggers of one Kafka, and enqueue the Triggers whose status
        is outdated. If Kafka fails or takes longer than `TOPIC_CHECK_TIMEOUT`, that is logged."""
        topic_by_name = {
            watched.egress.dead_letter_topic: self._topics[identity] for identity, _, watched in due
        }
        try:
            async with asyncio.timeout(TOPIC_CHECK_TIMEOUT):
                ranges = await kafka.topics.ranges_of_all(topic_by_name)
                await self._update_waiting(
                    kafka, [(topic_by_name[name], range_) for name, range_ in ranges.items()]
                )
                for identity, record, _ in due:
                    if self._topics[identity].name not in ranges:
                        await self._clear_if_deleted(self._topics[identity], record)
                await self._decide_retentions(kafka, due)
        except (LogError, TimeoutError) as error:
            # Not a warning: the scaler and the Triggers' statuses report that Kafka is away.
            log.info("dead letters: %s", error or "Kafka did not answer")
        for identity, record, _ in due:
            self._enqueue_if_changed(identity, record)

    async def _update_waiting(
        self, kafka: KafkaCluster, topics_with_ranges: Iterable[tuple[_DeadLetterTopic, Range]]
    ) -> None:
        """Update the number of each topic's dead letters, and the time of the oldest one. That time
        is read from Kafka only if the oldest record has changed. Raises `LogError`."""
        undated = []
        for topic, range_ in topics_with_ranges:
            previous = topic.waiting
            # End offsets decrease when a topic is deleted and created again.
            was_recreated = any(
                end < topic.ends.get(partition, 0) for partition, end in range_.ends.items()
            )
            if was_recreated:
                topic.clear_decision()
                previous = None
            # With the same start offsets, the oldest record is still the same one.
            oldest = previous.oldest if previous and range_.starts == topic.starts else None
            topic.starts, topic.ends = range_.starts, range_.ends
            topic.waiting = WaitingDeadLetters(
                topic.name, range_.records, oldest if range_.records else None
            )
            topic.copy_retention()
            if range_.records and oldest is None:
                undated.append(topic)
        if undated:
            times = await kafka.topics.first_timestamps([topic.name for topic in undated])
            for topic in undated:
                assert topic.waiting is not None
                topic.waiting = replace(topic.waiting, oldest=times.get(topic.name))

    @staticmethod
    async def _clear_if_deleted(topic: _DeadLetterTopic, record: TriggerRecord) -> None:
        """For a topic without offsets in Kafka's answer, check whether it was deleted, and if so,
        set its number of dead letters to 0. A topic that only has no leader now stays as it is.
        `record` is the Trigger's record. Raises `LogError`."""
        stored = dead_letters.stored_condition(record.document or {})
        # A stored condition that is False: an earlier operator has seen dead letters in the topic.
        existed = topic.starts is not None or (stored is not None and stored.status is Status.FALSE)
        if existed and await topic.kafka.topics.describe_topic(topic.name) is None:
            topic.waiting = WaitingDeadLetters(topic.name, 0)
            topic.starts = None
            topic.clear_decision()

    async def _decide_retentions(self, kafka: KafkaCluster, due: Sequence[_DueTrigger]) -> None:
        """Decide the retention of the topics for which that is needed (`needs_decision`), and alter
        it where Knafka may; for at most `MAX_DESCRIBED_TOPICS` topics in one round. Raises
        `LogError`."""
        described_count = 0
        for identity, record, watched in due:
            topic, settings = self._topics.get(identity), watched.egress.dead_letter_settings
            if topic is None or not topic.needs_decision(settings):
                continue
            if described_count == MAX_DESCRIBED_TOPICS:
                break
            described_count += 1
            description = await kafka.topics.describe_topic(topic.name)
            if description is not None:
                claim = topics.Ownership.of(status_annotations(record.document or {}))
                await self._decide_retention(kafka, topic, settings, description, claim)

    async def _decide_retention(
        self,
        kafka: KafkaCluster,
        topic: _DeadLetterTopic,
        settings: TopicSettings,
        description: TopicDescription,
        claim: topics.Ownership | None,
    ) -> None:
        """Decide by a topic's `description` in Kafka whether Knafka may alter its retention; if so,
        set it to that of `settings`. The retention stays if that would delete the oldest dead
        letter at once, or if Kafka refuses it.

        `claim` is the claim to the topic in the Trigger's status; None: the status has none. Raises
        a `LogError` that is `retriable`.
        """
        assert topic.waiting is not None
        # The claim of an earlier decision comes first: the status may not have it yet.
        earlier_claim = None if topic.decision is None else topic.decision.owned
        age = topic.waiting.oldest_age(self.clock())
        decision = topics.decide_retention(settings, description, earlier_claim or claim, age)
        if altered_settings := decision.altered_settings:
            if not await self._alter_retention(kafka, topic.name, altered_settings):
                decision = topics.unaltered_retention(description)
        topic.set_decision(decision, settings)

    @staticmethod
    async def _alter_retention(
        kafka: KafkaCluster, name: str, altered_settings: Mapping[str, str]
    ) -> bool:
        """Set the retention of the topic `name`; `altered_settings` has only this setting. Returns
        whether Kafka has accepted it; a refusal is logged. Raises a `LogError` that is
        `retriable`."""
        retention = altered_settings[topics.RETENTION_MS]
        try:
            await kafka.topics.set_topic_config(name, altered_settings)
        except LogError as error:
            if error.retriable:
                raise
            log.warning("%s does not get the retention.ms %s: %s", name, retention, error)
            return False
        log.info("%s: its retention.ms is %s from now on", name, retention)
        return True

    def _announce_first_dead_letters(
        self,
        topic: _DeadLetterTopic,
        waiting: WaitingDeadLetters,
        document: Document,
        previous: Condition | None,
    ) -> None:
        """Call `on_first_dead_letters` if dead letters wait in a topic that was empty before.
        `previous` is the Trigger's stored condition `DeadLetters` (None: it has none). False says
        that dead letters waited before this operator started: they were announced then."""
        if not waiting.records:
            topic.is_announced = False
        elif not topic.is_announced:
            topic.is_announced = True
            if previous is None or previous.status is not Status.FALSE:
                self.on_first_dead_letters(document, dead_letters.waiting_sentence(waiting))

    def _enqueue_if_changed(self, identity: Identity, record: TriggerRecord) -> None:
        """Enqueue a Trigger whose stored condition `DeadLetters`, or claim to its dead-letter
        topic, is outdated, and announce its first dead letters. If only the condition's message is
        outdated, the Trigger is enqueued at most once in `MESSAGE_INTERVAL` seconds. Do nothing for
        a channel's entry."""
        topic, document = self._topics.get(identity), record.document
        current = self._condition(identity)
        if topic is None or document is None or current is None or is_entry(document):
            return
        assert topic.waiting is not None
        previous = dead_letters.stored_condition(document)
        self._announce_first_dead_letters(topic, topic.waiting, document, previous)
        loop_time = asyncio.get_running_loop().time()
        is_other_condition = (
            previous is None
            or previous.reason != current.reason
            or previous.status is not current.status
        )
        owned = topic.decision.owned if topic.decision is not None else None
        desired_annotations = owned.annotations() if owned is not None else {}
        lacks_annotations = (
            not desired_annotations.items() <= status_annotations(record.document or {}).items()
        )
        seconds_since_last = loop_time - topic.enqueued_at
        is_message_due = previous != current and seconds_since_last >= MESSAGE_INTERVAL
        if is_other_condition or lacks_annotations or is_message_due:
            topic.enqueued_at = loop_time
            self.enqueue((self.states.family.trigger, *identity))
