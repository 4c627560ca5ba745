"""The contract of a Sensor: all that its function knows of it, as JSON in its environment.

The vocabulary is Argo's (BUS-S1 to BUS-S5); what goes beyond it is said where it stands. Field
names are camelCase in JSON and snake_case here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from knafka.core.contract import (
    KEPT_FOR_EVER,
    AttributesFilter,
    CesqlText,
    Filter,
    Kafka,
    TopicSettings,
)
from knafka.core.documents import Duration, Model, problem
from knafka.core.errors import InvalidDocument
from knafka.core.sensor import conditions
from knafka.core.sensor.conditions import TriggerCondition
from knafka.core.sensor.resets import Reset
from knafka.core.sensor.rules import Rule

MAX_HELD_KEYS: Final = 1_000_000
"""Correlation keys that are held at most; each costs some 450 bytes of memory besides its events:
half a GB."""
MAX_HELD_BYTES: Final = 512 * 1024 * 1024
"""Bytes of held events as JSON, at most: more than a million keys with 200 bytes of data each."""

MAX_TRIGGERS = 100
"""Triggers of one Sensor, and dependencies: a commit of 4 KiB says what they still need."""

MAX_DEDUPE: Final = 24 * 3600
"""Seconds: for so long a mark of each event is held."""

Name: TypeAlias = Annotated[
    str, StringConstraints(pattern=f"^{conditions.NAME}$", max_length=conditions.MAX_NAME)
]


Grace: TypeAlias = Annotated[Duration, Field(ge=0, le=600)]
"""Seconds."""


class Dependency(Model):
    """Which events of the bus count as one of those that a condition names."""

    name: Name
    filter: AttributesFilter = AttributesFilter()
    filters: tuple[Filter, ...] = ()
    """ANDed, all dialects of a Trigger's; when there are any, `filter` is ignored (KN-TRG-10)."""


class ByTime(Model):
    """When held events stop counting (BUS-S5)."""

    cron: str
    timezone: str = "UTC"

    @model_validator(mode="after")
    def _is_valid(self) -> Self:
        """Check the cron expression and its time zone."""
        try:
            Reset(self.cron, self.timezone)
        except InvalidDocument as error:
            raise problem(error.problem) from None
        return self


class ConditionsReset(Model):
    """One reset of a trigger's conditions."""

    by_time: ByTime


class SensorTrigger(Model):
    """A trigger of a Sensor: its condition, and the action once that is true."""

    name: Name
    conditions: str = ""
    """A boolean expression of dependencies (BUS-S1); empty: all of them."""
    conditions_reset: tuple[ConditionsReset, ...] = ()
    within: Annotated[Duration, Field(ge=0.001)] | None = None
    """Seconds in which the events of one firing lie, ours: with `!`, how long is waited."""
    correlation: CesqlText | None = None
    """What the events of one firing have in common, ours: an attribute, or an expression of them.
    An event that doesn't have it counts for none."""
    order: Literal["key", "partition", "unordered"] | None = None
    """In which order its actions are delivered, ours. None: of those with a key, one after another:
    where the condition wants one event the key is that event's, else it is the correlation. `key`:
    the same, and one after another without a key as well."""
    at_least_once: bool = True
    """False: its action may be lost, and is never begun twice (BUS-5, BUS-S7)."""

    def rule(self, dependencies: Iterable[str]) -> Rule:
        """Ready to be asked; raises `InvalidExpression`."""
        return Rule(
            self.name,
            self.condition(dependencies),
            None if self.within is None else round(self.within * 1000),
            tuple(
                Reset(reset.by_time.cron, reset.by_time.timezone) for reset in self.conditions_reset
            ),
        )

    def condition(self, dependencies: Iterable[str]) -> TriggerCondition:
        """Return the parsed condition. Raises `InvalidExpression`."""
        if not self.conditions.strip():
            return conditions.all_of(list(dependencies))
        return conditions.parse(self.conditions)


def _names_once(named: tuple[Dependency, ...] | tuple[SensorTrigger, ...]) -> None:
    """Refuse names that stand more than once."""
    counts = Counter(item.name for item in named)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise problem(f"{', '.join(sorted(twice))}: there is more than one of that name")


def _dependencies(found: tuple[Dependency, ...]) -> tuple[Dependency, ...]:
    """Check the names of dependencies."""
    _names_once(found)
    return found


class Conditions(Model):
    """The triggers' conditions of a Sensor and their dependencies."""

    dependencies: Annotated[
        tuple[Dependency, ...],
        Field(min_length=1, max_length=MAX_TRIGGERS),
        AfterValidator(_dependencies),
    ]
    triggers: Annotated[tuple[SensorTrigger, ...], Field(min_length=1, max_length=MAX_TRIGGERS)]
    dedupe: Annotated[Duration, Field(ge=0.001, le=MAX_DEDUPE)] | None = None
    """Seconds in which an event of the same source and id as one that counted doesn't count, ours;
    None: each counts."""

    @property
    def dedupe_millis(self) -> int | None:
        return None if self.dedupe is None else round(self.dedupe * 1000)

    @model_validator(mode="after")
    def _conditions_are_valid(self) -> Self:
        """Check the triggers' names and conditions."""
        _names_once(self.triggers)
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
        """Return one rule for each trigger, in their order."""
        names = [dependency.name for dependency in self.dependencies]
        return tuple(trigger.rule(names) for trigger in self.triggers)


class SensorContract(Conditions):
    """The contract of a Sensor's function."""

    namespace: str
    name: str
    generation: Annotated[int, Field(ge=0)] = 0
    """What is read from the trigger topic may come from a process with a later one: then this one
    ends, as it can't tell what that is."""
    kafka: Kafka
    topic: str
    """The bus: its events are read from there (BUS-8)."""
    group: str
    """Reads it, and the trigger topic."""
    trigger_topic: str
    """Events of complex conditions, by trigger (BUS-10, BUS-13)."""
    changelog_topic: str
    """Compacted topic with the events that triggers hold; it has as many partitions as the trigger
    topic."""
    action_topic: str
    """Topic of the firings (BUS-11)."""
    bus: str
    """The name of its Broker, or `names.of_channel` of its KafkaChannel, for its dead letters."""
    dead_letter_topic: str
    """Topic of the events that could not be handled; created at the first of them."""
    dead_letter_settings: TopicSettings = TopicSettings(config=dict(KEPT_FOR_EVER))
    grace: Grace | None = None
    """Seconds by which the time of an event may be before that of one which was read already; None:
    20 ms where the times are Kafka's, and 2 s where they are the senders'."""
    max_held_keys: Annotated[int, Field(gt=0)] = MAX_HELD_KEYS
    """Triggers and correlation keys for which one process holds events; beyond it lets go of the
    oldest."""
    max_held_bytes: Annotated[int, Field(gt=0)] = MAX_HELD_BYTES
    """Bytes of the events, as JSON, that one process holds; beyond it lets go of the oldest."""

    @cached_property
    def triggers_in_order(self) -> frozenset[str]:
        """Names of the triggers whose actions go one after another also without a key."""
        return frozenset(trigger.name for trigger in self.triggers if trigger.order == "key")

    def transactional_id(self, name: str) -> str:
        """Return the transactional id of one process, which is its consumer's client id too."""
        return f"{self.group}-{name}"

    def slot_of(self, client_id: str) -> int | None:
        """The slot (`DrainRequest.slot`) of a process by its transactional id; None: it has none,
        or is none of this Sensor's."""
        name = client_id.removeprefix(f"{self.group}-")
        return int(name) if name != client_id and name.isdecimal() and len(name) < 10 else None
