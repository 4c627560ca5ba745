"""A replica of the operator that fails while it starts."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import threading
from typing import Any

import pytest
from support.operator_world import SETTINGS

from knafka_operator.kube_api.lease import Lease
from knafka_operator.runtime import replica


class _Started:
    """Parts of a replica by name, in the order in which they are closed; one fails to start."""

    def __init__(self, failing: str) -> None:
        self.failing = failing
        self.closed: list[str] = []

    def part(self, name: str) -> Any:
        started = self

        class Part:
            def __init__(self, *_: object, **__: object) -> None:
                if name == started.failing:
                    raise RuntimeError(name)

            @classmethod
            async def start(cls, *_: object) -> Part:
                return cls()

            async def release(self) -> None: ...

            async def close(self) -> None:
                if name not in started.closed:  # a second close has no effect
                    started.closed.append(name)

        return Part


class _Api:
    @staticmethod
    def from_environment() -> None: ...


@pytest.mark.parametrize(
    ("failing", "closed"),
    [
        ("operator", ["lease"]),
        ("http", ["operator", "lease"]),
        ("keys", ["http", "operator", "lease"]),
        ("webhooks", ["http", "operator", "lease"]),
        ("waiting", ["lease", "webhooks", "http", "operator"]),
    ],
)
async def test_a_replica_that_fails_to_start_closes_what_it_has_started(
    failing: str, closed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its thread would renew the Lease, and no other replica could lead."""
    started = _Started(failing)
    monkeypatch.setattr(replica, "ApiCluster", _Api)
    monkeypatch.setattr(replica, "LeaseThread", started.part("lease"))
    monkeypatch.setattr(replica, "Operator", started.part("operator"))
    monkeypatch.setattr(replica, "MetricsServer", started.part("http"))
    monkeypatch.setattr(replica, "FollowedTracing", _starts)
    monkeypatch.setattr(replica, "FunctionKeys", lambda *_: _Keys(failing == "keys"))
    webhooks = started.part("webhooks")

    async def start_webhooks(*_: object, **__: object) -> Any:
        return webhooks()

    async def wait_for_lease(*_: object) -> bool:
        if failing == "waiting":
            raise RuntimeError(failing)
        return False

    monkeypatch.setattr(replica, "_start_webhooks", start_webhooks)
    monkeypatch.setattr(replica, "_wait_for_lease", wait_for_lease)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    with pytest.raises(RuntimeError, match=failing):
        await replica.run(SETTINGS)
    assert started.closed == closed


class _MemoryLeases:
    """A `LeaseStore` that says when the Lease was written first."""

    def __init__(self) -> None:
        self.stored: Lease | None = None
        self.written = threading.Event()

    async def read(self) -> Lease | None:
        return self.stored

    async def write(self, lease: Lease) -> Lease | None:
        version = int(self.stored.version) + 1 if self.stored is not None else 1
        self.stored = dataclasses.replace(lease, version=str(version))
        self.written.set()
        return self.stored


async def test_a_replica_that_fails_to_start_releases_the_lease_that_it_has_acquired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else no replica would lead for as long as the Lease lasts."""
    leases, started = _MemoryLeases(), _Started("")

    class Tracing:
        def __init__(self, *_: object) -> None: ...

        async def start(self) -> None:
            assert await asyncio.to_thread(leases.written.wait, 30)
            assert leases.stored is not None
            assert leases.stored.holder == SETTINGS.identity
            raise RuntimeError("tracing")

    monkeypatch.setattr(replica, "ApiCluster", _Api)
    monkeypatch.setattr(replica, "ApiLeaseStore", lambda _: leases)
    monkeypatch.setattr(replica, "Operator", started.part("operator"))
    monkeypatch.setattr(replica, "MetricsServer", started.part("http"))
    monkeypatch.setattr(replica, "FollowedTracing", Tracing)
    with pytest.raises(RuntimeError, match="tracing"):
        await replica.run(SETTINGS)
    assert leases.stored is not None
    assert leases.stored.holder == ""


async def test_the_lease_of_a_leader_that_cannot_be_closed_is_not_released() -> None:
    """It expires instead: until then no other replica leads beside what may still deliver."""
    lease, stop, closed = _NotedLease(), asyncio.Event(), asyncio.Event()

    class Controller:
        async def run(self) -> None:
            await closed.wait()

    class Stuck:
        all_operators: tuple[object, ...] = ()

        async def close(self) -> None:
            raise RuntimeError("stuck")

    stop.set()
    followed: Any = (_Keys(fails=False), _Keys(fails=False), _Keys(fails=False))
    controller: Any = Controller()
    operator: Any = Stuck()
    thread: Any = lease
    with pytest.raises(RuntimeError, match="stuck"):
        await replica._lead(controller, operator, thread, followed, stop)
    await replica._leave(thread)
    assert lease.calls[0] == "close", "a release afterwards has no effect"


class _NotedLease:
    """Notes how a Lease's thread is ended."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def release(self) -> None:
        self.calls.append("release")

    async def close(self) -> None:
        self.calls.append("close")


class _Keys:
    def __init__(self, fails: bool) -> None:
        self._fails = fails

    async def start(self) -> None:
        if self._fails:
            raise RuntimeError("keys")


def _starts(*_: object) -> _Keys:
    return _Keys(fails=False)
