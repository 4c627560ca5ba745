"""One world for a test of behaviour, whatever the operator runs on.

    memory     the operator and its controller on a cluster and a Kafka in memory, by a fake clock
    local      `knafka up`, real processes and a real Kafka
    cluster    the operator as it is installed in the test cluster

Each is there twice: as it is, and with `shared` dispatchers, which every Broker's annotation asks
for (`memory-shared` and so on). In memory both cost nothing, so both run wherever one does; a test
asks for the others by `only_in`.

A test that takes the fixture `world` runs in each of them, in a namespace of its own; what it says
of conditions, reasons and messages must hold literally in all. `only_in` leaves worlds out where
a behaviour isn't theirs. Registered by `pytest_plugins` in tests/conftest.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, TypeVar

import httpx
import pytest

from knafka_operator.model.conditions import Condition, Severity, Status
from knafka_operator.model.resources import BROKER_CLASS, CORE, EVENTING, ISOLATION

T = TypeVar("T")

SHARED: Final = "-shared"
WORLDS: Final = ("memory", f"memory{SHARED}", "local", "cluster")
OURS: Final = {BROKER_CLASS: "kafka"}

BROKER: Final = {
    "ConfigParsed": "True",
    "DeadLetterSinkResolved": "True DeadLetterSinkNotConfigured",
    "TopicReady": "True",
    "TopicAsDeclared": "True",
    "ContractUpdated": "True",
    "DataPlaneAvailable": "True",
    "Addressable": "True",
    "ProbeSucceeded": "True",
    "Ready": "True",
}
"""A Broker's conditions when all is well, each as its status and reason."""

TRIGGER: Final = {
    "BrokerReady": "True",
    "DependencyReady": "True",
    "SubscriberResolved": "True",
    "DeadLetterSinkResolved": "True DeadLetterSinkNotConfigured",
    "OIDCIdentityCreated": "True OIDCFeatureDisabled",
    "SubscriptionReady": "True",
    "Delivering": "True",
    "Ready": "True",
}
"""A Trigger's."""


PAUSED: Final = {**TRIGGER, "Delivering": "False Paused"}
"""A Trigger's that is paused: it is Ready, as its events are kept."""


class World(Protocol):
    """A namespace in which an operator reconciles what is applied."""

    namespace: str

    def apply(self, *documents: Mapping[str, Any]) -> None:
        """As `kubectl apply` does; returns before it is reconciled."""
        ...

    def pause(self, trigger: str, *, paused: bool = True) -> None:
        """As a user does here; not `paused`: have it go on."""
        ...

    def delete(self, kind: str, name: str) -> None:
        """Returns when it is gone."""
        ...

    def refusal(self, *documents: Mapping[str, Any]) -> str:
        """What a user is answered who applies these: empty if they are accepted."""
        ...

    def conditions(self, kind: str, name: str) -> list[Condition]:
        """Those of its status now; none while it has none."""
        ...

    def observes_newest(self, kind: str, name: str) -> bool:
        """Whether its status is about what was applied last."""
        ...

    def until(self, holds: Callable[[], T], what: Callable[[], str]) -> T:
        """What `holds` gives once it is true; fails with `what` after this world's patience."""
        ...

    def subscriber(self, name: str) -> dict[str, Any]:
        """A destination that accepts every event, as `subscriber` or `deadLetterSink`."""
        ...

    def arrived(self, name: str) -> list[str]:
        """The ids of the events that this subscriber got, in the order of arrival."""
        ...

    def send(self, broker: str, *ids: str, type_: str = "made") -> None:
        """Events that the Broker has accepted when this returns."""
        ...

    def kafka_is_away(self) -> AbstractContextManager[Mapping[str, str]]:
        """No Kafka answers a Broker whose ConfigMap has the given data, until this is left."""
        ...

    def kept_in_kafka(self) -> set[str]:
        """Names of the topics and consumer groups of this namespace."""
        ...

    def restart(self) -> None:
        """Another operator takes over, which knows only what is stored."""
        ...


def expect(world: World, kind: str, name: str, conditions: Mapping[str, str]) -> None:
    """Wait until its conditions are exactly these, each as its status and reason."""

    def seen() -> dict[str, str]:
        found = world.conditions(kind, name)
        return {each.type: f"{each.status} {each.reason}".strip() for each in found}

    def difference() -> str:
        found = seen()
        wrong = {
            each: f"{found.get(each, 'missing')}, expected {conditions.get(each, 'none')}"
            for each in {*conditions, *found}
            if found.get(each) != conditions.get(each)
        }
        return f"{kind} {world.namespace}/{name}: {wrong} of {world.conditions(kind, name)}"

    world.until(lambda: seen() == conditions, difference)


def message(world: World, kind: str, name: str, type_: str) -> str:
    """Of one condition, which must be there."""
    (found,) = (each for each in world.conditions(kind, name) if each.type == type_)
    return found.message


def until_arrived(world: World, subscriber: str, *ids: str) -> None:
    """Wait until this subscriber has got at least these."""
    world.until(
        lambda: set(ids) <= set(world.arrived(subscriber)),
        lambda: f"{subscriber} got {world.arrived(subscriber)}, expected {ids}",
    )


def conditions_of(found: Iterable[Mapping[str, Any]]) -> list[Condition]:
    """The conditions of a status as it is stored."""
    return [
        Condition(
            each["type"],
            Status(each["status"]),
            each.get("reason", ""),
            each.get("message", ""),
            Severity(each.get("severity", "")),
        )
        for each in found
    ]


def send(post: Callable[..., httpx.Response], url: str, *ids: str, type_: str) -> None:
    """Each is accepted."""
    for each in ids:
        headers = {
            "ce-specversion": "1.0",
            "ce-id": each,
            "ce-source": "/tests",
            "ce-type": type_,
            "content-type": "application/json",
        }
        assert post(url, headers=headers, content=b"{}").status_code == 202


def broker(
    name: str = "shop", annotations: Mapping[str, str] = OURS, **spec: Any
) -> dict[str, Any]:
    return _document(EVENTING, "Broker", name, annotations, spec=spec)


def trigger(
    subscriber: Mapping[str, Any],
    name: str = "orders",
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    spec = {"broker": "shop", "subscriber": dict(subscriber), **spec}
    return _document(EVENTING, "Trigger", name, annotations or {}, spec=spec)


def config_map(name: str, data: Mapping[str, str]) -> dict[str, Any]:
    return _document(CORE, "ConfigMap", name, {}, data=dict(data))


def reference(kind: str, name: str, api_version: str = EVENTING) -> dict[str, Any]:
    """A destination by reference."""
    return {"ref": {"apiVersion": api_version, "kind": kind, "name": name}}


def _document(
    api_version: str, kind: str, name: str, annotations: Mapping[str, str], **rest: Any
) -> dict[str, Any]:
    metadata = {"name": name, "annotations": dict(annotations)}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **rest}


def only_in(*worlds: str, **marked: pytest.MarkDecorator) -> pytest.MarkDecorator:
    """Have a test run in these worlds and no others; in those that are `marked` with that mark."""
    wanted = [_parameter(each) for name in worlds for each in _with_shared(name)]
    wanted += [_parameter(name, mark) for name, mark in marked.items()]
    return pytest.mark.parametrize("world", wanted, indirect=True)


def _with_shared(name: str) -> tuple[str, ...]:
    return (name, name + SHARED) if name == "memory" else (name,)


def _parameter(name: str, *more: pytest.MarkDecorator) -> Any:
    marks = {
        "memory": [],
        "local": [pytest.mark.kafka, pytest.mark.slow],
        "cluster": [pytest.mark.slow],
    }
    return pytest.param(name, marks=[*marks[name.removesuffix(SHARED)], *more])


def _share(world: World) -> None:
    """Have its Brokers say that their Triggers share dispatchers."""
    apply = world.apply

    def shared(*documents: Mapping[str, Any]) -> None:
        apply(*map(_sharing, documents))

    world.apply = shared  # type: ignore[method-assign]


def _sharing(document: Mapping[str, Any]) -> Mapping[str, Any]:
    if document["kind"] != "Broker":
        return document
    metadata = document["metadata"]
    annotations = {ISOLATION: "shared", **metadata["annotations"]}
    return {**document, "metadata": {**metadata, "annotations": annotations}}


@pytest.fixture(params=[_parameter(each) for each in WORLDS])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A world with a namespace of this test's own; what it made is gone afterwards."""
    name: str = request.param
    with request.getfixturevalue(f"{name.removesuffix(SHARED)}_world")() as found:
        if name.endswith(SHARED):
            _share(found)
        yield found
