"""The benchmark's command line: choose cases, measure, print tables, write JSON.

Results lie in tools/bench/results/, one file per case; `--write-docs` puts them into
docs/performance.md, measured just now or earlier.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from bench import (
    beside,
    channels,
    document,
    encrypting,
    growth,
    hostile,
    isolation,
    latency,
    proxied,
    receiving,
    sensing,
    sharing,
    starting,
    through,
    tokens,
)
from bench.dispatching import cesql_case, dispatcher_case
from bench.results import Results
from bench.targets import External
from bench.world import HERE, BenchError, Options, World, machine, world

Case: TypeAlias = Callable[[World, Results, Sequence[External]], Awaitable[None]]

CASES: Final[dict[str, Case]] = {
    "receiver": receiving.receiver_case,
    "dispatcher": dispatcher_case,
    "cesql": cesql_case,
    "start": starting.start_case,
    "e2e": through.e2e_case,
    "growth": growth.growth_case,
    "sharing": sharing.sharing_case,
    "filters": sharing.filters_case,
    "isolation": isolation.isolation_case,
    "hostile": hostile.hostile_case,
    "tls": encrypting.tls_case,
    "proxy": proxied.proxy_case,
    "subscriptions": isolation.subscriptions_case,
    "channels": channels.channels_case,
    "sensors": sensing.sensors_case,
    "sensor-latency": sensing.sensor_latency_case,
    "beside": beside.beside_case,
    "tokens": tokens.tokens_case,
    "latency": latency.latency_case,
    "scale": receiving.scale_case,
    "soak": through.soak_case,
}
ON_REQUEST: Final = (
    "soak",
    "latency",
    "sharing",
    "filters",
    "isolation",
    "hostile",
    "tls",
    "proxy",
    "subscriptions",
    "channels",
    "beside",
    "sensors",
    "sensor-latency",
)
"""Cases that take long or need an argument: they run only if `--case` names them."""
USUAL: Final = [name for name in CASES if name not in ON_REQUEST]

RESULTS: Final = HERE / "results"
DOCS: Final = HERE.parents[1] / "docs"
PAGE: Final = DOCS / "performance.md"
PLOT: Final = DOCS / "images" / "growth.svg"


def main() -> None:
    """Measure the cases that the command line names; exits with 1 if the benchmark can't go on."""
    arguments = _arguments()
    options = Options(
        runs=2 if arguments.quick else arguments.runs,
        quick=arguments.quick,
        soak_minutes=arguments.soak_minutes,
        bootstrap=arguments.bootstrap_servers,
        kafka_pid=arguments.kafka_pid,
        before=arguments.before,
    )
    try:
        if arguments.case:
            asyncio.run(_measure(arguments.case, options, arguments.target))
    except BenchError as error:
        sys.exit(f"error: {error}")
    if arguments.write_docs:
        write_docs()


def _arguments() -> argparse.Namespace:
    """Parse the command line; exits with 2 if it is wrong."""
    parser = argparse.ArgumentParser(
        prog="tools/bench/run.py", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--case", type=_cases, default=USUAL, metavar="NAME,...",
        help=f"what to measure, or none: {', '.join(CASES)} (all but {', '.join(ON_REQUEST)})",
    )  # fmt: skip
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs of each target (5)")
    parser.add_argument("--quick", action="store_true", help="does it work? Two short runs")
    parser.add_argument("--soak-minutes", type=float, default=30.0, help="length of the soak (30)")
    parser.add_argument(
        "--target", type=_external, action="append", default=[], metavar="KEY=VALUE,...",
        help="measure something else beside ours; repeatable. A receiver: name=peer,"
        "url=http://host/path[,pid=N]. A dispatcher that delivers TOPIC to a sink that we open: "
        "name=peer,topic=TOPIC,sink=HOST:PORT[,pid=N]",
    )  # fmt: skip
    parser.add_argument("--bootstrap-servers", help="use this Kafka instead of starting one")
    parser.add_argument("--kafka-pid", type=int, help="its process, to measure its CPU too")
    parser.add_argument(
        "--before", type=Path, metavar="FOLDER",
        help="a checkout of another state, which the cases receiver, dispatcher, latency, "
        "filters, hostile, tokens and beside measure beside ours",
    )  # fmt: skip
    parser.add_argument("--write-docs", action="store_true", help="put results into docs/")
    return parser.parse_args()


def _cases(text: str) -> list[str]:
    """Parse comma-separated names of `CASES`, or `none`. Raises `ArgumentTypeError`."""
    names = [] if text == "none" else text.split(",")
    for name in names:
        if name not in CASES:
            raise argparse.ArgumentTypeError(f"no case {name!r}: want {', '.join(CASES)} or none")
    return names


def _external(text: str) -> External:
    """Parse the option `--target`. Raises `ArgumentTypeError`."""
    try:
        return External.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


async def _measure(names: Sequence[str], options: Options, externals: Sequence[External]) -> None:
    """Measure these cases, one after the other; write the results of each as JSON and print them as
    Markdown. Raises `BenchError`."""
    RESULTS.mkdir(exist_ok=True)
    async with world(options) as bench_world:
        for name in names:
            began = time.monotonic()
            started = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
            results = Results(name, {**machine(), "at": started}, options.quick)
            await CASES[name](bench_world, results, externals)
            took = time.monotonic() - began
            results.machine = {
                **results.machine, "took_s": round(took), "load_after": round(os.getloadavg()[0], 2)
            }  # fmt: skip
            text = json.dumps(results.document(), indent=1)
            (RESULTS / f"{name}.json").write_text(text + "\n")
            print(f"## {name} ({took:.0f} s)\n\n{document.markdown(results)}\n", flush=True)


def write_docs() -> None:
    """Put each case's last results into docs/performance.md; cases without results keep their
    block."""
    blocks = {}
    for name in CASES:
        path = RESULTS / f"{name}.json"
        if path.exists():
            results = Results.from_document(json.loads(path.read_text()))
            blocks[name] = document.markdown(results)
            if results.plot_by:
                PLOT.write_text(document.plot(results))
    page = Path(PAGE)
    page.write_text(document.put(page.read_text(), blocks))
    print(f"wrote {page} ({', '.join(blocks)})")
