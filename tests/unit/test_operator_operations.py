"""DeadLetterReplays and DeadLetterPurges on a cluster in memory: each is done once, by Jobs of its
archive, and says what became of it (issue 18)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest
from support.archives_world import BUCKET, NEVER, ArchivesWorld, ready_world
from support.crashing import Crash, Crashing, moments
from support.operator_world import condition

from knafka_jobs import pod
from knafka_operator.archives.model import ARCHIVE
from knafka_operator.archives.operation_decide import MAX_ATTEMPTS, ObservedOperation, decide
from knafka_operator.archives.operation_model import MAX_IDS, PURGE, REPLAY, parse_operation
from knafka_operator.archives.runs import parse_run_report
from knafka_operator.model.resources import CORE
from knafka_operator.model.sensors import KNAFKA

MINUTE = 60.0


@pytest.fixture
async def world() -> Any:
    world = await ready_world()
    world.declare(**NEVER)
    yield world
    await world.inner.operator.close()


def given(job: Mapping[str, Any]) -> Any:
    """What its pod is asked for, as the pod understands it."""
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return pod._pod_parser().parse_args(container["args"])


def says(world: ArchivesWorld, kind: str, name: str, type_: str = "Succeeded") -> tuple[str, str]:
    found = condition(world.told(kind, name), type_)
    return found["status"], found.get("reason", "")


# -- what is done


async def test_a_replay_is_done_by_a_job_of_its_archive_and_says_what_it_sent(
    world: ArchivesWorld,
) -> None:
    select = {"trigger": "orders", "code": 503, "summary": ""}
    replay = world.ask(REPLAY, "again", select=select, rate=10)
    await world.rounds()
    assert world.job()["metadata"]["name"] == "kept-1"
    assert world.leases() == [
        f"shop/kept/{world.cluster.objects[KNAFKA, ARCHIVE, 'shop', 'kept']['metadata']['uid']}"
    ]
    assert (world.told(REPLAY, "again")["phase"], world.told(REPLAY, "again")["job"]) == (
        "Running",
        "kept-1",
    )
    (owner,) = world.job()["metadata"]["ownerReferences"]
    assert owner["uid"] == replay["metadata"]["uid"], "it goes with it, whoever deletes that"
    asked = given(world.job())
    assert (asked.command, asked.replay_id, asked.rate) == ("replay", replay["metadata"]["uid"], 10)
    assert asked.by == "shop/again"
    assert (asked.select["trigger"], asked.select["code"]) == ("orders", 503)
    assert asked.select["summary"] == "", "only failures without an error text"
    world.end(records=0, replay=replay["metadata"]["uid"], sent=7)
    await world.rounds()
    told = world.told(REPLAY, "again")
    assert (told["phase"], told["sent"], told["attempts"]) == ("Succeeded", 7, 0)
    assert told["replayID"] == replay["metadata"]["uid"]
    assert told["startTime"] <= told["completionTime"]
    assert says(world, REPLAY, "again") == ("True", "")
    assert (world.jobs(), world.leases(), world.most_jobs) == ([], [], 1)
    await world.rounds(after=3_600)
    assert world.jobs() == [], "once"


async def test_a_purge_forgets_only_what_it_is_told_to(world: ArchivesWorld) -> None:
    world.ask(PURGE, "old", select={"until": "2025-06-01T00:00:00Z"}, unresolved=True)
    await world.rounds()
    asked = given(world.job())
    assert (asked.command, asked.unresolved, asked.dry_run) == ("purge", True, False)
    assert asked.select == {"until": "2025-06-01T00:00:00+00:00"}
    world.end(records=0, purged=3)
    await world.rounds()
    assert world.told(PURGE, "old")["purged"] == 3


async def test_a_dry_run_says_what_would_be_done(world: ArchivesWorld) -> None:
    world.ask(REPLAY, "try", dryRun=True)
    await world.rounds()
    assert given(world.job()).dry_run
    triggers = {"shop/default/orders": 3}
    world.end(would_send=3, left_out=1, triggers=triggers, events=[{"id": "1", "code": None}])
    await world.rounds()
    told = world.told(REPLAY, "try")
    assert (told["selected"], told["leftOut"], told["triggers"]) == (3, 1, triggers)
    assert told["events"] == [{"id": "1", "code": None}]
    assert "sent" not in told


async def test_neither_is_about_what_failed_after_it_was_made(world: ArchivesWorld) -> None:
    world.ask(PURGE, "all", unresolved=True)
    created = world.time
    await world.rounds(after=MINUTE)
    until = given(world.job()).select["until"]
    assert until == created.replace(second=created.second + 1).isoformat()


@pytest.mark.parametrize(("asked", "counts"), [(-60, -60), (60, 1)], ids=["earlier", "later"])
async def test_a_time_that_is_selected_counts_unless_it_is_after_the_operation(
    world: ArchivesWorld, asked: int, counts: int
) -> None:
    created = world.time.replace(microsecond=0)
    until = created + timedelta(seconds=asked)
    world.ask(PURGE, "all", unresolved=True, select={"until": until.isoformat()})
    await world.rounds(after=MINUTE)
    selected = datetime.fromisoformat(str(given(world.job()).select["until"]))
    assert selected == created + timedelta(seconds=counts)


async def test_kubernetes_expands_nothing_of_a_selection(world: ArchivesWorld) -> None:
    """Else `$(AWS_SECRET_ACCESS_KEY)` would become part of what the tables keep of a replay."""
    world.ask(REPLAY, "again", select={"summary": "$(AWS_SECRET_ACCESS_KEY) $$"})
    await world.rounds()
    (container,) = world.job()["spec"]["template"]["spec"]["containers"]
    assert "$" not in "".join(container["args"])
    assert given(world.job()).select["summary"] == "$(AWS_SECRET_ACCESS_KEY) $$"


async def test_what_its_job_compacts_counts_as_archived(world: ArchivesWorld) -> None:
    world.bury(5)
    await world.rounds(1)
    assert world.status()["waiting"] == 5
    world.ask(REPLAY, "again")
    await world.rounds()
    world.end(records=5, missed=0, sent=5)
    await world.rounds()
    status = world.status()
    assert (status["waiting"], status["archived"], status["run"]) == (0, 5, 1)
    assert status["lastOperation"]["of"] == f"{REPLAY}/again"
    assert status["lastOperation"]["outcome"] == "Succeeded"
    assert "lastRun" not in status


async def test_its_job_stays_until_it_has_told_how_that_ended(world: ArchivesWorld) -> None:
    """Nothing else knows."""
    world.ask(REPLAY, "again")
    await world.rounds()
    world.end(records=0, sent=3)
    await world.turns()
    assert world.status()["lastOperation"]["outcome"] == "Succeeded"
    assert len(world.jobs()) == 1
    await world.rounds()
    assert world.told(REPLAY, "again")["sent"] == 3
    assert world.jobs() == []


# -- what it waits for


async def test_without_an_archive_it_says_what_to_do_and_begins_once_there_is_one(
    world: ArchivesWorld,
) -> None:
    world.ask(REPLAY, "again", archive="other")
    await world.rounds(archives=())
    told = world.told(REPLAY, "again")
    assert told["phase"] == "Pending"
    assert "DeadLetterArchive other does not exist in shop: make it" in told["message"]
    assert says(world, REPLAY, "again") == ("Unknown", "ArchiveDoesNotExist")
    world.declare("other", storage=BUCKET, **NEVER)
    await world.rounds(archives=("other",))
    assert world.job()["metadata"]["name"] == "other-1"


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"broker": "none"}, "BrokerDoesNotExist"),
        ({"storage": {"claim": {"name": "none"}}}, "ClaimDoesNotExist"),
    ],
    ids=["its Broker", "its claim"],
)
async def test_an_archive_that_is_not_ready_is_told_of_with_its_reason(
    world: ArchivesWorld, spec: Mapping[str, Any], why: str
) -> None:
    world.declare("broken", **{**NEVER, **spec})
    world.ask(REPLAY, "again", archive="broken")
    await world.rounds(archives=("broken",))
    assert says(world, REPLAY, "again", "ArchiveReady") == ("Unknown", "ArchiveNotReady")
    assert why in world.told(REPLAY, "again")["message"]
    assert world.jobs() == []


async def test_while_its_archive_runs_it_is_queued(world: ArchivesWorld) -> None:
    world.declare(compaction={"number": 1})
    world.bury()
    await world.turns()
    world.ask(REPLAY, "again")
    await world.rounds()
    told = world.told(REPLAY, "again")
    assert (told["phase"], told["message"]) == ("Queued", "Job kept-1 of its archive runs")
    assert says(world, REPLAY, "again") == ("Unknown", "Queued")
    world.end(records=1)
    await world.rounds()
    assert world.job()["metadata"]["name"] == "kept-2"
    assert given(world.job()).command == "replay"
    assert world.most_jobs == 1


async def test_nothing_is_begun_for_one_that_has_not_said_that_it_is_queued(
    world: ArchivesWorld,
) -> None:
    """It has no finalizer yet, or is on its way out: its Job could outlive it."""
    stored = world.ask(REPLAY, "again")
    world.controller.kinds[REPLAY].on_change(stored, gone=False)
    await world.turns()
    assert world.jobs() == []
    await world.rounds(1, archives=())
    world.cluster.remove(KNAFKA, REPLAY, "shop", "again")
    await world.turns()
    assert world.jobs() == []


async def test_the_oldest_is_next_whatever_its_kind(world: ArchivesWorld) -> None:
    asked = [(REPLAY, "c"), (PURGE, "b"), (REPLAY, "a")]
    for kind, name in asked:
        world.ask(kind, name)
        await world.round(archives=())
    await world.start()  # which hears of them by their kinds
    done = []
    for _ in asked:
        await world.rounds()
        done.append(world.job()["metadata"]["annotations"]["knafka.dev/operation-name"])
        world.end(records=0)
    assert done == [f"{kind}/{name}" for kind, name in asked]


async def test_what_was_made_in_one_second_is_replayed_before_it_is_purged(
    world: ArchivesWorld,
) -> None:
    """As by one `kubectl apply -f` of both: Kubernetes tells seconds."""
    asked = [(PURGE, "b"), (REPLAY, "c"), (PURGE, "a"), (REPLAY, "d")]
    for kind, name in asked:
        world.ask(kind, name)
    await world.start()
    done = []
    for _ in asked:
        await world.rounds()
        done.append(world.job()["metadata"]["annotations"]["knafka.dev/operation-name"])
        world.end(records=0)
    assert [each.partition("/")[0] for each in done] == [REPLAY, REPLAY, PURGE, PURGE]


async def test_many_operations_and_the_archive_take_turns(world: ArchivesWorld) -> None:
    world.declare(compaction={"number": 1})
    for number in range(3):
        world.ask(REPLAY, f"again-{number}")
        await world.round(archives=())
    commands = []
    for _ in range(6):
        world.bury()  # there always is something to compact
        await world.rounds()
        commands.append(given(world.job()).command)
        world.end(records=1)
    assert commands == ["archive", "replay"] * 3


async def test_a_job_that_does_not_start_is_told_of(world: ArchivesWorld) -> None:
    world.ask(REPLAY, "again")
    await world.rounds()
    labels = {"batch.kubernetes.io/job-name": "kept-1"}
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    status = {"containerStatuses": [{"name": "archive", "state": state}]}
    world.put(CORE, "Pod", "kept-1-x", metadata={"labels": labels}, status=status)
    await world.rounds(1)
    assert says(world, REPLAY, "again") == ("Unknown", "JobNotStarted")
    assert "ImagePullBackOff" in world.told(REPLAY, "again")["message"]


# -- Jobs that fail


async def test_a_replay_that_fails_goes_on_later_as_the_same_replay(world: ArchivesWorld) -> None:
    world.ask(REPLAY, "again", select={"ids": ["1", "2"]})
    arguments, waited = [], []
    for number in (1, 2):
        await world.rounds()
        arguments.append(vars(given(world.job())))
        world.end(failed="Kafka is away")
        await world.rounds(2, after=1)
        failed = world.time
        told = world.told(REPLAY, "again")
        assert (told["phase"], told["attempts"]) == ("Queued", number)
        assert f"attempt {number} of {MAX_ATTEMPTS} failed: Kafka is away" in told["message"]
        assert says(world, REPLAY, "again") == ("Unknown", "Retrying")
        assert world.leases() == [], "others may have the tables meanwhile"
        while not world.jobs():
            await world.round(after=5)
        waited.append((world.time - failed).total_seconds())
    assert [round(each, -1) for each in waited] == [60, 120]
    assert arguments[0] == arguments[1] == vars(given(world.job()))
    world.end(records=0, sent=2)
    await world.rounds()
    told = world.told(REPLAY, "again")
    assert (told["phase"], told["attempts"], told["message"]) == ("Succeeded", 2, "")


async def test_an_attempt_counts_once_however_long_its_job_takes_to_go(
    world: ArchivesWorld,
) -> None:
    world.ask(REPLAY, "again")
    await world.rounds()
    world.end(failed="Kafka is away")
    world.cluster.set_finalizers("batch/v1", "Job", "shop", "kept-1", "foregroundDeletion")
    await world.rounds(6, after=1)
    assert len(world.jobs()) == 1
    assert world.told(REPLAY, "again")["attempts"] == 1


async def test_after_so_many_attempts_it_has_failed_and_its_archive_has_not(
    world: ArchivesWorld,
) -> None:
    world.ask(REPLAY, "again")
    for _ in range(MAX_ATTEMPTS):
        while not world.jobs():
            await world.round()
        world.end(failed="no such topic")
        await world.rounds(2)
    told = world.told(REPLAY, "again")
    assert (told["phase"], told["attempts"]) == ("Failed", MAX_ATTEMPTS)
    assert told["message"].endswith("the last with: no such topic")
    assert says(world, REPLAY, "again") == ("False", "JobFailed")
    assert told["completionTime"]
    await world.rounds(after=86_400)
    assert (world.jobs(), world.leases()) == ([], [])
    assert world.says("Ready") == ("True", "")
    assert world.status()["phase"] == "Idle"


async def test_one_that_waits_for_its_next_attempt_keeps_nobody_waiting(
    world: ArchivesWorld,
) -> None:
    world.ask(REPLAY, "first")
    await world.rounds()
    world.ask(REPLAY, "second")
    world.end(failed="Kafka is away")
    await world.rounds(3, after=2)
    assert world.told(REPLAY, "second")["phase"] == "Running"


async def test_a_job_that_somebody_deletes_is_made_again(world: ArchivesWorld) -> None:
    world.ask(REPLAY, "again")
    await world.rounds()
    world.cluster.remove("batch/v1", "Job", "shop", "kept-1")
    await world.rounds()
    assert given(world.job()).replay_id == world.told(REPLAY, "again")["replayID"]
    assert world.told(REPLAY, "again")["attempts"] == 0


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"select": {"where": "1 = 1"}}, "spec.select.where: unknown field"),
        ({"select": {"reason": "hunger"}}, "spec.select.reason"),
        ({"select": {"since": "yesterday"}}, "want a time such as 2026-01-31T12:00:00Z"),
        ({"select": {"since": "0001-01-01T00:00:00+14:00"}}, "want a time such as 2026-01-31"),
        ({"select": {"ids": ["x"] * (MAX_IDS + 1)}}, "spec.select.ids"),
        ({"select": {"ids": ["x" * 100_000]}}, "has more than 100000 bytes as JSON"),
        # A process gets no argument of more than 128 KiB, and each of these is 6 or 12 bytes there.
        ({"select": {"ids": ["$" * 20_000]}}, "has more than 100000 bytes as JSON"),
        ({"select": {"summary": "\U0001f4b8" * 10_000}}, "has more than 100000 bytes as JSON"),
        ({"rate": 0}, "spec.rate"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_cannot_be_understood_has_failed_and_says_why(
    world: ArchivesWorld, spec: Mapping[str, Any], told: str
) -> None:
    world.ask(REPLAY, "again", **spec)
    await world.rounds()
    assert world.told(REPLAY, "again")["phase"] == "Failed"
    assert told in world.told(REPLAY, "again")["message"]
    assert says(world, REPLAY, "again") == ("False", "Invalid")
    assert world.jobs() == []


# -- its end


async def test_deleted_while_its_job_runs_it_goes_after_the_job(world: ArchivesWorld) -> None:
    world.ask(REPLAY, "again")
    await world.rounds()
    world.cluster.set_finalizers("batch/v1", "Job", "shop", "kept-1", "foregroundDeletion")
    world.cluster.remove(KNAFKA, REPLAY, "shop", "again")
    await world.rounds(2)
    assert "deletionTimestamp" in world.job()["metadata"]
    assert world.leases() != [], "nobody else may begin yet"
    world.cluster.set_finalizers("batch/v1", "Job", "shop", "kept-1")
    await world.rounds()
    assert (world.jobs(), world.leases()) == ([], [])
    assert (KNAFKA, REPLAY, "shop", "again") not in world.cluster.objects


async def test_an_archive_that_is_deleted_ends_the_job_and_the_replay_waits_for_another(
    world: ArchivesWorld,
) -> None:
    world.ask(REPLAY, "again")
    await world.rounds()
    world.cluster.remove(KNAFKA, ARCHIVE, "shop", "kept")
    await world.rounds()
    assert (world.jobs(), world.leases()) == ([], [])
    assert world.told(REPLAY, "again")["phase"] == "Pending"
    world.declare(**NEVER)
    await world.rounds()
    assert world.told(REPLAY, "again")["phase"] == "Running"


async def test_one_that_has_ended_goes_at_once_whether_an_operator_runs_or_not(
    world: ArchivesWorld,
) -> None:
    """Else its namespace could not be deleted once archives are not run any more."""
    world.ask(REPLAY, "again")
    await world.rounds()
    world.end(records=0, sent=0)
    await world.rounds()
    world.cluster.remove(KNAFKA, REPLAY, "shop", "again")
    assert (KNAFKA, REPLAY, "shop", "again") not in world.cluster.objects


async def test_one_that_has_ended_stays_unless_it_says_for_how_long(world: ArchivesWorld) -> None:
    world.ask(REPLAY, "stays")
    world.ask(REPLAY, "goes", ttlSecondsAfterFinished=600)
    for _ in range(2):
        await world.rounds()
        world.end(records=0, sent=0)
        await world.rounds(2, after=1)
    await world.round(after=500)
    assert world.told(REPLAY, "goes")["phase"] == "Succeeded"
    await world.rounds(2, after=100)
    assert (KNAFKA, REPLAY, "shop", "goes") not in world.cluster.objects
    await world.rounds(after=1_000_000)
    assert world.told(REPLAY, "stays")["phase"] == "Succeeded"


async def test_one_that_is_to_stay_longer_than_there_are_years_ends_and_holds_up_no_other(
    world: ArchivesWorld,
) -> None:
    world.ask(REPLAY, "stays", ttlSecondsAfterFinished=10**13)
    await world.rounds()
    world.ask(REPLAY, "next")
    world.end(records=0, sent=1)
    await world.rounds(3)
    assert world.told(REPLAY, "stays")["phase"] == "Succeeded"
    assert world.told(REPLAY, "next")["phase"] == "Running"


def test_one_that_stays_for_a_time_is_looked_at_again_when_that_is_over() -> None:
    """Not each second till then."""
    document = {
        "apiVersion": KNAFKA,
        "kind": REPLAY,
        "metadata": {
            "namespace": "shop",
            "name": "goes",
            "creationTimestamp": "2026-11-25T11:00:00Z",
        },
        "spec": {"archive": "kept", "ttlSecondsAfterFinished": 600},
        "status": {"phase": "Succeeded", "completionTime": "2026-11-25T12:00:00Z"},
    }
    seen = ObservedOperation(document, parse_operation(document))
    noon = datetime(2026, 11, 25, 12, tzinfo=UTC)
    soon, later = (
        decide(seen, noon + timedelta(seconds=60)),
        decide(seen, noon + timedelta(hours=1)),
    )
    assert (soon.effects, soon.requeue_after) == ((), 540)
    assert later.effects


@pytest.mark.parametrize("moment", [*islice(moments(), 19)], ids=str)
async def test_whatever_effect_kills_the_operator_a_replay_is_done_once(
    moment: tuple[str, int],
) -> None:
    crashing = Crashing(lambda: None)
    world = await ready_world(crashing)
    world.declare(storage=BUCKET, executors=2, **NEVER)
    world.ask(REPLAY, "again")
    made: list[str] = []
    crashing.at = moment

    async def rounds() -> None:
        for _ in range(5):
            try:
                await world.round()
            except Crash:
                await world.start()
            made.extend(each["metadata"]["uid"] for each in world.jobs())

    await rounds()
    world.end(records=4, sent=4)
    await rounds()
    await rounds()
    assert len(set(made)) == 1
    told = world.told(REPLAY, "again")
    assert (told["phase"], told["sent"], told["attempts"]) == ("Succeeded", 4, 0)
    assert (world.status()["archived"], world.status()["run"]) == (4, 1)
    assert (world.jobs(), world.leases(), world.most_jobs) == ([], [], 1)
    world.cluster.remove(KNAFKA, REPLAY, "shop", "again")
    await rounds()
    assert (KNAFKA, REPLAY, "shop", "again") not in world.cluster.objects
    await world.inner.operator.close()


async def test_those_that_have_ended_cost_nothing(world: ArchivesWorld) -> None:
    for number in range(300):
        world.ask(REPLAY, f"done-{number}")
        stored = world.cluster.objects[KNAFKA, REPLAY, "shop", f"done-{number}"]
        stored["status"] = {"phase": "Succeeded", "completionTime": "2026-01-01T00:00:00Z"}
    await world.round()
    asked = dict(world.cluster.requests)
    await world.turns(10)
    assert world.cluster.requests["list"] == asked["list"]
    assert world.cluster.requests["write_status"] == asked["write_status"]
    assert world.cluster.requests["get"] - asked["get"] < 100


# -- what the pod makes of it


def test_the_pods_message_always_fits_and_can_be_read() -> None:
    events = [{"id": "x" * 300, "source": "y" * 300} for _ in range(20)]
    triggers = {f"shop/default/trigger-{number}": number for number in range(500)}
    found = {"would_send": 5, "triggers": triggers, "events": events}
    told = json.loads(pod.termination_message(found))
    assert told["would_send"] == 5
    assert len(pod.termination_message(found)) <= pod.MAX_MESSAGE_CHARACTERS
    assert told["triggers"]


@pytest.mark.parametrize(
    "answer",
    [
        # Of a thousand Triggers that were deleted; each problem has a sentence of its own.
        {"sent": 5, "left_out": 1000, "problems": [f"shop/main/t: {'x' * 200}"] * 99},
        {"error": "\U0001f4b8" * 1700},
    ],
    ids=["problems", "error"],
)
def test_the_operator_reads_the_counts_and_the_error_however_long_the_rest_is(
    answer: Mapping[str, Any],
) -> None:
    message = pod.termination_message(answer)
    assert len(message) <= pod.MAX_MESSAGE_CHARACTERS
    report = parse_run_report(message)
    for name in ("sent", "left_out"):
        assert report.get(name) == answer.get(name)
    assert bool(report.get("problems")) == ("problems" in answer)
    assert answer.get("error", "").startswith(report.get("error", ""))
    assert bool(report.get("error")) == ("error" in answer)
