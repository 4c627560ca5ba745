"""Leadership: the Lease of coordination.k8s.io, held by one replica; `lease` says who may.

    acquire -> act -> release        lost -> the program begins anew at once

The Lease is renewed by a thread with an event loop of its own (`LeaseThread`), so that what keeps
the operator's loop busy doesn't lose it. A replica that can't renew in time doesn't wind up: its
program is replaced by itself (`exec`), so that nothing of it acts when another begins. Another
thread sees to that (`Watchdog`), and where no Python runs any more, C ends the process.

Not here: what is done by who leads.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, NoReturn, Protocol

import kubernetes
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from knafka_operator.model.cluster import ClusterError
from knafka_operator.runtime.lease import DURATION, RENEW_AGAIN, RENEW_EVERY, Election, Lease

log = logging.getLogger(__name__)

LEASE_NAME: Final = "knafka-operator"
REQUEST_TIMEOUT: Final = (2.0, 3.5)
"""Seconds to connect, and for one answer. An API server may take 3 s for each answer; of one that
gives none, two tries fit in before the Lease is lost."""
WATCHDOG_INTERVAL: Final = 0.1
REARM_INTERVAL: Final = 1.0
STUCK_TIMEOUT: Final = 2.0
"""Seconds past the loss of the Lease at which C ends a process in which no Python runs."""
LOG_TIMEOUT: Final = 0.5
"""Seconds for the log to take the reason: whoever reads it may have stopped."""
STDERR: Final = 2
LOST_EXIT_STATUS: Final = 3
"""Exit status of a replica that lost the Lease and can't begin anew."""


class LeaseStore(Protocol):
    """Where the Lease is kept; both raise `ClusterError`."""

    async def read(self) -> Lease | None: ...

    async def write(self, lease: Lease) -> Lease | None:
        """Replace the version that it names; None: there is another one by now."""
        ...


class Leadership:
    """One replica's part."""

    def __init__(
        self, leases: LeaseStore, election: Election, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._leases = leases
        self._election = election
        self._now = now
        self._writing = asyncio.Lock()
        self._is_leaving = False

    def leads(self) -> bool:
        """Whether this replica may act; for any thread."""
        return self._election.leads(self._now())

    def seconds_left(self) -> float | None:
        """Seconds for which this replica leads without another renewal; None: it doesn't lead.
        For any thread."""
        until = self._election.until
        return None if until is None else max(0.0, until - self._now())

    async def hold(self, acquired: Callable[[], None]) -> None:
        """Wait until we lead, say so, and renew until it is lost."""
        await self.acquire()
        acquired()
        await self.keep_renewing()

    async def acquire(self) -> None:
        """Return once we lead."""
        await self._try_to_claim()
        while not self.leads():
            await asyncio.sleep(self._election.seconds_to_retry(self._now()))
            await self._try_to_claim()

    async def keep_renewing(self) -> None:
        """Renew until it is lost or released."""
        renewed, sent = True, self._now()
        while self.leads():
            pause = max(RENEW_AGAIN, sent + RENEW_EVERY - self._now()) if renewed else RENEW_AGAIN
            await asyncio.sleep(pause)
            sent = self._now()
            renewed = await self._try_to_claim()

    async def release(self) -> None:
        """Let another replica lead at once; nothing acts any more. Raises `ClusterError`."""
        self._is_leaving = True
        async with self._writing:  # A renewal under way would make ours the older version.
            if (released := self._election.lease_to_release()) is not None:
                await self._write(released)

    async def _try_to_claim(self) -> bool:
        """Claim it if that is allowed, or renew it; whether the API server took it."""
        async with self._writing:
            try:
                return not self._is_leaving and await self._claim()
            except ClusterError as error:
                log.warning("the Lease: %s", error)
            except Exception:  # a bug: by the clock it is lost, and not for ever
                log.exception("the Lease")
            return False

    async def _claim(self) -> bool:
        # Who leads knows what is stored, unless somebody else wrote it.
        if self.leads() and await self._write(self._election.lease_to_claim()):
            return True
        self._election.observe(await self._leases.read(), self._now())
        if not self._election.may_claim(self._now()):
            return False
        return await self._write(self._election.lease_to_claim())

    async def _write(self, lease: Lease) -> bool:
        sent = self._now()
        stored = await self._leases.write(lease)
        if stored is not None:
            self._election.on_written(stored, sent, self._now())
        return stored is not None


class LeaseThread:
    """Holds the Lease from a thread with an event loop of its own, from when it is made."""

    def __init__(self, leadership: Leadership, acquired: Callable[[], None]) -> None:
        """`acquired` is called in that thread once this replica leads."""
        self._leadership = leadership
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(leadership.hold(acquired), self._loop)

    async def release(self) -> None:
        """Let another replica lead; nothing of this one acts any more. Raises `ClusterError`."""
        releasing = asyncio.run_coroutine_threadsafe(self._leadership.release(), self._loop)
        await asyncio.wrap_future(releasing)

    async def close(self) -> None:
        """Renew no more."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()


class Watchdog:
    """Has the program begin anew as soon as it doesn't lead any more, unless it is left first."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._arm()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        armed = time.monotonic()
        while not self._over.wait(WATCHDOG_INTERVAL):
            if not self._leadership.leads():
                restart_process()
            if time.monotonic() >= armed + REARM_INTERVAL:
                self._arm()
                armed = time.monotonic()

    def _arm(self) -> None:
        """Have C end the process, which needs no lock of Python's as one long call may hold it."""
        if (left := self._leadership.seconds_left()) is not None:
            faulthandler.dump_traceback_later(left + STUCK_TIMEOUT, exit=True)


def restart_process() -> NoReturn:
    """Replace this program by itself at once, also where nobody reads its log.

    No thread and no connection outlives that, as at the end of the process; but no container
    restarts, which Kubernetes delays more each time and counts as a crash.
    """
    last_words = threading.Thread(target=_log_loss, name="lease-lost", daemon=True)
    last_words.start()
    last_words.join(LOG_TIMEOUT)
    with suppress(OSError):
        for descriptor in os.listdir("/proc/self/fd"):
            if int(descriptor) > STDERR:
                with suppress(OSError):  # that of this list is closed by now
                    os.set_inheritable(int(descriptor), False)
    with suppress(OSError):
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    os._exit(LOST_EXIT_STATUS)


def _log_loss() -> None:
    log.error("the Lease is lost: this replica begins anew")
    logging.shutdown()


class ApiLeaseStore:
    """`LeaseStore` on the API server, in a thread of its own: others may all be waiting."""

    def __init__(self, namespace: str) -> None:
        configuration = kubernetes.client.Configuration.get_default_copy()
        configuration.retries = False  # each would take as long again
        client = kubernetes.client.ApiClient(configuration)
        self._api = kubernetes.client.CoordinationV1Api(client)
        self._namespace = namespace
        self._thread = ThreadPoolExecutor(1, "lease")

    async def read(self) -> Lease | None:
        return await self._ask(
            "read", lambda **more: self._api.read_namespaced_lease(LEASE_NAME, **more)
        )

    async def write(self, lease: Lease) -> Lease | None:
        # Any: the client takes dictionaries, too, whatever its stubs say.
        body: Any = lease_manifest(lease, self._namespace, datetime.now(UTC))

        def ask(**more: Any) -> Any:
            if lease.version:
                return self._api.replace_namespaced_lease(LEASE_NAME, body=body, **more)
            return self._api.create_namespaced_lease(body=body, **more)

        return await self._ask("write", ask)

    async def _ask(self, what: str, call: Callable[..., Any]) -> Lease | None:
        def ask() -> Lease | None:
            answer = call(
                namespace=self._namespace, _request_timeout=REQUEST_TIMEOUT, _preload_content=False
            )
            return lease_of_document(json.loads(answer.data))

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, ask)
        except ApiException as error:
            if error.status in (404, 409):
                return None
            raise ClusterError(f"can't {what} it: {error.status} {error.reason}") from error
        except (HTTPError, OSError, ValueError) as error:
            raise ClusterError(f"can't {what} it: {error}") from error


def lease_manifest(lease: Lease, namespace: str, now: datetime) -> dict[str, Any]:
    """As the API server keeps it; the time is for people."""
    version = {"resourceVersion": lease.version} if lease.version else {}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": LEASE_NAME, "namespace": namespace, **version},
        "spec": {
            "holderIdentity": lease.holder,
            "leaseDurationSeconds": round(lease.duration),
            "leaseTransitions": lease.transitions,
            "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }


def lease_of_document(document: Mapping[str, Any]) -> Lease:
    """Whatever stands there: a Lease that doesn't say for how long lasts as long as ours."""
    spec = document.get("spec") or {}
    return Lease(
        str(spec.get("holderIdentity") or ""),
        float(spec.get("leaseDurationSeconds") or DURATION),
        int(spec.get("leaseTransitions") or 0),
        str(document["metadata"]["resourceVersion"]),
    )
