"""How long a deletion is tried, and of which object."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.operator_world import SETTINGS

from knafka.core.errors import LogError
from knafka_operator.engine.deletions import Deletions

KEY = "Broker", "shop", "default"


async def _fail() -> None:
    raise LogError("Kafka is away")


async def test_a_recreated_object_has_the_whole_time_for_its_deletion() -> None:
    """The finalizer of the first was removed by hand while its deletion was tried."""
    posted: list[Any] = []
    settings = replace(SETTINGS, deletion_timeout=60)
    deletions = Deletions(lambda *event: posted.append(event), settings)
    first, second = ({"metadata": {"uid": uid}} for uid in ("first", "second"))
    assert not await deletions.try_delete(KEY, first, _fail(), "left")
    uid, began = deletions.began[KEY]
    deletions.began[KEY] = uid, began - 61
    assert not await deletions.try_delete(KEY, second, _fail(), "left")
    assert posted == []
