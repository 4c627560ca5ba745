"""The rules for conditions, over every state of Brokers and Triggers (KN-CON): this module's, and
those of the conformance modules that this worker ran before.

Each module's are judged when it is over, whichever worker runs it: `own_namespace`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, pairwise

import pytest
from support import watched as rules
from support.cluster import Cluster
from support.conformance_world import own_namespace
from support.installation import Installation
from support.listener import Listener
from support.watched import Document, Identity, Watched

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def namespace(cluster: Cluster, watched: Watched) -> Iterator[str]:
    yield from own_namespace(cluster, watched)


@pytest.fixture(scope="module")
def histories(
    installed: Installation, namespace: str, listener: Listener, watched: Watched
) -> dict[Identity, list[Document]]:
    """Two objects that go from not Ready to Ready and back, and all there were before."""
    installed.trigger(namespace, "first", listener.sink("/watched"), ready=False)
    installed.until_condition("trigger", "first", namespace, "BrokerReady", "BrokerDoesNotExist")
    installed.broker(namespace)
    installed.until_ready("trigger", "first", namespace, within=120)
    nobody = {"ref": {"apiVersion": "v1", "kind": "Service", "name": "nobody"}}
    installed.trigger(namespace, "first", nobody, ready=False)
    installed.until_condition("trigger", "first", namespace, "SubscriberResolved", "NotFound")
    found = watched.histories()
    assert {identity[0] for identity in found} == {"Broker", "Trigger"}
    return found


def judged(
    histories: dict[Identity, list[Document]], rule: Callable[[Document], Iterator[str]]
) -> list[str]:
    return [
        f"{identity}: {wrong}"
        for identity, states in histories.items()
        for state in states
        for wrong in rule(state)
    ]


def compared(
    histories: dict[Identity, list[Document]],
    rule: Callable[[Document, Document], Iterator[str]],
) -> list[str]:
    return [
        f"{identity}: {wrong}"
        for identity, states in histories.items()
        for before, after in pairwise(states)
        for wrong in rule(before, after)
    ]


@pytest.mark.conformance("KN-CON-01", "KN-BRK-18")
def test_conditions_have_their_form(histories: dict[Identity, list[Document]]) -> None:
    assert judged(histories, rules.form) == []


@pytest.mark.conformance("KN-CON-01")
def test_the_time_of_a_condition_moves_only_with_its_status(
    histories: dict[Identity, list[Document]],
) -> None:
    assert compared(histories, rules.transitions) == []


@pytest.mark.conformance("KN-CON-02")
def test_ready_sums_up_what_counts(histories: dict[Identity, list[Document]]) -> None:
    assert judged(histories, rules.sums) == []


@pytest.mark.conformance("KN-CON-03")
def test_what_is_not_true_says_why(histories: dict[Identity, list[Document]]) -> None:
    assert judged(histories, rules.reasons) == []


@pytest.mark.conformance("KN-CON-04")
def test_what_does_not_decide_ready_has_a_severity(
    histories: dict[Identity, list[Document]],
) -> None:
    """And whatever is Ready has nothing else that is False: True is good."""
    assert any(rules.is_ready(each) for each in chain(*histories.values()))
    assert judged(histories, rules.severities) == []


@pytest.mark.conformance("KN-BRK-14")
def test_the_generation_is_told_with_the_conditions_that_belong_to_it(
    histories: dict[Identity, list[Document]],
) -> None:
    assert compared(histories, rules.observed) == []


@pytest.mark.conformance("KN-TRG-01", "KN-TRG-02", "KN-TRG-03", "KN-BRK-01", "KN-BRK-03")
def test_what_is_ready_tells_its_addresses(histories: dict[Identity, list[Document]]) -> None:
    """In every state: a Broker its own and its sink's, a Trigger its subscriber's."""
    assert judged(histories, rules.addresses) == []
