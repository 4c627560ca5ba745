"""Prints how many files, functions and calls it takes to reconcile one new object of each kind, and
how many lines the control plane's parts have.

    python tools/reconcile_paths.py

The cluster and Kafka are in memory; only calls within `knafka_operator` are counted.
`docs/decisions/0037-one-controller.md` has the figures.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT / "tests")

from support.archives_world import ready_world  # noqa: E402
from support.controlled import controller_of  # noqa: E402
from support.operator_world import OperatorWorld  # noqa: E402
from support.sensors_world import SensorsWorld  # noqa: E402

OPERATOR: Final = ROOT / "operator" / "knafka_operator"
PARTS: Final = {
    "watches, cache, leader election": (
        *("kube_api/watches.py", "kube_api/cache.py"),
        *("kube_api/leadership.py", "kube_api/lease.py"),
    ),
    "controllers": (
        *("engine/controller.py", "engine/deletions.py", "kinds.py", "runtime/controller.py"),
        *("runtime/selections.py", "../../local/knafka_local/cluster/local_controller.py"),
    ),
    "reconcilers and their effects": (
        *("engine/kind.py", "engine/effects.py", "channels/kind.py"),
        *("brokers/kind.py", "brokers/observe.py", "brokers/kafkas.py"),
        *("triggers/kind.py", "sensors/kind.py", "archives/kind.py", "archives/operations.py"),
        *("decisions/effects.py", "decisions/steps.py", "decisions/observed.py"),
    ),
    "scaling": ("scale/*.py",),
    "the whole operator": ("**/*.py",),
}


FAKES: Final = {"kube_api/memory_cluster.py"}
"""Files of the cluster in memory, which stands for the API server: no part of a reconciliation."""
_reconciling: ContextVar[bool] = ContextVar("reconciling", default=False)
"""True in the reconciliation and in the tasks that it starts; not in periodic tasks beside it."""


class Entered:
    """A profile function that counts the calls of the operator's functions in a reconciliation."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        """Calls by file (from `OPERATOR`) and function."""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Count a call, if it is one of an operator's function in a reconciliation."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(OPERATOR)) and _reconciling.get():
            name = code.co_qualname if sys.version_info >= (3, 11) else code.co_name
            file = str(Path(code.co_filename).relative_to(OPERATOR))
            if "<" not in code.co_name and file not in FAKES:
                self.calls[file, name] += 1

    @property
    def files(self) -> list[str]:
        """The files of the called functions, sorted."""
        return sorted({file for file, _ in self.calls})


@contextmanager
def watched() -> Iterator[Entered]:
    """Count the calls within this block and in the tasks that it starts."""
    entered, token = Entered(), _reconciling.set(True)
    sys.setprofile(entered)
    try:
        yield entered
    finally:
        sys.setprofile(None)
        _reconciling.reset(token)


def show(kind: str, entered: Entered) -> None:
    """Print the figures of one kind; with -v, the files too."""
    calls = sum(entered.calls.values())
    files, functions = len(entered.files), len(entered.calls)
    print(f"{kind:20} {files:3} files {functions:4} functions {calls:5} calls")
    if "-v" in sys.argv:
        print("    " + " ".join(entered.files))


async def main() -> None:
    """Reconcile one new object of each kind in memory, and print the figures of each."""
    world = OperatorWorld()
    world.declare_broker("shop")
    controller: Any = controller_of(world)
    await asyncio.sleep(0.1)  # until periodic tasks have begun
    with watched() as entered:
        await controller.reconcile(("Broker", "shop", "default"))
    show("Broker", entered)
    world.declare_trigger("shop", "mail")
    world.operator.on_trigger(world.document("Trigger", "shop", "mail"), gone=False)
    with watched() as entered:
        await controller.reconcile(("Trigger", "shop", "mail"))
    show("Trigger", entered)
    await world.operator.close()

    sensors = SensorsWorld()
    await sensors.start()
    sensors.inner.declare_broker("shop")
    await sensors.turn("Broker", "default")
    sensors.declare()
    with watched() as entered:
        await sensors.turn()
    show("Sensor", entered)
    await sensors.inner.operator.close()

    archives = await ready_world()
    archives.declare(compaction={"number": 1})
    archives.bury()
    with watched() as entered:
        await archives.controller.reconcile(("DeadLetterArchive", "shop", "kept"))
    show("DeadLetterArchive", entered)
    archives.ask("DeadLetterReplay", "again")
    with watched() as entered:
        await archives.controller.reconcile(("DeadLetterReplay", "shop", "again"))
    show("DeadLetterReplay", entered)
    await archives.inner.operator.close()

    for part, patterns in PARTS.items():
        files = {file for pattern in patterns for file in OPERATOR.glob(pattern)}
        print(f"{sum(len(file.read_text().splitlines()) for file in files):6} lines: {part}")


if __name__ == "__main__":
    asyncio.run(main())
