"""A replica of the operator that fails while it starts."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from support.operator_world import SETTINGS

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


class _Keys:
    def __init__(self, fails: bool) -> None:
        self._fails = fails

    async def start(self) -> None:
        if self._fails:
            raise RuntimeError("keys")


def _starts(*_: object) -> _Keys:
    return _Keys(fails=False)
