"""The environment of a benchmark: a Kafka, a sink, kbench, and the processes that are measured.

Everything it starts ends with it. With `bootstrap`, an existing Kafka is used, whose CPU is
measured only if its process is named. Not here: the functions that are measured (`targets`), and
the cases.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from bench.usage import Usage
from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core.addresses import LOCAL_ADDRESSES
from knafka_client.sockets import HOST, free_port, is_port_open
from knafka_local.kafka.kafka_distribution import obtain
from knafka_local.kafka.kafka_server import KafkaServer
from knafka_local.processes.children import Child, Command
from knafka_local.processes.parent_death import die_with_parent

HERE: Final = Path(__file__).parent
START_TIMEOUT: Final = 30.0
"""Seconds until a started process must listen."""
CPU_GROUPS: Final = Path("/sys/fs/cgroup/cpu")
CPU_PERIOD: Final = 10_000
"""Microseconds in which a limited process gets its share of CPU; short, so that it never waits for
long."""
SINK_NICE: Final = -15
"""The sink's priority. Real subscribers have machines of their own; here many dispatchers compete
with the sink for CPU, would get its answers one by one, and would be woken for each."""
END_TIMEOUT: Final = 15.0
"""Seconds for a process to end after SIGTERM; a dispatcher may still leave its group."""


class BenchError(Exception):
    """The benchmark can't go on; the text says what failed."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says about how to measure."""

    runs: int = 5
    quick: bool = False
    """Whether to use small numbers, to see that everything works: the figures mean little."""
    soak_minutes: float = 30.0
    bootstrap: str | None = None
    kafka_pid: int | None = None
    before: Path | None = None
    """A checkout of another commit, which is measured beside this one."""


@dataclass
class World:
    """What every case uses: Kafka, the sink, kbench and the options. `world` makes it."""

    options: Options
    folder: Path
    bootstrap: str
    kafka_pid: int | None
    kbench: Path
    sink: str = ""
    """host:port of the sink."""
    sink_pid: int = 0
    _admin: KafkaAdmin = field(init=False)

    def __post_init__(self) -> None:
        self._admin = KafkaAdmin({"bootstrap.servers": self.bootstrap})

    def sized(self, full: float, quick: float) -> float:
        """Return a number of events or seconds: `full`, or `quick` with the option of that name."""
        return quick if self.options.quick else full

    @asynccontextmanager
    async def topic(
        self, partitions: int = 10, config: Mapping[str, str] | None = None
    ) -> AsyncIterator[str]:
        """Make a new topic, and delete it after the block; yields its name."""
        name = f"bench-{uuid.uuid4().hex[:12]}"
        await self._admin.ensure_topic(name, partitions, 1, config or {})
        try:
            yield name
        finally:
            await self._admin.delete_topic(name)

    async def fill(self, topic: str, count: int, **flags: Any) -> None:
        """Write `count` events to a topic, with ids from 0, in batches as a receiver writes them;
        `flags` are kbench's."""
        await self.run("fill", bootstrap=self.bootstrap, topic=topic, n=count, **flags)

    async def begin_at_end(self, group: str, topic: str) -> None:
        """Commit the topic's ends for a group, so that it reads only later records."""
        await self._admin.ensure_committed(group, topic)

    async def reset_sink(self, lanes: int) -> None:
        """Make the sink forget its counts. Events whose ids are equal modulo `lanes` are of one key
        or partition, whose order it checks."""
        await asyncio.to_thread(self._ask_sink, f"_reset?lanes={lanes}")

    async def sink_stats(self, latency: bool = False) -> dict[str, Any]:
        """Return the sink's counts; with `latency` also the latency since the last such call."""
        answer = await asyncio.to_thread(self._ask_sink, f"_stats{'?latency' * latency}")
        stats: dict[str, Any] = json.loads(answer)
        return stats

    def _ask_sink(self, path: str) -> bytes:
        """Return the sink's answer to a GET request; blocks."""
        with urlopen(f"http://{self.sink}/{path}", timeout=30) as answer:
            content: bytes = answer.read()
            return content

    async def run(
        self, command: str, pids: Mapping[str, Sequence[int]] | None = None, **flags: Any
    ) -> dict[str, Any]:
        """Run a kbench command and return its result, with the usage of the groups `pids`, of Kafka
        and of the sink, unless `pids` is None."""
        arguments = [f"-{name.replace('_', '-')}={value}" for name, value in flags.items()]
        process = await asyncio.create_subprocess_exec(
            self.kbench, command, *arguments, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=die_with_parent(),
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        kafka = [] if self.kafka_pid is None else [self.kafka_pid]
        measured = {"sink": [self.sink_pid], "kafka": kafka, "load": [process.pid], **(pids or {})}
        usage: Usage | None = None
        results: dict[str, Any] = {}
        try:
            async for line in process.stdout:
                match json.loads(line):
                    case "begin" if pids is not None:
                        usage = Usage({name: pids for name, pids in measured.items() if pids})
                    case "end" if usage is not None:
                        results = usage.end()
                    case dict() as result:
                        results |= result
                process.stdin.write(b"\n")  # lets kbench go on
            problem = await process.stderr.read()
            await process.wait()
        except asyncio.CancelledError:
            process.kill()
            raise
        if process.returncode:
            raise BenchError(problem.decode().strip())
        if usage is not None:
            count = results["measured"] or math.inf
            results["cpu_us"] = {
                name: seconds * 1e6 / count for name, seconds in results["cpu_s"].items()
            }
        return results

    @asynccontextmanager
    async def process(
        self,
        *command: str | Path,
        environment: Mapping[str, str] | None = None,
        listener: socket.socket | None = None,
        mortal: bool = False,
    ) -> AsyncIterator[Child]:
        """Run a process until the end of the block; its output goes into a log file. Raises
        `BenchError` if it ends before and isn't `mortal`."""
        log = self.folder / f"{uuid.uuid4().hex[:8]}.log"
        words = [str(word) for word in command]
        child = await Child.start(
            Command(
                words,
                log,
                {LOCAL_ADDRESSES: "allowed", **(environment or {})},
                listener=listener,
                stop_timeout=END_TIMEOUT,
            )
        )
        try:
            yield child
            if not (mortal or child.is_running):
                raise BenchError(f"{' '.join(words)} ended by itself:\n{log.read_text()[-2000:]}")
        finally:
            await child.stop()


@asynccontextmanager
async def world(options: Options) -> AsyncIterator[World]:
    """Start Kafka, unless the options name one, and a sink, and compile kbench; stop all after the
    block."""
    kbench = build_kbench()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="knafka-bench-")))
        bootstrap, pid = options.bootstrap, options.kafka_pid
        if bootstrap is None:
            kafka = KafkaServer(obtain(), folder / "kafka")
            await kafka.start()
            stack.push_async_callback(kafka.stop)
            bootstrap, pid = kafka.bootstrap_servers, kafka.pid
        (folder / "logs").mkdir()
        bench_world = World(options, folder / "logs", bootstrap, pid, kbench)
        async with sink(bench_world):
            yield bench_world


@asynccontextmanager
async def sink(world: World, address: str | None = None) -> AsyncIterator[None]:
    """Run the world's sink until the end of the block, at `address` if a target delivers there,
    else at a free port."""
    outer_sink = world.sink, world.sink_pid
    world.sink = address or f"{HOST}:{free_port()}"
    nice = "nice", "-n", str(SINK_NICE)  # all threads of the started program get that priority
    async with world.process(*nice, world.kbench, "sink", f"-addr={world.sink}") as process:
        world.sink_pid = process.pid
        await listens(world.sink)
        if os.getpriority(os.PRIO_PROCESS, process.pid) != SINK_NICE:
            print("the sink has no priority (want root): it may be the limit", file=sys.stderr)
        try:
            yield
        finally:
            world.sink, world.sink_pid = outer_sink


@contextmanager
def limited(pids: Sequence[int], cores: float) -> Iterator[None]:
    """Limit the processes to so many cores together, by a cgroup, until the end of the block."""
    group = CPU_GROUPS / f"knafka-bench-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError as error:
        raise BenchError(
            f"CPU can't be limited here: {error}: want root, and version 1 of Linux's cgroups"
        ) from None
    try:
        (group / "cpu.cfs_period_us").write_text(str(CPU_PERIOD))
        (group / "cpu.cfs_quota_us").write_text(str(int(cores * CPU_PERIOD)))
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for pid in pids:
            with suppress(OSError):  # it has ended
                (CPU_GROUPS / "cgroup.procs").write_text(str(pid))
        group.rmdir()


async def listens(address: str) -> None:
    """Wait until a process listens at this address; raises `BenchError` after `START_TIMEOUT`."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(START_TIMEOUT):
            while not await is_port_open(host, int(port)):  # noqa: ASYNC110  # nobody else knows when
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise BenchError(f"nobody listens at {address}") from None


def machine() -> dict[str, Any]:
    """Return what machine the figures are measured on, and its load average now."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [line.partition(":")[2].strip() for line in info.splitlines() if "model name" in line]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def build_kbench() -> Path:
    """Compile kbench and return its path; Go's own cache makes the second time fast."""
    go = shutil.which("go")
    if go is None:
        raise BenchError("kbench is written in Go, and there is no `go` on PATH: install it")
    kbench = HERE / "build" / "kbench"
    built = subprocess.run(
        [go, "build", "-o", kbench, "."], cwd=HERE / "kbench", capture_output=True, text=True
    )
    if built.returncode:
        raise BenchError(f"kbench could not be built:\n{built.stderr}")
    return kbench


PYTHON: Final = sys.executable
