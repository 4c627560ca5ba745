"""A real OTLP collector for the tests: the OpenTelemetry collector's receiver, by HTTP and gRPC.

`otlp_collector/` is compiled once, into the user's cache directory for Knafka: by `make collector`,
and by the tests in CI (`CI=true`). It takes most of a minute, so elsewhere the tests that need it
are skipped until it is there.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import platformdirs
import pytest
from support.gate import IN_CI

from knafka_local.children import free_port

SOURCE: Final = Path(__file__).with_name("otlp_collector")
OPTIONS: Final = ("-trimpath", "-tags=grpcnotrace", "-gcflags=all=-dwarf=false", "-ldflags=-s -w")
FASTER: Final = {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOGC": "off"}
"""As the test cluster's programs are compiled: a third of the time less."""


class NoCollectorError(Exception):
    """It can't be had on this machine; the text says why."""


class OtlpCollector:
    """One that listens on `http` and on `grpc`, each a URL."""

    def __init__(self, taken: Path) -> None:
        self._addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        self.http, self.grpc = (f"http://{each}" for each in self._addresses)
        self._taken = taken

    @property
    def arguments(self) -> Sequence[str]:
        return self._addresses

    async def is_up(self) -> bool:
        for each in self._addresses:
            host, port = each.split(":")
            try:
                _, writer = await asyncio.open_connection(host, int(port))
            except OSError:
                return False
            writer.close()
        return True

    async def trace(self, trace_id: str, spans: int, within: float = 20.0) -> Sequence[Any]:
        """Its spans once there are so many: each with `service` and `tags`, in Zipkin's words."""
        until = asyncio.get_running_loop().time() + within
        while True:
            found = [each for each in self._spans() if each["traceId"] == trace_id]
            if len(found) >= spans:
                return found
            named = [each["name"] for each in found]
            assert asyncio.get_running_loop().time() < until, f"{trace_id} has only {named}"
            await asyncio.sleep(0.1)

    def _spans(self) -> list[Any]:
        # Each line is a batch; the last may not be whole yet.
        lines = self._taken.read_text().split("\n")[:-1]
        return [
            {
                "name": span["name"],
                "traceId": span["traceId"],
                "id": span["spanId"],
                "parentId": span.get("parentSpanId", ""),
                "service": _tags(resource["resource"])["service.name"],
                "tags": _tags(span),
                "kind": span["kind"],
                "error": span.get("status", {}).get("message"),
                "timestamp": int(span["startTimeUnixNano"]),
            }
            for line in lines
            for resource in json.loads(line)["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]


def _tags(of: Mapping[str, Any]) -> dict[str, Any]:
    return {each["key"]: next(iter(each["value"].values())) for each in of.get("attributes", ())}


@asynccontextmanager
async def otlp_collector(folder: Path) -> AsyncIterator[OtlpCollector]:
    """Started, and ended with it; skips the test where it can't be had."""
    try:
        program = await asyncio.to_thread(obtain, build=IN_CI)
    except NoCollectorError as error:
        if IN_CI:
            raise
        pytest.skip(f"no OTLP collector: {error}")
    collector = OtlpCollector(folder / "spans.ndjson")
    with (
        (folder / "spans.ndjson").open("wb") as taken,
        (folder / "collector.log").open("wb") as log,
    ):
        process = await asyncio.create_subprocess_exec(
            program,
            *collector.arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=taken,
            stderr=log,
        )
    try:
        async with asyncio.timeout(30):
            while not await collector.is_up():
                said = (folder / "collector.log").read_text()
                assert process.returncode is None, f"the collector ended: {said}"
                await asyncio.sleep(0.1)
        yield collector
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def obtain(*, build: bool) -> Path:
    """The compiled collector; raises `NoCollectorError`."""
    sources = [SOURCE / name for name in ("go.mod", "go.sum", "main.go")]
    digest = hashlib.sha256(b"\0".join(each.read_bytes() for each in sources)).hexdigest()[:16]
    folder = platformdirs.user_cache_path("knafka") / "otlp-collector"
    program = folder / f"collector-{sys.platform}-{digest}"
    if program.exists():
        return program
    if not build:
        raise NoCollectorError("`make collector` compiles it (a minute; needs Go)")
    if shutil.which("go") is None:
        raise NoCollectorError("there is no `go` here")
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f".{program.name}"
    command: list[str | Path] = ["go", "-C", SOURCE, "build", *OPTIONS, "-o", new, "."]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **FASTER})
    if done.returncode:
        raise NoCollectorError(done.stderr[-2000:])
    new.replace(program)
    return program


if __name__ == "__main__":
    print(obtain(build=True))
