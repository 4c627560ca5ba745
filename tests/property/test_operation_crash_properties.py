"""Properties: whenever an operator dies, and whatever happens to Jobs, each operation on tables is
done once or has failed, one Job at a time and never without the Lease (issue 18)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.archives_world import BUCKET, ArchivesWorld
from support.crashing import Crash, Crashing
from support.examples import examples

from knafka_operator.archives.model import ARCHIVE_LABEL
from knafka_operator.archives.operation_decide import MAX_ATTEMPTS, is_finished
from knafka_operator.archives.operation_model import OPERATION_LABEL, PURGE, REPLAY
from knafka_operator.archives.runs import is_recorded
from knafka_operator.model.identity import Key
from knafka_operator.model.sensors import KNAFKA

OPERATIONS = ((REPLAY, "one"), (REPLAY, "two"), (PURGE, "three"))
RECORDS = 5


class World(ArchivesWorld):
    """Three operations on one archive, in which dead letters arrive besides."""

    def __init__(self) -> None:
        self.crashing = Crashing(self.check)
        super().__init__(self.crashing)
        self.succeeded = Counter[str]()
        """Jobs that did, by the UID of the operation; the archive's own under ''."""
        self.ended: set[str] = set()
        """UIDs of Jobs."""
        self.deleted: set[Key] = set()
        self.unrecorded = 0
        """Jobs that had succeeded when their operation was deleted, before the archive wrote so: a
        finished operation goes at once, and its Job with it."""

    async def begin(self) -> None:
        self.inner.declare_broker("shop")
        await self.start()
        self.declare(storage=BUCKET, compaction={"number": 1})
        for kind, name in OPERATIONS:
            self.ask(kind, name)
            self.time = self.time.replace(second=self.time.second + 1)

    def check(self) -> None:
        """What holds after every effect."""
        jobs = self.jobs()
        assert len(jobs) <= 1
        for each in jobs:
            labels = each["metadata"]["labels"]
            assert self.leases() == [f"shop/kept/{labels[ARCHIVE_LABEL]}"]
            operation = labels.get(OPERATION_LABEL, "")
            if operation and each["metadata"]["uid"] not in self.ended:
                assert not self.succeeded[operation], "it had been done"

    async def step(self, after: float, *, archive_first: bool = False) -> None:
        try:
            if archive_first:
                await self.turn(after=after)
            else:
                await self.round(after)
        except Crash:
            await self.restart()

    async def restart(self) -> None:
        try:
            await self.start()
        except Crash:
            await self.start()

    def end_job(self, failed: bool) -> None:
        for job in self.jobs():
            if job["metadata"]["uid"] in self.ended or "deletionTimestamp" in job["metadata"]:
                continue
            self.ended.add(job["metadata"]["uid"])
            if not failed:
                self.succeeded[job["metadata"]["labels"].get(OPERATION_LABEL, "")] += 1
            self.end(failed="no" if failed else "", records=0 if failed else RECORDS, sent=1)

    def delete(self, kind: str, name: str) -> None:
        """Somebody deletes an operation."""
        self.deleted.add((kind, "shop", name))
        stored = self.cluster.objects.get((KNAFKA, kind, "shop", name))
        if stored is not None and is_finished(stored.get("status") or {}):
            self.unrecorded += sum(
                job["metadata"]["labels"].get(OPERATION_LABEL) == stored["metadata"]["uid"]
                and not is_recorded(job, self.status())
                for job in self.jobs()
            )
        self.cluster.remove(KNAFKA, kind, "shop", name)

    def lose_job(self) -> None:
        """Somebody deletes it, before or after it has ended but before anybody has seen that."""
        for job in self.jobs():
            if job["metadata"]["uid"] not in self.ended:
                name = job["metadata"]["name"]
                self.cluster.remove("batch/v1", "Job", "shop", name)

    def is_quiet(self) -> bool:
        there = [each for kind in (REPLAY, PURGE) for each in self.cluster.of(kind)]
        ended = all(is_finished(each.get("status") or {}) for each in there)
        idle = self.status().get("phase") == "Idle"
        return ended and idle and not self.jobs() and not self.leases()


STEPS = st.one_of(
    st.tuples(st.just("turn"), st.floats(1, 400)),
    st.tuples(st.just("archive"), st.floats(1, 400)),
    st.tuples(st.just("crash"), st.tuples(st.sampled_from(["before", "after"]), st.integers(1, 9))),
    st.tuples(st.just("end"), st.booleans()),
    st.tuples(st.just("bury"), st.integers(1, 3)),
    st.tuples(st.just("lose"), st.none()),
    st.tuples(st.just("delete"), st.sampled_from(OPERATIONS)),
    st.tuples(st.just("restart"), st.none()),
)


DELETED_BEFORE_IT_IS_RECORDED: Final = (
    ("turn", 1.0),
    ("turn", 1.0),
    ("end", False),
    ("crash", ("before", 2)),
    ("delete", (REPLAY, "one")),
)


@settings(max_examples=examples(40), deadline=None)
@example(DELETED_BEFORE_IT_IS_RECORDED)
@given(st.lists(STEPS, max_size=40))
def test_each_is_done_once_or_has_failed_whatever_dies(
    steps: Sequence[tuple[str, Any]],
) -> None:
    asyncio.run(_each_is_done_once(steps))


async def _each_is_done_once(steps: Sequence[tuple[str, Any]]) -> None:
    world = World()
    await world.begin()
    for name, value in steps:
        match name:
            case "turn":
                await world.step(value)
            case "archive":
                await world.step(value, archive_first=True)
            case "crash":
                world.crashing.at = value
                await world.step(11)
            case "end":
                world.end_job(failed=value)
            case "bury":
                world.bury(value)
            case "lose":
                world.lose_job()
            case "restart":
                await world.restart()
            case _:
                world.delete(*value)
        world.check()
    world.crashing.at = None
    for _ in range(60):
        world.end_job(failed=False)
        await world.round(after=150)
        if world.is_quiet():
            break
    assert (world.jobs(), world.leases(), world.status()["phase"]) == ([], [], "Idle")
    recorded = world.succeeded.total() - world.unrecorded
    assert world.status().get("archived", 0) == RECORDS * recorded
    for kind, name in OPERATIONS:
        there = (KNAFKA, kind, "shop", name) in world.cluster.objects
        assert there == ((kind, "shop", name) not in world.deleted)
        if there:
            told = world.told(kind, name)
            assert is_finished(told)
            uid = world.cluster.objects[KNAFKA, kind, "shop", name]["metadata"]["uid"]
            assert world.succeeded[uid] == (told["phase"] == "Succeeded")
            assert told["attempts"] == MAX_ATTEMPTS or told["phase"] == "Succeeded"
    await world.inner.operator.close()
