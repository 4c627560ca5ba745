"""The commands about groups, from a laptop, on the tables of a cluster's archive in a bucket."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from support.api_server import ApiServer, api_server, kubeconfig
from support.s3 import Bucket
from support.tables_without_spark import failure, record, write_failures, write_records
from typer.testing import CliRunner, Result

from knafka_cli.command_line import app
from knafka_jobs.failure_groups import group_id
from knafka_jobs.io.table_files import TableFiles
from knafka_jobs.schema import REPLAYS
from knafka_operator.model.sensors import KNAFKA

GROUP = group_id("shop", "main", "mail", "http://mail/", "status", 503, "no money")
STARTED = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Laptop:
    """A kubeconfig, and nothing else that tells where tables are."""

    def __init__(self, server: ApiServer, config: Path) -> None:
        self.server = server
        self.config = config

    def run(self, *words: str) -> Result:
        where = ("--kubeconfig", str(self.config), "-n", "shop")
        return CliRunner().invoke(app, ["dead-letters", *words, *where])

    def lines(self, *words: str) -> list[str]:
        result = self.run(*words)
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()


@pytest.fixture
def laptop(bucket: Bucket, tmp_path: Path) -> Iterator[Laptop]:
    rows = [failure("one"), failure("two", offset=1), failure("bill", offset=2, trigger="bill")]
    local = tmp_path / "tables"
    write_failures(local, *rows)
    write_records(local, *map(record, rows))
    for name in ("failures", "records"):
        query = QueryBuilder().register(name, DeltaTable(local / name))
        write_deltalake(
            f"s3://{bucket.name}/kept/{name}",
            query.execute(f"SELECT * FROM {name}"),
            mode="overwrite",
            storage_options={**bucket.environment, "AWS_ALLOW_HTTP": "true"},
        )
    with api_server() as (server, client):
        server.kinds[KNAFKA] = {
            "DeadLetterArchive": "deadletterarchives",
            "DeadLetterReplay": "deadletterreplays",
        }
        storage = {
            "url": f"{bucket.url}/kept",
            "endpoint": "http://s3.of-the-cluster.invalid",
            "credentials": {"name": "keys"},
        }
        server.put(KNAFKA, "DeadLetterArchive", "shop", "kept", spec={"storage": storage})
        keys = {
            name: base64.b64encode(value.encode()).decode()
            for name, value in bucket.environment.items()
            if "KEY" in name
        }
        server.put("v1", "Secret", "shop", "keys", data=keys)
        yield Laptop(server, kubeconfig(tmp_path, client.configuration.host))


def test_groups_of_an_archive_are_listed_acknowledged_and_exported_from_a_laptop(
    laptop: Laptop, bucket: Bucket, tmp_path: Path
) -> None:
    at = ("--endpoint", bucket.endpoint)
    assert [line.split()[1] for line in laptop.lines("list", "mail", "--groups", *at)[1:]] == [
        "shop/mail"
    ]
    assert laptop.lines("acknowledge", GROUP, "--note", "ours", *at) == [f"acknowledged: {GROUP}"]
    (line,) = laptop.lines("list", "mail", "--groups", *at)[1:]
    assert line.endswith(": ours")
    laptop.lines("unacknowledge", GROUP, *at)
    (line,) = laptop.lines("list", "mail", "--groups", *at)[1:]
    assert "ours" not in line

    events = laptop.lines("events", GROUP, "--json", *at)
    assert sorted(json.loads(each)["id"] for each in events) == ["one", "two"]
    target = tmp_path / "failed.ndjson"
    assert laptop.lines("export", GROUP, "-o", str(target), *at) == [
        f"2 events written to {target}"
    ]
    assert len(target.read_text().splitlines()) == 2


def test_a_replay_of_an_archive_is_cancelled_by_its_objects_name(
    laptop: Laptop, bucket: Bucket
) -> None:
    metadata = {"uid": "uid-7"}
    laptop.server.put(KNAFKA, "DeadLetterReplay", "shop", "again", metadata=metadata, spec={})
    store = {**bucket.environment, "AWS_ALLOW_HTTP": "true"}
    files = TableFiles(f"{bucket.url}/kept", store=store)
    files.append("replays", REPLAYS, [["uid-7", "ana", "", STARTED, None, None]])
    at = ("--endpoint", bucket.endpoint)
    told = laptop.lines("cancel", "again", *at)
    assert told == ["the replay uid-7 ends; its command says how many events it has sent"]
    rows = TableFiles(f"{bucket.url}/kept", store=store)
    assert [row["replay_id"] for row in rows.query("SELECT * FROM cancellations", "cancellations")]
