"""`knafka dead-letters ... --context` on tables says why they can't be read from a laptop."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.api_server import ApiServer, api_server, kubeconfig
from typer.testing import CliRunner

from knafka_cli.command_line import app
from knafka_client.sockets import free_port
from knafka_operator.model.sensors import KNAFKA

GROUP = "0f3c5a9e77b1"
COMMANDS = (
    ("acknowledge", GROUP),
    ("unacknowledge", GROUP),
    ("events", GROUP),
    ("export", GROUP, "-o", "failed.ndjson"),
    ("cancel", "20260131-120000-3fa4c1"),
    ("list", "--groups"),
)

Run = Callable[..., str]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with api_server() as (server, client):
        server.kinds[KNAFKA] = {
            "DeadLetterArchive": "deadletterarchives",
            "DeadLetterReplay": "deadletterreplays",
        }
        kubeconfig(tmp_path, client.configuration.host)
        yield server


def declare(server: ApiServer, **storage: Any) -> None:
    server.put(KNAFKA, "DeadLetterArchive", "shop", "kept", spec={"storage": storage})


def refusal(folder: Path, *words: str) -> str:
    """What a command about the cluster ends with."""
    config = folder / "config"
    where = ("--kubeconfig", str(config), "-n", "shop")
    result = CliRunner().invoke(app, ["dead-letters", *words, *where])
    assert result.exit_code != 0, result.output
    return " ".join(result.output.split())


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_tables_on_a_claim_are_read_by_pods_only(
    server: ApiServer, tmp_path: Path, command: tuple[str, ...]
) -> None:
    declare(server, claim={"name": "tables"})
    told = refusal(tmp_path, *command)
    assert "shop/kept are on the PersistentVolumeClaim tables, which only pods can read" in told
    assert "kubectl cp" in told


def test_a_store_that_is_not_reached_from_here_can_be_forwarded(
    server: ApiServer, tmp_path: Path
) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    declare(server, url="s3a://bucket/x", endpoint=endpoint, credentials={"name": "keys"})
    keys = {
        name: base64.b64encode(b"x").decode()
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    }
    server.put("v1", "Secret", "shop", "keys", data=keys)
    told = refusal(tmp_path, "events", GROUP)
    assert "the tables of the DeadLetterArchive shop/kept can't be read from here" in told
    assert "kubectl port-forward" in told
    assert "--endpoint http://localhost:PORT" in told


def test_keys_that_the_user_may_not_read_are_asked_for(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    declare(server, url="s3a://bucket/x", credentials={"name": "keys"})
    assert "there is no Secret shop/keys" in refusal(tmp_path, "events", GROUP)
    server.refused["/api/v1/namespaces/shop/secrets/keys"] = 403
    told = refusal(tmp_path, "events", GROUP)
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in told


def test_other_stores_are_left_to_a_spark_of_ones_own(server: ApiServer, tmp_path: Path) -> None:
    declare(server, url="gs://bucket/x")
    assert "only s3a:// is read from here" in refusal(tmp_path, "events", GROUP)


def test_an_archive_says_itself_where_its_tables_are(server: ApiServer, tmp_path: Path) -> None:
    declare(server, url="s3a://bucket/x")
    assert "--tables can't be used with a cluster" in refusal(
        tmp_path, "events", GROUP, "--tables", "/elsewhere"
    )
    assert "--tables can't be used with a cluster" in refusal(
        tmp_path, "list", "--groups", "--tables", "/elsewhere"
    )
