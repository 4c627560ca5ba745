"""A real Prometheus and its promtool, of Debian's package, which is unpacked and never installed.

A machine's own are used where it has both. Else the package comes by `apt-get download`, once,
into the user's cache directory for Knafka. Where it can't be had, the tests that need it are
skipped with the reason, and fail in CI (`CI=true`). Registered by `pytest_plugins` in
tests/conftest.py.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import platformdirs
import pytest
import yaml
from support.gate import IN_CI

from knafka_client.sockets import free_port

MONITORING: Final = Path(__file__).parents[2] / "operator" / "deploy" / "monitoring"
METRIC: Final = re.compile(r"\b(?:knafka|kn_eventing|eventing_kafka|http_server)_[a-z_]+")
"""The name of one of ours in an expression."""
_OF_ALERTS: Final = ("alertname", "severity", "job", "instance", "outcome")
"""Labels of an alert that don't say what it is about."""
PROGRAMS: Final = ("prometheus", "promtool")


class NoPrometheusError(Exception):
    """Prometheus can't be had on this machine; the text says why."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Where the two lie."""

    prometheus: Path
    promtool: Path


def obtain(cache: Path | None = None) -> Programs:
    """The machine's own, else those of Debian's package; raises `NoPrometheusError`.

    `cache` is a directory of any age or state, by default the user's: it gets both programs or
    none.
    """
    own = [found for name in PROGRAMS if (found := shutil.which(name))]
    if len(own) == len(PROGRAMS):
        return Programs(*map(Path, own))
    # A home may be shared by machines of several architectures.
    architecture = _run("dpkg", "--print-architecture").strip()
    folder = (cache or platformdirs.user_cache_path("knafka") / "prometheus") / architecture
    programs = Programs(*(folder / name for name in PROGRAMS))
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unpack-", dir=folder.parent) as directory:
            unpacked = _unpack(Path(directory))
            try:
                unpacked.rename(folder)
            except OSError:  # another run was faster
                if not folder.exists():
                    raise
    return programs


def _unpack(scratch: Path) -> Path:
    """A folder in `scratch` with the programs."""
    download = ("download", "--quiet", "prometheus")
    try:
        _run("apt-get", *download, cwd=scratch)
    except NoPrometheusError:
        # This machine's lists of packages are missing or old: lists of our own leave them as is.
        lists, archives = scratch / "lists", scratch / "archives"
        for each in (lists, archives):
            (each / "partial").mkdir(parents=True)
        own = ("-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={archives}")
        _run("apt-get", *own, "update", "--quiet", cwd=scratch)
        _run("apt-get", *own, *download, cwd=scratch)
    (package,) = scratch.glob("*.deb")
    _run("dpkg-deb", "--extract", package, scratch / "root")
    unpacked = scratch / "programs"
    unpacked.mkdir()
    for name in PROGRAMS:
        (scratch / "root" / "usr" / "bin" / name).rename(unpacked / name)
        _run(unpacked / name, "--version")
    return unpacked


def _run(*command: object, cwd: Path | None = None) -> str:
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, cwd=cwd, capture_output=True, text=True)
    except OSError as error:
        raise NoPrometheusError(f"{words[0]}: {error}") from error
    if done.returncode:
        said = done.stderr[-2000:]
        raise NoPrometheusError(f"{' '.join(words)}: code {done.returncode}\n{said}")
    return done.stdout


@pytest.fixture(scope="session")
def prometheus_programs() -> Programs:
    """Prometheus and promtool, or a skip."""
    try:
        return obtain()
    except NoPrometheusError as error:
        if IN_CI:
            raise
        pytest.skip(str(error))


def promtool(programs: Programs, *arguments: object) -> None:
    """Fails if it finds anything wrong."""
    _run_checked(programs, arguments)


def objections(programs: Programs, url: str) -> set[str]:
    """promtool's to the names and help of the metrics at a URL; fails if they can't be parsed."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    # Of this command 3 says that there are any.
    return set(_run_checked(programs, ("check", "metrics"), text, codes=(0, 3)).splitlines())


def _run_checked(
    programs: Programs,
    arguments: Sequence[object],
    text: str | None = None,
    codes: Sequence[int] = (0,),
) -> str:
    words = [str(word) for word in (programs.promtool, *arguments)]
    done = subprocess.run(words, input=text, capture_output=True, text=True)
    assert done.returncode in codes, done.stdout + done.stderr
    return done.stdout + done.stderr


def rule_groups() -> list[dict[str, Any]]:
    """The groups of operator/deploy/monitoring, without Kubernetes' wrapping."""
    groups: list[dict[str, Any]]
    groups = yaml.safe_load((MONITORING / "rules.yaml").read_text())["spec"]["groups"]
    return groups


def dashboard() -> Iterator[str]:
    """The expressions of its panels."""
    for panel in json.loads((MONITORING / "dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


def _endpoints() -> Iterator[tuple[str, dict[str, Any]]]:
    for each in yaml.safe_load_all((MONITORING / "monitors.yaml").read_text()):
        spec = each["spec"]
        (endpoint,) = spec[
            "endpoints" if each["kind"] == "ServiceMonitor" else "podMetricsEndpoints"
        ]
        yield each["metadata"]["name"], endpoint


def scrape_configs(targets: Mapping[str, Sequence[int]]) -> list[dict[str, Any]]:
    """Of local ports by the names of monitors.yaml: scraped as they say, but each second."""
    endpoints = dict(_endpoints())
    assert targets.keys() == endpoints.keys()
    return [
        {
            "job_name": name,
            "metrics_path": endpoints[name]["path"],
            "honor_labels": endpoints[name]["honorLabels"],
            "static_configs": [
                {
                    "targets": [f"127.0.0.1:{port}" for port in ports],
                    # The pod's, as the Prometheus Operator has it; a Broker's own must win.
                    "labels": {"namespace": "of-the-pod"},
                }
            ],
        }
        for name, ports in targets.items()
    ]


class Prometheus:
    """A running Prometheus, asked by its HTTP API."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer; fails on any but a success."""
        async with self._session.get(f"{self._url}/api/v1/{path}", params=parameters) as response:
            answer = await response.json()
        assert answer["status"] == "success", answer
        return answer["data"]

    async def is_ready(self) -> bool:
        try:
            async with self._session.get(f"{self._url}/-/ready") as response:
                return response.status == 200
        except aiohttp.ClientConnectionError:
            return False

    async def targets(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.ask("targets"))["activeTargets"]
        return found

    async def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each sample, as of now."""
        result = (await self.ask("query", query=expression))["result"]
        return [(each["metric"], float(each["value"][1])) for each in result]

    async def firing(self) -> dict[str, dict[str, str]]:
        """By name what fires, with the labels of what it is about; each alert for one only."""
        found: dict[str, dict[str, str]] = {}
        for each in (await self.ask("alerts"))["alerts"]:
            if each["state"] == "firing":
                labels = {k: v for k, v in each["labels"].items() if k not in _OF_ALERTS}
                name = each["labels"]["alertname"]
                assert found.setdefault(name, labels) == labels
        return found

    async def until_firing(
        self, wanted: Mapping[str, Mapping[str, str]], within: float = 30.0
    ) -> None:
        """Wait until exactly these alerts fire."""
        found: dict[str, dict[str, str]] = {}
        try:
            async with asyncio.timeout(within):
                while (found := await self.firing()) != wanted:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"want {wanted}, firing are {found}") from None

    async def evaluated(self) -> None:
        """Wait until the rules were evaluated with what had been scraped before."""
        seen: set[str] = set()
        async with asyncio.timeout(20):
            while len(seen) < 3:
                await asyncio.sleep(0.1)
                (group,) = (await self.ask("rules"))["groups"]
                seen.add(group["lastEvaluation"])

    async def until(self, expression: str, value: float, within: float = 20.0) -> None:
        """Wait until an expression of one sample has a value."""
        found: list[tuple[dict[str, str], float]] = []
        try:
            async with asyncio.timeout(within):
                while [each for _, each in found] != [value]:
                    await asyncio.sleep(0.1)
                    found = await self.query(expression)
        except TimeoutError:
            raise AssertionError(f"{expression}: want {value}, is {found}") from None


def _configure(programs: Programs, directory: Path, targets: Mapping[str, Sequence[int]]) -> None:
    directory.mkdir()
    groups = rule_groups()
    for rule in (rule for group in groups for rule in group["rules"]):
        rule["for"] = "0s"
    (directory / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    configuration = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(directory / "rules.yaml")],
        "scrape_configs": scrape_configs(targets),
    }
    (directory / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    promtool(programs, "check", "config", directory / "prometheus.yaml")


@asynccontextmanager
async def running_prometheus(
    programs: Programs, directory: Path, targets: Mapping[str, Sequence[int]]
) -> AsyncIterator[Prometheus]:
    """One that scrapes `targets` each second, and whose alerts fire without waiting for `for`."""
    _configure(programs, directory, targets)
    port = free_port()
    with (directory / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            programs.prometheus,
            f"--config.file={directory / 'prometheus.yaml'}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        async with aiohttp.ClientSession() as session:
            prometheus = Prometheus(session, f"http://127.0.0.1:{port}")
            async with asyncio.timeout(30):
                while not await prometheus.is_ready():
                    assert process.returncode is None, (directory / "log").read_text()[-3000:]
                    await asyncio.sleep(0.05)
            yield prometheus
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
