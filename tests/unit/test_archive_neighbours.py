"""An archive holds up no archive of another namespace, and nobody for years (issue 29)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.archives_world import BUCKET, ArchivesWorld, ready_world
from support.operator_world import SETTINGS

from knafka.core import names
from knafka.core.errors import InvalidDocument
from knafka_operator.archives import manifests
from knafka_operator.archives.manifests import COORDINATION
from knafka_operator.archives.model import ARCHIVE
from knafka_operator.installation.settings import Settings
from knafka_operator.model.maxima import Maxima
from knafka_operator.model.sensors import KNAFKA

pytestmark = pytest.mark.looptime


@pytest.fixture
async def world() -> AsyncIterator[ArchivesWorld]:
    world = await ready_world()
    yield world
    await world.inner.operator.close()


def held_by(world: ArchivesWorld, holder: str, name: str) -> dict[str, Any]:
    lease = manifests.lease_manifest(BUCKET["url"], holder, world.time, SETTINGS)
    namespace, archive, uid = holder.split("/")
    metadata = {"namespace": namespace, "name": archive, "uid": uid}
    document = {"apiVersion": KNAFKA, "kind": ARCHIVE, "metadata": metadata}
    world.cluster.put(document)
    return world.cluster.put({**lease, "metadata": {**lease["metadata"], "name": name}})


async def test_an_archive_elsewhere_that_names_the_same_bucket_holds_up_nobody(
    world: ArchivesWorld,
) -> None:
    """Its Job never started, and its neighbour was Queued for 200 h."""
    held_by(world, "evil/other/uid-o", names.archive_lease("evil", BUCKET["url"]))
    world.declare(storage=BUCKET, compaction={"number": 1})
    world.bury()
    await world.turns()
    assert world.job()["metadata"]["name"] == "kept-1"


async def test_an_archive_of_the_same_namespace_waits_for_the_job_of_its_neighbour(
    world: ArchivesWorld,
) -> None:
    name = names.archive_lease("shop", BUCKET["url"])
    held_by(world, "shop/other/uid-o", name)
    world.declare(storage=BUCKET, compaction={"number": 1})
    world.bury()
    await world.turns()
    assert world.jobs() == []
    assert world.status()["phase"] == "Queued"
    world.cluster.remove(COORDINATION, "Lease", "knafka", name)
    await world.turns()
    assert world.job()["metadata"]["name"] == "kept-1"


async def test_a_job_may_not_be_asked_to_run_for_years(world: ArchivesWorld) -> None:
    world.declare(timeout="P3Y", compaction={"number": 1})
    world.bury()
    await world.turns()
    assert world.jobs() == []
    assert world.says("Ready") == ("False", "Invalid")
    world.declare(timeout="P2D", compaction={"number": 1})
    await world.turns()
    assert world.job()["spec"]["activeDeadlineSeconds"] == 172_800


def test_the_longest_time_of_a_job_is_a_setting() -> None:
    given = {"KNAFKA_NAMESPACE": "knafka", "KNAFKA_IMAGE": "registry/functions"}
    maxima = Settings.from_environment({**given, "KNAFKA_MAX_JOB_TIMEOUT": "60"}).maxima
    assert maxima == Maxima(job_timeout=60)
    with pytest.raises(InvalidDocument, match="want at most 60 seconds, as this") as it:
        maxima.check_job_timeout(61, "spec.timeout")
    assert it.value.path == "spec.timeout"
    with pytest.raises(InvalidDocument, match="KNAFKA_MAX_JOB_TIMEOUT"):
        Settings.from_environment({**given, "KNAFKA_MAX_JOB_TIMEOUT": "P3Y"})
