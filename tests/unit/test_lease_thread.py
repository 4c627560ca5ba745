"""The Lease beside an event loop that is held up, in real time and real processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from knafka_operator.kube_api import leadership
from knafka_operator.kube_api.leadership import LOST_EXIT_STATUS, Leadership, LeaseThread
from knafka_operator.kube_api.lease import Election, Lease

PATIENCE = 30.0
ANEW = 5
"""With which these programs end when they are begun a second time."""


class MemoryLeases:
    """`Leases` that say when they were written `often` times."""

    def __init__(self, often: int = 5) -> None:
        self.stored: Lease | None = None
        self.writes = 0
        self.often = often
        self.written_often = threading.Event()

    async def read(self) -> Lease | None:
        return self.stored

    async def write(self, lease: Lease) -> Lease | None:
        self.writes += 1
        self.stored = replace(lease, version=str(self.writes))
        if self.writes == self.often:
            self.written_often.set()
        return self.stored


def test_a_busy_event_loop_does_not_lose_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 29: a Trigger that is slow to read held up the renewals, too."""
    monkeypatch.setattr(leadership, "LEASE_RENEW_INTERVAL", 0.01)
    monkeypatch.setattr(leadership, "RENEW_RETRY_INTERVAL", 0.01)
    leases = MemoryLeases()

    async def busy() -> None:
        acquired = threading.Event()
        lease = LeaseThread(Leadership(leases, Election("a")), acquired.set)
        # Nothing else runs in this loop until then.
        assert acquired.wait(PATIENCE)
        assert leases.written_often.wait(PATIENCE)
        await lease.release()
        await lease.close()

    asyncio.run(busy())
    assert leases.stored is not None
    assert leases.stored.holder == ""


PREAMBLE = """
import asyncio, ctypes, os, sys, threading, time
if os.environ.get("BEGUN"):
    inherited = [int(each) for each in os.listdir("/proc/self/fd") if int(each) > 2]
    sys.exit(5 if len(inherited) == 1 and threading.active_count() == 1 else 6)
os.environ["BEGUN"] = "1"
os.set_inheritable(os.pipe()[0], True)
from knafka_operator.kube_api import lease, leadership
from knafka_operator.kube_api.lease import Election, Lease

lease.RENEW_WITHIN = 0.5  # of a first renewal that no other follows
leadership.STUCK_TIMEOUT = 0.5
leadership.LOG_TIMEOUT = 0.1

class Leases:
    async def read(self): return None
    async def write(self, wanted): return Lease("a", 15.0, 0, "1")

class Leadership(leadership.Leadership):
    async def keep_renewing(self): raise RuntimeError("the renewals failed")

acquired = threading.Event()
leading = Leadership(Leases(), Election("a"))
holder = leadership.LeaseThread(leading, acquired.set)
assert acquired.wait(30)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "status"),
    [
        ("async def act(): time.sleep(60)\nwith watchdog: asyncio.run(act())", ANEW),
        # Python's lock is held: no thread of ours could say so.
        ("with watchdog: ctypes.PyDLL(None).sleep(60)", 1),
        # Whoever reads the log has stopped, and the logger's lock is held.
        ("with leadership.logging._lock, watchdog: time.sleep(60)", ANEW),
        ("sys.executable = '/nowhere'\nwith watchdog: time.sleep(60)", LOST_EXIT_STATUS),
    ],
    ids=["a blocked loop", "a call in C", "a blocked log", "no program to begin anew"],
)
@pytest.mark.timeout(60)
def test_a_leader_whose_renewals_fail_begins_anew_whatever_holds_it_up(
    act: str, status: int
) -> None:
    """Without what it had open; its container doesn't restart."""
    program = f"{PREAMBLE}\nwatchdog = leadership.Watchdog(leading)\n{act}"
    ended = subprocess.run([sys.executable, "-c", program], timeout=50, check=False)
    assert ended.returncode == status


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_process_that_is_no_leader_any_more_by_its_own_choice_goes_on() -> None:
    program = f"{PREAMBLE}\nwith leadership.Watchdog(leading): pass\ntime.sleep(1.5)"
    assert subprocess.run([sys.executable, "-c", program], timeout=50, check=False).returncode == 0
