"""Two Brokers whose joined names are the same work side by side (naming.md; issue 4, item 6)."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from support.cluster import Cluster
from support.gate import only_chaos
from support.installation import Installation


@pytest.fixture
def colliding(cluster: Cluster) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Two pairs of namespace and name that join to the same."""
    stem = f"c{uuid4().hex[:6]}"
    pairs = (f"{stem}-b", "c"), (stem, "b-c")
    for namespace, _ in pairs:
        cluster.make_namespace(namespace)
    yield pairs
    for namespace, _ in pairs:
        for kind in ("triggers", "brokers"):
            cluster.delete(kind, namespace)
        cluster.delete("namespace", "", namespace)


@only_chaos
def test_brokers_and_triggers_whose_topics_and_groups_would_collide_get_only_their_own_events(
    installed: Installation, colliding: tuple[tuple[str, str], tuple[str, str]]
) -> None:
    addresses, subscribers, topics, groups = [], [], set(), set()
    for namespace, name in colliding:
        subscriber = installed.subscriber(namespace)
        addresses.append(installed.broker(namespace, name))
        installed.trigger(namespace, name, subscriber.ref, broker=name)
        subscribers.append(subscriber)
        topics.add(installed.status("broker", name, namespace)["annotations"]["default.topic"])
        groups.add(installed.status("trigger", name, namespace)["annotations"]["group.id"])
    assert len(topics) == len(groups) == 2
    for number, address in enumerate(addresses):
        for each in range(5):
            assert installed.send(address, f"{number}-{each}").status_code == 202
    for number, subscriber in enumerate(subscribers):
        subscriber.wait_for(5)
        assert set(subscriber.ids()) == {f"{number}-{each}" for each in range(5)}


@only_chaos
def test_a_brokers_deletion_leaves_the_one_with_the_colliding_name_alone(
    installed: Installation, colliding: tuple[tuple[str, str], tuple[str, str]]
) -> None:
    (one, name), (other, other_name) = colliding
    installed.broker(one, name)
    address = installed.broker(other, other_name)
    installed.cluster.kubectl("delete", "broker", name, "-n", one, "--timeout=60s")
    subscriber = installed.subscriber(other)
    installed.trigger(other, "all", subscriber.ref, broker=other_name)
    assert installed.send(address, "after").status_code == 202
    subscriber.wait_for(1)
