"""DeadLetterArchives on a cluster in memory: Jobs when there is something to do, one for each place
of tables at a time, and none that is left behind (issue 18)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import islice
from typing import Any

import pytest
from support.archives_world import AT_SIX, BUCKET, NEVER, ArchivesWorld, ready_world
from support.crashing import Crash, Crashing, moments
from support.operator_world import SETTINGS, condition

from knafka.core import names
from knafka.core.errors import LogError
from knafka_operator.archives import manifests
from knafka_operator.archives.decide import MAX_RETRY, retry_after
from knafka_operator.archives.manifests import BATCH_VERSION
from knafka_operator.archives.model import ARCHIVE, ARCHIVE_LABEL, RUN_ANNOTATION
from knafka_operator.engine.work_queue import BACK_OFF, GONE
from knafka_operator.model.cluster import Rejected
from knafka_operator.model.resources import CORE, RBAC
from knafka_operator.model.sensors import KNAFKA


@pytest.fixture
async def world() -> Any:
    world = await ready_world()
    yield world
    await world.inner.operator.close()


# -- when there is a Job


async def test_with_nothing_to_do_there_is_no_job_and_nobody_is_asked_for_any(
    world: ArchivesWorld,
) -> None:
    world.declare(report=AT_SIX)
    await world.turns(2)
    asked = world.cluster.requests["list"]
    await world.turn()
    for _ in range(48):
        await world.turn(after=3_600)
    assert world.jobs() == []
    assert world.leases() == []
    assert world.cluster.requests["list"] == asked
    assert world.status()["phase"] == "Idle"
    assert world.says("Ready") == ("True", "")


async def test_enough_dead_letters_start_a_job_and_its_outcome_is_told(
    world: ArchivesWorld,
) -> None:
    world.declare(compaction={"number": 3})
    world.bury(2)
    await world.turns()
    assert world.jobs() == []
    assert world.status()["waiting"] == 2
    world.bury()
    await world.turns()
    assert world.job()["metadata"]["name"] == "kept-1"
    assert world.leases() == [f"shop/kept/{world.job()['metadata']['labels'][ARCHIVE_LABEL]}"]
    assert (world.status()["phase"], world.status()["job"]) == ("Running", "kept-1")
    world.end(records=3, folded=3, missed=0)
    await world.turns()
    assert world.jobs() == []
    assert world.leases() == []
    status = world.status()
    assert (status["phase"], status["waiting"], status["archived"]) == ("Idle", 0, 3)
    assert status["lastRun"]["outcome"] == "Succeeded"
    assert status["lastRun"]["records"] == 3
    assert world.says("Ready") == ("True", "")


async def test_one_that_waits_too_long_starts_a_job_by_itself(world: ArchivesWorld) -> None:
    world.declare(compaction={"age": "PT10M"})
    world.bury()
    await world.turn()
    await world.start()
    assert await world.turn(after=580) == pytest.approx(20.0), "woken in time, not at the next look"
    assert world.jobs() == []
    await world.turn(after=20)
    assert len(world.jobs()) == 1


async def test_what_comes_while_a_job_runs_waits_for_the_next(world: ArchivesWorld) -> None:
    world.declare(compaction={"number": 2})
    world.bury(2)
    await world.turns()
    world.end(records=2)
    world.bury(5)
    await world.turns(1)
    await world.turns()
    assert world.job()["metadata"]["name"] == "kept-2"
    assert world.most_jobs == 1


async def test_dead_letters_of_other_brokers_are_no_concern_of_it(world: ArchivesWorld) -> None:
    world.declare(compaction={"number": 1})
    world.bury(topic=names.dead_letter_topic("shop", "default-b", "orders"))
    world.bury(topic=names.dead_letter_topic("shop-default", "orders", "x"))
    await world.turns()
    assert world.jobs() == []


async def test_a_report_is_made_when_it_is_due_once_there_is_anything(
    world: ArchivesWorld,
) -> None:
    world.declare(report=AT_SIX, **NEVER)
    world.bury()
    await world.turns()
    assert world.jobs() == [], "it is noon"
    await world.turn(after=18 * 3_600)
    arguments = world.job()["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--report" in arguments
    broker = world.cluster.objects["eventing.knative.dev/v1", "Broker", "shop", "default"]
    address = broker["status"]["address"]["url"]
    assert f"--announce={address}" in arguments
    world.end(records=1, report={"report": "abc", "failures": 1, "changes": {"new": 1}})
    await world.turns()
    made = {"made": "2026-01-01T12:00:00Z", "report": "abc", "failures": 1}
    assert world.status()["report"] == made


async def test_what_kept_a_report_from_people_is_told_until_one_reaches_them(
    world: ArchivesWorld,
) -> None:
    """A status is merged, so what isn't any more has to be taken away."""
    world.declare(report=AT_SIX, **NEVER)
    world.bury()
    await world.turns()
    for day, found in enumerate(({"notServed": "no ACL"}, {})):
        await world.turn(after=24 * 3_600)
        await world.turns(2)
        world.end(records=1, report={"report": f"r{day}", **found})
        await world.turns()
        told = world.status()["report"]
        assert (told["report"], told.get("notServed")) == (f"r{day}", found.get("notServed"))


async def test_an_annotation_has_it_run_once(world: ArchivesWorld) -> None:
    world.declare(annotations={RUN_ANNOTATION: "now"}, **NEVER)
    await world.turns()
    world.end(records=0)
    await world.turns(5)
    assert world.jobs() == []
    assert world.status()["requested"] == "now"
    world.declare(annotations={RUN_ANNOTATION: "again"}, **NEVER)
    await world.turns()
    assert len(world.jobs()) == 1


# -- Jobs that fail


async def test_a_job_that_fails_is_a_condition_and_is_tried_again_ever_later(
    world: ArchivesWorld,
) -> None:
    world.declare(compaction={"number": 1})
    world.bury()
    waited = []
    for number in range(1, 4):
        await world.turns()
        assert world.job()["metadata"]["name"] == f"kept-{number}"
        world.end(failed="the tables can't be read")
        await world.turn()
        failed = world.time
        assert world.says("Ready") == ("False", "JobFailed")
        assert "the tables can't be read" in condition(world.status(), "Ready")["message"]
        assert world.status()["phase"] == "Failing"
        assert world.leases() == [], "others may have the tables meanwhile"
        while not world.jobs():
            await world.turn(after=5)
        waited.append((world.time - failed).total_seconds())
    assert waited == [60, 120, 240]
    world.end(records=1)
    await world.turns()
    assert world.says("Ready") == ("True", "")
    assert world.status()["failures"] == 0


def test_the_wait_is_bounded_however_often_it_fails() -> None:
    assert retry_after(1) == 60
    assert retry_after(100_000) == MAX_RETRY


async def test_a_change_of_what_is_declared_is_tried_at_once(world: ArchivesWorld) -> None:
    world.declare(compaction={"number": 1})
    world.bury()
    await world.turns()
    world.end(failed="out of memory")
    await world.turns()
    assert world.jobs() == []
    world.declare(compaction={"number": 1}, resources={"limits": {"memory": "4Gi"}})
    await world.turns()
    assert len(world.jobs()) == 1


@pytest.mark.parametrize(
    ("pod", "job", "told"),
    [
        ({"reason": "OOMKilled"}, {}, "its container ended: OOMKilled"),
        ({"reason": "Error", "message": "x\nknafka: error: no\n"}, {}, "knafka: error: no"),
        (None, {"reason": "DeadlineExceeded", "message": "too long"}, "DeadlineExceeded too long"),
        (None, {}, "it failed"),
    ],
    ids=["killed", "its log", "too long", "nothing is known"],
)
async def test_why_a_job_failed_is_told_as_far_as_it_is_known(
    world: ArchivesWorld, pod: Mapping[str, Any] | None, job: Mapping[str, Any], told: str
) -> None:
    world.declare(compaction={"number": 1})
    world.bury()
    await world.turns()
    stored = copy.deepcopy(world.job())
    if pod is not None:
        labels = {manifests.JOB_NAME: stored["metadata"]["name"]}
        status = {"containerStatuses": [{"name": "archive", "state": {"terminated": pod}}]}
        world.put(CORE, "Pod", "x", metadata={"labels": labels}, status=status)
    stored["status"] = {"conditions": [{"type": "Failed", "status": "True", **job}]}
    world.cluster.put(stored)
    await world.turn()
    assert world.status()["lastRun"]["message"] == told


async def test_a_pod_that_does_not_start_is_a_condition(world: ArchivesWorld) -> None:
    world.declare(compaction={"number": 1})
    world.bury()
    await world.turns()
    labels = {manifests.JOB_NAME: "kept-1"}
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    status = {"containerStatuses": [{"name": "archive", "state": state}]}
    world.put(CORE, "Pod", "kept-1-x", metadata={"labels": labels}, status=status)
    await world.turn()
    assert world.says("Succeeded") == ("False", "JobNotStarted")
    assert "ImagePullBackOff" in condition(world.status(), "Succeeded")["message"]


# -- whose tables


async def test_two_archives_on_one_place_take_turns(world: ArchivesWorld) -> None:
    for name in ("one", "two"):
        world.declare(name, storage=BUCKET, compaction={"number": 1})
    world.bury()
    for name in ("one", "two") * 3:
        await world.turn(name)
    assert world.job()["metadata"]["name"] == "one-1"
    assert world.status("two")["phase"] == "Queued"
    world.end(records=1)
    for name in ("one", "two") * 3:
        await world.turn(name)
    assert world.job()["metadata"]["name"] == "two-1"
    assert world.most_jobs == 1


async def test_archives_on_other_places_do_not_wait_for_each_other(world: ArchivesWorld) -> None:
    for name in ("one", "two"):
        world.declare(name, storage={"url": f"s3a://bucket/{name}"}, compaction={"number": 1})
    world.bury()
    for name in ("one", "two") * 3:
        await world.turn(name)
    assert len(world.jobs()) == 2


async def test_the_lease_of_an_archive_that_is_no_more_is_taken_over(
    world: ArchivesWorld,
) -> None:
    """Its finalizer was taken away by hand, say."""
    lease = manifests.lease_manifest("s3a://bucket/shop", "shop/gone/uid-x", world.time, SETTINGS)
    world.cluster.put(lease)
    world.declare(storage=BUCKET, compaction={"number": 1})
    world.bury()
    labels = {ARCHIVE_LABEL: "uid-x"}
    world.put(BATCH_VERSION, "Job", "gone-1", metadata={"labels": labels}, spec={})
    await world.turns()
    assert world.status()["phase"] == "Queued", "its Job is there still"
    world.cluster.remove(BATCH_VERSION, "Job", "shop", "gone-1")
    await world.turns()
    assert world.job()["metadata"]["name"] == "kept-1"


async def test_a_job_of_that_name_that_is_not_its_own_is_left_alone(world: ArchivesWorld) -> None:
    world.declare(compaction={"number": 1})
    world.put(BATCH_VERSION, "Job", "kept-1", spec={"mine": True})
    world.bury()
    await world.turns()
    assert world.says("Ready") == ("False", "JobNotOurs")
    assert world.job()["spec"] == {"mine": True}


# -- what stands in the way


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"storage": {"claim": {"name": "other"}}}, "ClaimDoesNotExist"),
        ({"executors": 2}, "ClaimNotShared"),
        ({"storage": {**BUCKET, "endpoint": "http://169.254.169.254"}}, "EndpointNotAllowed"),
        ({"storage": {**BUCKET, "credentials": {"name": "none"}}}, "CredentialsNotFound"),
        ({"storage": {**BUCKET, "credentials": {"name": "half"}}}, "CredentialsIncomplete"),
        ({"storage": {}}, "Invalid"),
        ({"broker": "other"}, "BrokerDoesNotExist"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_stands_in_the_way_is_a_condition_and_there_is_no_job(
    world: ArchivesWorld, spec: Mapping[str, Any], reason: str
) -> None:
    world.inner.declare_secret("shop", "half", AWS_ACCESS_KEY_ID="me")
    world.declare(**{"compaction": {"number": 1}, **spec})
    world.bury()
    assert await world.turn() is BACK_OFF
    assert world.says("Ready") == ("False", reason)
    assert world.jobs() == []
    assert world.leases() == []


async def test_a_kafka_that_is_away_is_a_condition(world: ArchivesWorld) -> None:
    world.declare(compaction={"number": 1})
    world.inner.kafka_failures["topics"] = LogError("nobody there")
    await world.turn()
    assert world.says("TopicsRead") == ("False", "KafkaNotReachable")


async def test_what_the_api_server_refuses_is_a_condition_and_tried_again(
    world: ArchivesWorld,
) -> None:
    world.declare(compaction={"number": 1})
    world.bury()
    world.cluster.refuse("create", "Job", error=Rejected("no: quota"))
    assert isinstance(await world.turn(), float)
    assert world.says("Ready") == ("False", "JobRejected")
    world.cluster.permit()
    await world.turn()
    assert len(world.jobs()) == 1


async def test_without_an_image_there_is_nothing(world: ArchivesWorld) -> None:
    await world.start(image="")
    world.declare(compaction={"number": 1})
    assert await world.controller.reconcile((ARCHIVE, "shop", "kept")) is GONE
    assert world.status() == {}


# -- its end


async def test_deleted_while_its_job_runs_it_goes_after_the_job(world: ArchivesWorld) -> None:
    world.declare(compaction={"number": 1})
    world.bury()
    await world.turns()
    # As Kubernetes does it: the Job is there until its pods have ended.
    world.cluster.set_finalizers(BATCH_VERSION, "Job", "shop", "kept-1", "foregroundDeletion")
    world.cluster.remove(KNAFKA, ARCHIVE, "shop", "kept")
    await world.turn()
    assert "deletionTimestamp" in world.job()["metadata"]
    assert world.leases() != [], "nobody else may begin yet"
    world.cluster.set_finalizers(BATCH_VERSION, "Job", "shop", "kept-1")
    await world.turns(2)
    assert world.jobs() == []
    assert world.leases() == []
    assert not any(each.startswith("knafka-archive-") for each in world.inner.log.groups)
    assert (KNAFKA, ARCHIVE, "shop", "kept") not in world.cluster.objects


@pytest.mark.parametrize("moment", [*islice(moments(), 13)], ids=str)
async def test_whatever_effect_kills_the_operator_no_job_is_made_or_counted_twice(
    moment: tuple[str, int],
) -> None:
    crashing = Crashing(lambda: None)
    world = await ready_world(crashing)
    world.declare(storage=BUCKET, compaction={"number": 1}, executors=2)
    world.bury(7)
    crashing.at = moment

    async def turns() -> None:
        for _ in range(4):
            try:
                await world.turn()
            except Crash:
                await world.start()

    await turns()
    assert world.job()["metadata"]["name"] == "kept-1"
    world.end(records=7)
    await turns()
    await turns()
    assert (world.jobs(), world.leases(), world.most_jobs) == ([], [], 1)
    assert world.status()["archived"] == 7
    assert world.status()["run"] == 1
    world.cluster.remove(KNAFKA, ARCHIVE, "shop", "kept")
    await turns()
    assert (KNAFKA, ARCHIVE, "shop", "kept") not in world.cluster.objects
    await world.inner.operator.close()


async def test_nobody_hears_of_every_lease_of_the_cluster(
    world: ArchivesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They change every other second, and the operator's role doesn't list them."""
    watched: list[str] = []
    monkeypatch.setattr(world.controller, "_watch", lambda of: watched.append(of.kind))
    for of in (
        *((CORE, "PersistentVolumeClaim"), (manifests.COORDINATION, "Lease")),
        *((CORE, "ServiceAccount"), (RBAC, "RoleBinding")),
    ):
        world.controller._watch_kind(*of)
    assert watched == ["PersistentVolumeClaim"]


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.looptime  # what was seen counts for some seconds
async def test_a_thousand_archives_cost_a_look_at_kafka_and_no_more(world: ArchivesWorld) -> None:
    called: list[str] = []
    for number in range(1_000):
        world.declare(f"kept-{number}", storage={"url": f"s3a://bucket/{number}"}, **NEVER)
    world.bury()
    for number in range(1_000):
        await world.controller.reconcile((ARCHIVE, "shop", f"kept-{number}"))
    before, world.inner._seen = dict(world.cluster.requests), lambda when, call: called.append(call)
    for number in range(1_000):
        await world.controller.reconcile((ARCHIVE, "shop", f"kept-{number}"))
    assert world.jobs() == []
    assert world.cluster.requests["list"] == before["list"]
    assert world.cluster.requests["write_status"] == before["write_status"]
    assert called == [], "one look at Kafka serves all"
