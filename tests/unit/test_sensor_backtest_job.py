"""`knafka sensor test` on topics and archives: what the Spark job is asked, and what is printed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from knafka.core.contract import Ingress, Kafka
from knafka_cli.command_line import app
from knafka_cli.shared import dead_letter_jobs
from knafka_client.state.installation import Installation, RunningState
from knafka_jobs.command_options import parse_moment_or_age, parser

EXAMPLE = Path(__file__).parents[2] / "examples" / "sensor"
FOUND: Mapping[str, Any] = {
    "events": 100,
    "matched": 90,
    "undecodable": 1,
    "undated": 2,
    "errors": {"cast": 3},
    "firings": {"ship": 41, "remind": 0},
    "waiting": {"ship": 7},
    "shown": [
        {
            "trigger": "ship",
            "correlation": "2",
            "at": "2026-11-23T09:04:00.000Z",
            "events": [
                {"dependency": "order", "source": "/s", "id": "o-2"},
                {"dependency": "payment", "source": "/s", "id": "p-2"},
            ],
        }
    ],
}


class Job:
    """In the place of Spark: remembers what it was asked."""

    def __init__(self) -> None:
        self.given: Any = None
        self.sensor: Any = None

    def run(self, arguments: list[str], _: object) -> str:
        self.given = parser().parse_args(arguments)
        self.sensor = json.loads(self.given.sensor.read_text())
        return json.dumps(FOUND)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    made = Job()
    monkeypatch.setattr(dead_letter_jobs, "run_job_process", made.run)
    of: dict[str, Any] = {"namespace": "default", "broker": "default"}
    of["kafka"] = Kafka(bootstrap_servers="k:1")
    of_channel = Ingress(**of, kind="KafkaChannel", topic="of-channel")
    ingresses = of_channel, Ingress(**of, topic="bus")
    running = RunningState(pid=1, url="http://a", bootstrap_servers="k:1", ingresses=ingresses)
    monkeypatch.setattr(Installation, "read_state", lambda _: running)
    return made


def run(*arguments: object) -> tuple[int, str]:
    given = ["sensor", "test", str(EXAMPLE / "sensor.yaml"), *map(str, arguments)]
    result = CliRunner().invoke(app, given)
    return result.exit_code, result.output


def test_since_reads_the_topic_of_the_sensors_broker(job: Job) -> None:
    code, output = run("--since", "30d")
    assert code == 0, output
    assert (job.given.topic, job.given.bootstrap_servers) == ("bus", "k:1")
    since = datetime.now(UTC) - timedelta(days=30)
    assert abs(job.given.events_since - since) < timedelta(minutes=5)
    assert [each["name"] for each in job.sensor["triggers"]] == ["ship", "remind"]
    assert "subscriber" not in str(job.sensor)
    assert output.splitlines() == [
        "2026-11-23T09:04:00.000Z ship/2 fires with order o-2, payment p-2",
        "and 40 more",
        "100 events: 41 firings, 7 wait",
        "  ship: 41 firings, 7 wait",
        "  remind: 0 firings, 0 wait",
        "  1 are no events",
        "  2 have no time, and were left out",
        "  3 filters or correlations ended with an error: cast",
    ]


def test_since_reads_the_topic_of_the_sensors_channel(job: Job, tmp_path: Path) -> None:
    """A Broker of the channel's name has another one."""
    file, text = tmp_path / "sensor.yaml", (EXAMPLE / "sensor.yaml").read_text()
    file.write_text(text.replace("broker: default", "channel: default"))
    result = CliRunner().invoke(app, ["sensor", "test", str(file), "--since", "30d"])
    assert result.exit_code == 0, result.output
    assert job.given.topic == "of-channel"
    file.write_text(text.replace("broker: default", "channel: none"))
    result = CliRunner().invoke(app, ["sensor", "test", str(file), "--since", "30d"])
    assert "there is no KafkaChannel default/none: name the --topic" in result.output


def test_a_sensor_file_is_read_as_knafka_up_reads_it(job: Job, tmp_path: Path) -> None:
    """A date is text, and the Sensor may be in a List."""
    file, text = tmp_path / "sensor.yaml", (EXAMPLE / "sensor.yaml").read_text()
    (document,) = yaml.safe_load_all(text)
    document["metadata"]["annotations"] = {"reviewed": "DATE"}
    listed = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [document]})
    file.write_text(listed.replace("DATE", "2026-01-31"))
    result = CliRunner().invoke(app, ["sensor", "test", str(file), "--since", "30d"])
    assert result.exit_code == 0, result.output
    file.write_text(text.replace("broker: default", "broker: !!bool maybe"))
    result = CliRunner().invoke(app, ["sensor", "test", str(file), "--since", "30d"])
    assert result.exit_code == 2
    assert "sensor.yaml can't be read: found a value that is no bool" in " ".join(
        result.output.split()
    )


def test_json_is_what_the_job_has_found(job: Job) -> None:
    code, output = run("--archive", "s3a://events", "--json", "--output", "firings")
    assert (code, json.loads(output)) == (0, FOUND)
    assert (job.given.archive, job.given.output, job.given.topic) == (
        "s3a://events", "firings", None
    )  # fmt: skip


def test_json_of_a_file_has_the_same_names() -> None:
    code, output = run("--events", EXAMPLE / "events.ndjson", "--json")
    assert code == 0
    found = json.loads(output)
    assert found["firings"] == {"ship": 1, "remind": 1}
    assert found["waiting"] == {"remind": 1, "ship": 2}
    assert [each["id"] for each in found["shown"][0]["events"]] == ["o-2", "p-2"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "give --events FILE, --since TIME, or --archive FOLDER"),
        (["--since", "last week"], "'last week' is not a time"),
        (["--since", "30d", "--events", "e"], "--since can't be used with --events"),
        (["--archive", "a", "--events", "e"], "--archive can't be used with --events"),
        (["--archive", "a", "--topic", "t"], "--topic can't be used with --archive"),
        (
            ["--since", "1d", "--bootstrap-servers", "k:1"],
            "needs --topic, the topic with the events",
        ),
        (["--since", "1d", "--secret", "s"], "--secret needs --bootstrap-servers"),
    ],
)
def test_what_can_not_be_asked_is_refused(job: Job, arguments: list[str], problem: str) -> None:
    code, output = run(*arguments)
    assert (code, problem in output) == (2, True), output


@pytest.mark.parametrize(
    ("text", "ago"),
    [("90s", 90), ("1.5m", 90), ("12h", 43_200), ("30d", 2_592_000), ("1w", 604_800)],
)
def test_a_time_may_be_how_long_ago(text: str, ago: float) -> None:
    found = datetime.now(UTC) - parse_moment_or_age(text)
    assert abs(found.total_seconds() - ago) < 60


def test_a_time_without_a_zone_is_utc() -> None:
    assert parse_moment_or_age("2026-01-31T12:00") == datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "30", "d", "-3d", "30 d", "1e9d", "9999999999d", "soon"])
def test_what_is_no_time_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["backtest", "--sensor", "s", f"--events-since={text}"]
    with pytest.raises(SystemExit):
        parser().parse_args(given)
    assert "is no time: give an age such as 30d" in capsys.readouterr().err
