"""Measures how long a function takes from its start to its first answer, and what its imports cost.

The socket is opened before the process (`--fd`), so the first request waits in its backlog and is
answered as soon as the function serves: no polling makes the time longer.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from bench.dispatching import KEYS, PARTITIONS
from bench.results import FLOOR, OURS, Results
from bench.targets import IN_FLIGHT, External, contract_of, drain, egress, ingress
from bench.world import HERE, PYTHON, World, listens
from knafka.settings import EGRESS, INGRESSES
from knafka_client.sockets import HOST, listen, port_of

BACKLOG: Final = 1_000
RECEIVER: Final = "receiver: to the first 202"
DISPATCHER: Final = "dispatcher: to the first delivery"
SHOWN_PACKAGES: Final = 8
"""Number of packages whose imports are listed, the slowest first."""

_EVENT: Final = (
    b"POST /bench/broker HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nce-specversion: 1.0\r\n"
    b"ce-id: 1\r\nce-source: /s\r\nce-type: t\r\n\r\nhi"
)
_IMPORT = re.compile(r"import time:\s+(\d+) \|\s+\d+ \| +(\S+)").fullmatch


async def start_case(world: World, results: Results, externals: Sequence[External]) -> None:
    """Measure ours and the floor in turn; the first start of each only warms the page cache."""
    async with world.topic() as empty, world.topic() as topic:
        await world.fill(topic, BACKLOG, partitions=PARTITIONS, keys=KEYS)
        for run in range(world.options.runs + 1):
            for name in (OURS, FLOOR):
                ready = await _start_receiver(world, name, empty)
                delivered = await _start_dispatcher(world, name, topic)
                if run:
                    results.add(RECEIVER, name, seconds=ready)
                    results.add(DISPATCHER, name, seconds=delivered)
    for module in ("knafka.receiver", "knafka.dispatcher"):
        await _imports(results, module)
    results.at_most("receiver's start, s", results.middle(RECEIVER, "seconds"), 0.6)
    results.at_most("dispatcher's start, s", results.middle(DISPATCHER, "seconds"), 0.8)


async def _start_receiver(world: World, name: str, topic: str) -> float:
    """Return the seconds from a receiver's start to the answer to its first event."""
    with listen() as listener:
        port = port_of(listener)
        began = time.monotonic()
        if name == FLOOR:
            listener.close()
            floor = str(HERE / "floor_receiver.py")
            command = world.process(PYTHON, floor, str(port), world.bootstrap, topic)
        else:
            command = world.process(
                PYTHON, "-m", "knafka.receiver", "--fd", str(listener.fileno()),
                environment={INGRESSES: contract_of([ingress(world, topic)])}, listener=listener,
            )  # fmt: skip
        async with command:
            if name == FLOOR:
                await listens(f"{HOST}:{port}")
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(_EVENT)
            status = await reader.readline()
            took = time.monotonic() - began
            writer.close()
    if b" 202 " not in status:
        raise RuntimeError(f"the first event was answered {status!r}")
    return took


async def _start_dispatcher(world: World, name: str, topic: str) -> float:
    """Return the seconds from a dispatcher's start to its first delivery."""
    await world.reset_sink(KEYS)
    with listen() as listener:
        port = port_of(listener)
        began = time.time_ns()
        if name == FLOOR:
            floor = str(HERE / "floor_dispatcher.py")
            async with world.process(
                PYTHON, floor, world.bootstrap, topic, world.sink, str(IN_FLIGHT)
            ):
                return await _first_delivery(world, began)
        async with (
            world.process(
                PYTHON, "-m", "knafka.dispatcher", "--fd", str(listener.fileno()),
                environment={EGRESS: egress(world, topic)}, listener=listener,
            ),
            drain(*await asyncio.open_connection(HOST, port)),
        ):  # fmt: skip
            return await _first_delivery(world, began)


async def _first_delivery(world: World, began: int) -> float:
    """Wait for the first event at the sink; return the seconds since `began` (ns since the Unix
    epoch)."""
    async with asyncio.timeout(30):
        while not (first := (await world.sink_stats())["first_ns"]):  # noqa: ASYNC110  # it polls
            await asyncio.sleep(0.05)
    return (int(first) - began) / 1e9


async def _imports(results: Results, module: str) -> None:
    """Measure the imports of a function's module by package. Without a contract the function ends
    once all is imported."""
    process = await asyncio.create_subprocess_exec(
        PYTHON, "-X", "importtime", "-m", module,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    _, output = await process.communicate()
    costs = import_costs(output.decode())
    results.add(f"{module}: all imports", OURS, milliseconds=sum(costs.values()))
    slowest = sorted(costs.items(), key=lambda item: -item[1])
    for package, cost in slowest[:SHOWN_PACKAGES]:
        results.add(f"{module}: {package}", OURS, milliseconds=cost)


def import_costs(output: str) -> dict[str, float]:
    """Return milliseconds by top-level package from the output of `-X importtime`; each module's
    own time only."""
    costs = defaultdict[str, float](float)
    for line in output.splitlines():
        if match := _IMPORT(line.rstrip()):
            own, name = match.groups()
            costs[name.partition(".")[0]] += int(own) / 1000
    return costs
