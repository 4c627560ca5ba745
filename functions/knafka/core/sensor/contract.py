"""The contract of a Sensor: everything that its function knows about it, as JSON in the
environment.

The vocabulary is Argo's (BUS-S1 to BUS-S5); additions are marked as ours. Field names are camelCase
in JSON and snake_case here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from knafka.core.contract import DEAD_LETTER_TOPIC_CONFIG, Kafka, TopicSettings
from knafka.core.documents import Duration, Model, problem
from knafka.core.errors import InvalidDocument
from knafka.core.filters.declared_filters import AttributesFilter, CesqlText, Filter
from knafka.core.sensor import conditions
from knafka.core.sensor.conditions import TriggerCondition
from knafka.core.sensor.resets import Reset
from knafka.core.sensor.rules import Rule

MAX_HELD_KEYS: Final = 1_000_000
"""Most correlation keys for which events are held by default. Each takes some 450 bytes of memory
besides its events: half a GB in all."""
MAX_HELD_BYTES: Final = 512 * 1024 * 1024
"""Most bytes of held events, as JSON, by default: more than a million keys with 200 bytes of data
each."""

MAX_TRIGGERS: Final = 100
"""Most triggers, and most dependencies, of one Sensor: the first offset that each trigger needs has
to fit into a commit's 4 KiB."""

MAX_DEDUPE: Final = 24 * 3600
"""Longest time in seconds in which duplicates may be recognised (`Conditions.dedupe`)."""

Name: TypeAlias = Annotated[
    str, StringConstraints(pattern=f"^{conditions.NAME}$", max_length=conditions.MAX_NAME)
]
"""Name of a dependency or trigger."""


Grace: TypeAlias = Annotated[Duration, Field(ge=0, le=600)]
"""Seconds that a Sensor waits for events that come later than their time says."""


class Dependency(Model):
    """A dependency: the events of the bus that count under its name in conditions."""

    name: Name
    filter: AttributesFilter = AttributesFilter()
    """The older form of a filter."""
    filters: tuple[Filter, ...] = ()
    """ANDed, in all dialects of a Trigger's filters; when there are any, `filter` is ignored
    (KN-TRG-10)."""


class ByTime(Model):
    """A schedule of times at which held events stop counting (BUS-S5)."""

    cron: str
    """A cron expression of five fields."""
    timezone: str = "UTC"
    """Name of the time zone of `cron`, such as Europe/Berlin."""

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        """Raise an error if the cron expression or the time zone is invalid."""
        try:
            Reset(self.cron, self.timezone)
        except InvalidDocument as error:
            raise problem(error.problem) from None
        return self


class ConditionsReset(Model):
    """One reset of a trigger's conditions."""

    by_time: ByTime


class SensorTrigger(Model):
    """A trigger of a Sensor: its condition, and how its action is delivered."""

    name: Name
    conditions: str = ""
    """A boolean expression of dependencies (BUS-S1); empty: all dependencies are wanted."""
    conditions_reset: tuple[ConditionsReset, ...] = ()
    """When held events stop counting; empty: never."""
    within: Annotated[Duration, Field(ge=0.001)] | None = None
    """Ours: most seconds between the events of one firing; None: no limit. With an unwanted event
    (`!`), also how long to wait for it."""
    correlation: CesqlText | None = None
    """Ours: the value that all events of one firing share, an attribute or an expression of
    attributes; an event without this value doesn't count. None: any events fire together."""
    order: Literal["key", "partition", "unordered"] | None = None
    """Ours: the order in which its actions are delivered. None: actions with the same key are
    delivered one after another; the key is the event's if the condition wants one event, else the
    correlation. `key`: actions without a key are delivered one after another as well. `partition`:
    all actions of one partition are delivered one after another. `unordered`: no action waits for
    another."""
    at_least_once: bool = True
    """Whether its action is delivered at least once. False: the action may be lost, and is never
    attempted twice (BUS-5, BUS-S7)."""

    def rule(self, dependencies: Iterable[str]) -> Rule:
        """Return the trigger's compiled rule. `dependencies`: the names of all dependencies of the
        Sensor, which `condition` needs. Raises `InvalidExpression` if the condition doesn't
        parse."""
        return Rule(
            self.name,
            self.condition(dependencies),
            None if self.within is None else round(self.within * 1000),
            tuple(
                Reset(reset.by_time.cron, reset.by_time.timezone) for reset in self.conditions_reset
            ),
            self.correlation is not None,
        )

    def condition(self, dependencies: Iterable[str]) -> TriggerCondition:
        """Return the parsed condition. If the trigger declares no condition, an event of each of
        the `dependencies` is wanted. Raises `InvalidExpression` if the condition doesn't parse."""
        if not self.conditions.strip():
            return conditions.all_of(list(dependencies))
        return conditions.parse(self.conditions)


def _check_unique_names(declarations: tuple[Dependency, ...] | tuple[SensorTrigger, ...]) -> None:
    """Raise an error if several of these dependencies, or several of these triggers, have the same
    name."""
    counts = Counter(declaration.name for declaration in declarations)
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise problem(f"{', '.join(sorted(repeated))}: there is more than one of that name")


def _check_dependencies(dependencies: tuple[Dependency, ...]) -> tuple[Dependency, ...]:
    """Return the dependencies unchanged; raise an error if several have the same name."""
    _check_unique_names(dependencies)
    return dependencies


class Conditions(Model):
    """The triggers of a Sensor, with their conditions, and their dependencies."""

    dependencies: Annotated[
        tuple[Dependency, ...],
        Field(min_length=1, max_length=MAX_TRIGGERS),
        AfterValidator(_check_dependencies),
    ]
    triggers: Annotated[tuple[SensorTrigger, ...], Field(min_length=1, max_length=MAX_TRIGGERS)]
    dedupe: Annotated[Duration, Field(ge=0.001, le=MAX_DEDUPE)] | None = None
    """Ours: seconds after an event in which further ones of the same source and id don't count;
    None: every event counts."""

    @property
    def dedupe_millis(self) -> int | None:
        """`dedupe` in milliseconds; None: every event counts."""
        return None if self.dedupe is None else round(self.dedupe * 1000)

    @model_validator(mode="after")
    def _check_conditions(self) -> Self:
        """Raise an error if several triggers have the same name, or if a trigger's condition
        doesn't parse, names an unknown dependency, or has an unwanted event without `within`."""
        _check_unique_names(self.triggers)
        names = [dependency.name for dependency in self.dependencies]
        for trigger in self.triggers:
            try:
                condition = trigger.condition(names)
            except InvalidDocument as error:
                raise problem(f"the conditions of {trigger.name}: {error.problem}") from None
            if unknown := sorted(condition.names - set(names)):
                raise problem(
                    f"the conditions of {trigger.name} name {', '.join(unknown)}, which is no"
                    f" dependency: want {', '.join(names)}"
                )
            if condition.unwanted and trigger.within is None:
                raise problem(
                    f"the trigger {trigger.name} wants a time (within) after which it is decided"
                    f" that no {', '.join(sorted(condition.unwanted))} came"
                )
        return self

    def rules(self) -> tuple[Rule, ...]:
        """Return the compiled rule of each trigger, in the order of `triggers`."""
        names = [dependency.name for dependency in self.dependencies]
        return tuple(trigger.rule(names) for trigger in self.triggers)


class SensorContract(Conditions):
    """The contract of a Sensor's function."""

    namespace: str
    name: str
    generation: Annotated[int, Field(ge=0)] = 0
    """If a record of the trigger topic comes from a process with a later generation, this process
    ends, as it may not understand the record."""
    kafka: Kafka
    topic: str
    """The bus: the topic whose events the Sensor reads (BUS-8)."""
    group: str
    """The consumer group that reads the bus and the trigger topic."""
    trigger_topic: str
    """Topic of the events that matched a trigger whose condition isn't simple (BUS-10, BUS-13)."""
    changelog_topic: str
    """Compacted topic with the events that triggers hold; it has as many partitions as the trigger
    topic."""
    action_topic: str
    """Topic of the firings (BUS-11)."""
    bus: str
    """The name of the Sensor's Broker, or `names.of_channel` of its KafkaChannel, for its dead
    letters."""
    dead_letter_topic: str
    """Topic of the events that could not be handled; created when the first one is written."""
    dead_letter_settings: TopicSettings = TopicSettings(config=dict(DEAD_LETTER_TOPIC_CONFIG))
    grace: Grace | None = None
    """Seconds by which an event may be earlier than one that was already read. None: 20 ms if
    events' times are Kafka's, 2 s if they are their senders'."""
    max_held_keys: Annotated[int, Field(gt=0)] = MAX_HELD_KEYS
    """Most triggers and correlation keys for which one process holds events; beyond that it drops
    the oldest."""
    max_held_bytes: Annotated[int, Field(gt=0)] = MAX_HELD_BYTES
    """Most bytes of events, as JSON, that one process holds; beyond that it drops the oldest."""

    @cached_property
    def triggers_in_order(self) -> frozenset[str]:
        """Names of the triggers with the order `key`, whose actions without a key are delivered one
        after another as well."""
        return frozenset(trigger.name for trigger in self.triggers if trigger.order == "key")

    def transactional_id(self, name: str) -> str:
        """Return the transactional id of one process, which is also its consumer's client id.
        `name`: the process's slot, or any unique name if it has no slot."""
        return f"{self.group}-{name}"

    def slot_of(self, client_id: str) -> int | None:
        """Return the slot (`DrainRequest.slot`) of the process whose consumer has this client id,
        as `transactional_id` makes it. None: it has no slot, or belongs to another Sensor."""
        name = client_id.removeprefix(f"{self.group}-")
        # Other members choose their own ids; no slot has ten digits.
        is_slot = name != client_id and name.isdecimal() and len(name) < 10
        return int(name) if is_slot else None
