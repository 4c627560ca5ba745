"""A real OTLP collector for the tests: the OpenTelemetry collector's receiver, by HTTP and gRPC.

`make collector` compiles it: see `go_programs`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from support.go_programs import obtain, obtain_or_skip

from knafka_client.sockets import free_port

SOURCE: Final = Path(__file__).with_name("otlp_collector")
TARGET: Final = "collector"


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
    program = await asyncio.to_thread(obtain_or_skip, SOURCE, TARGET)
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


if __name__ == "__main__":
    print(obtain(SOURCE, TARGET))
