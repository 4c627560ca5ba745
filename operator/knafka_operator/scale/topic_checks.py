"""Topic checks: the lag checks of all topics that Triggers read.

Triggers that read the same topics are checked together: those of one Broker, or a KafkaSource with
several topics. Not here: the check itself (`lag_checks`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from knafka.core.contract import Egress
from knafka.ports.log import GroupSource
from knafka_operator.scale.holds import EndingHolds
from knafka_operator.scale.lag_checks import LagChecks, TopicLagCheck
from knafka_operator.scale.scaled_groups import ScaledTrigger


class TopicChecks:
    """The lag checks of all topics with Triggers."""

    def __init__(self, kafka: GroupSource, ending: EndingHolds, lag_checks: LagChecks) -> None:
        """Begin without topics. Each check gets `kafka` and `ending`; `lag_checks` runs it."""
        self._kafka, self._ending = kafka, ending
        self._lag_checks = lag_checks
        self._checks: dict[str, TopicLagCheck] = {}
        """All checks, by `_topics_key`."""
        self._multi_topic_checks: dict[str, TopicLagCheck] = {}
        """Those of `_checks` that cover several topics."""

    @property
    def all(self) -> Collection[TopicLagCheck]:
        """The checks of all topics."""
        return self._checks.values()

    def find(self, topic: str) -> TopicLagCheck | None:
        """Return the check that covers this topic and no other; None: there is none."""
        return self._checks.get(topic)

    def find_covering(self, topic: str) -> Sequence[TopicLagCheck]:
        """Return all checks that cover this topic, alone or with other topics."""
        checks = [check for check in self._multi_topic_checks.values() if topic in check.topics]
        if (own_check := self.find(topic)) is not None:
            checks.append(own_check)
        return checks

    def add(self, trigger: ScaledTrigger) -> None:
        """Add a Trigger to the check of its topics, and start that check if there is none yet."""
        key = _topics_key(trigger.egress)
        check = self._checks.get(key)
        if check is None:
            topics = trigger.egress.topics
            check = self._checks[key] = TopicLagCheck(topics, self._kafka, self._ending)
            if len(topics) > 1:
                self._multi_topic_checks[key] = check
            self._lag_checks.add(check)
        check.triggers[trigger.id] = trigger

    def remove(self, trigger: ScaledTrigger) -> None:
        """Remove a Trigger from the check of its topics, and end that check if it was the last."""
        key = _topics_key(trigger.egress)
        check = self._checks[key]
        del check.triggers[trigger.id]
        if not check.triggers:
            del self._checks[key]
            self._multi_topic_checks.pop(key, None)
            check.end()

    def check_soon(self, topic: str) -> None:
        """Make the check that covers this topic and no other due soon, if there is one."""
        if check := self.find(topic):
            check.check_soon()

    def check_trigger_soon(self, trigger: ScaledTrigger) -> None:
        """Make the check of a Trigger's topics due soon, if there is one."""
        if check := self._checks.get(_topics_key(trigger.egress)):
            check.check_soon()


def _topics_key(egress: Egress) -> str:
    """Return the key of an Egress's check: the names of its topics, separated by commas."""
    return ",".join(egress.topics)
