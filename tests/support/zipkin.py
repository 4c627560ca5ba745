"""A real Zipkin for the tests: its server's jar, once from Maven Central; traces are in memory.

Where Java or the jar can't be had, the tests that need it are skipped, and fail in CI.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import platformdirs
import pytest
from support.gate import IN_CI

from knafka_local.kafka.kafka_distribution import LocalKafkaError, find_java

JAR: Final = "io.zipkin:zipkin-server:3.5.1:slim"
"""84 MB; without the storages that are databases."""
SHA256: Final = "7956e7f2c64b7073e1362b81e697fceb5fe61e121ad3cb48d545461026964b0f"


class Zipkin:
    """One that listens on `port`."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.endpoint = f"{self.url}/api/v2/spans"
        """Where spans are sent to."""

    async def is_up(self) -> bool:
        async with httpx.AsyncClient() as client:
            try:
                return (await client.get(f"{self.url}/health")).status_code == 200
            except httpx.TransportError:
                return False

    async def trace(self, trace_id: str, spans: int, within: float = 20.0) -> Sequence[Any]:
        """Its spans as Zipkin gives them, once there are so many."""
        found: list[Any] = []
        until = asyncio.get_running_loop().time() + within
        async with httpx.AsyncClient() as client:
            while len(found) < spans:
                named = [each["name"] for each in found]
                assert asyncio.get_running_loop().time() < until, f"{trace_id} has only {named}"
                answer = await client.get(f"{self.url}/api/v2/trace/{trace_id}")
                found = answer.json() if answer.status_code == 200 else []
                await asyncio.sleep(0.1)
        return found


@asynccontextmanager
async def zipkin(log: Path) -> AsyncIterator[Zipkin]:
    """Started, and ended with it; skips the test where it can't be had."""
    try:
        java, jar = find_java(), await asyncio.to_thread(_jar)
    except (LocalKafkaError, OSError, RuntimeError) as error:
        if IN_CI:
            raise
        pytest.skip(f"no Zipkin: {error}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "QUERY_PORT": str(port)}
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-jar", jar,
            env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=file, stderr=file,
        )  # fmt: skip
    try:
        server = Zipkin(port)
        async with asyncio.timeout(60):
            while not await server.is_up():
                assert process.returncode is None, f"Zipkin ended: see {log}"
                await asyncio.sleep(0.2)
        yield server
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _jar() -> Path:
    """From the cache, or fetched into it, if it is the one that is pinned."""
    folder = platformdirs.user_cache_path("knafka") / "zipkin"
    path = folder / "-".join(JAR.split(":")[1:])
    if not path.exists():
        from jgo.maven import MavenContext  # slow to import

        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            context = MavenContext(repo_cache=Path(scratch), timeout=60)
            found: Path = context.create_dependency(JAR).artifact.resolve()
            if hashlib.sha256(found.read_bytes()).hexdigest() != SHA256:
                raise RuntimeError(f"{JAR} is not what is pinned")
            found.replace(path)
    return path
