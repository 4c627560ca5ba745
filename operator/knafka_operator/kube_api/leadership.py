"""Leadership: acquires, renews and releases the Lease (coordination.k8s.io) that only one replica
holds.

    acquire -> act -> release        lost -> restart the program at once

A thread with its own event loop renews the Lease (`LeaseThread`), so that a busy operator loop
doesn't lose it. A replica that can't renew in time doesn't shut down gradually: the program
restarts itself (`exec`), so that it has stopped acting when another replica begins. Another thread
enforces that (`Watchdog`); if no Python code can run, a timer in C ends the process.

Not here: the rules who may claim the Lease (`lease`), and the leader's work (`replica`).
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
from http import HTTPStatus
from typing import Any, Final, NoReturn, Protocol

import kubernetes
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from knafka_operator.kube_api.lease import (
    DURATION,
    LEASE_RENEW_INTERVAL,
    RENEW_RETRY_INTERVAL,
    Election,
    Lease,
)
from knafka_operator.model.cluster import ClusterError

log = logging.getLogger(__name__)

LEASE_NAME: Final = "knafka-operator"
"""Name of the Lease object."""
LEASE_REQUEST_TIMEOUT: Final = (2.0, 3.5)
"""Seconds to connect, and for one response. An API server may take 3 s for each response; without
responses, two attempts fit before the Lease is lost."""
WATCHDOG_INTERVAL: Final = 0.1
"""Seconds between two checks whether this replica still leads."""
REARM_INTERVAL: Final = 1.0
"""Seconds after which the watchdog sets the timer in C again."""
STUCK_TIMEOUT: Final = 2.0
"""Seconds after the loss of the Lease at which a timer in C ends a process in which no Python code
runs."""
LOG_TIMEOUT: Final = 0.5
"""Seconds to log why the process restarts; writing the log may block."""
STDERR: Final = 2
"""The highest file descriptor that a restarted process keeps."""
LOST_EXIT_STATUS: Final = 3
"""Exit status of a replica that lost the Lease and can't restart itself."""


class LeaseStore(Protocol):
    """Reads and writes the stored Lease; both methods raise `ClusterError`."""

    async def read(self) -> Lease | None:
        """Return the stored Lease; None: there is none."""

    async def write(self, lease: Lease) -> Lease | None:
        """Replace the stored Lease if it has the version in `lease` (empty: if there is none).
        Returns the new stored Lease; None: somebody else wrote it first."""
        ...


class Leadership:
    """Acquires, renews and releases the Lease for one replica."""

    def __init__(
        self, leases: LeaseStore, election: Election, now: Callable[[], float] = time.monotonic
    ) -> None:
        """`leases` reads and writes the Lease, by the decisions of `election`. `now` returns the
        time in seconds, by a clock that only goes forward."""
        self._leases = leases
        self._election = election
        self._now = now
        self._writing = asyncio.Lock()
        """Held while the Lease is claimed, renewed or released, with the reads that this needs."""
        self._is_leaving = False
        """Whether the Lease was released, so that it isn't claimed again."""

    def leads(self) -> bool:
        """Whether this replica may act; for any thread."""
        return self._election.leads(self._now())

    def seconds_left(self) -> float | None:
        """Return the seconds for which this replica leads without another renewal; None: it doesn't
        lead. For any thread."""
        leads_until = self._election.leads_until
        return None if leads_until is None else max(0.0, leads_until - self._now())

    async def hold(self, on_acquired: Callable[[], None]) -> None:
        """Acquire the Lease, call `on_acquired`, and renew the Lease; returns once it is lost or
        released."""
        await self.acquire()
        on_acquired()
        await self.keep_renewing()

    async def acquire(self) -> None:
        """Try to claim the Lease until this replica leads; errors are only logged."""
        await self._try_to_claim()
        while not self.leads():
            await asyncio.sleep(self._election.seconds_to_retry(self._now()))
            await self._try_to_claim()

    async def keep_renewing(self) -> None:
        """Renew the Lease every `LEASE_RENEW_INTERVAL` seconds, after a failure every
        `RENEW_RETRY_INTERVAL`; returns once it is lost or released."""
        renewed, requested_at = True, self._now()
        while self.leads():
            pause = RENEW_RETRY_INTERVAL
            if renewed:
                # Counted from the request, so that a slow answer doesn't delay the next renewal.
                pause = max(pause, requested_at + LEASE_RENEW_INTERVAL - self._now())
            await asyncio.sleep(pause)
            requested_at = self._now()
            renewed = await self._try_to_claim()

    async def release(self) -> None:
        """Release the Lease, so that another replica can lead at once; call it when this replica
        has stopped acting. Raises `ClusterError`."""
        self._is_leaving = True
        async with self._writing:  # A concurrent renewal would make our version outdated.
            if (released := self._election.lease_to_release()) is not None:
                await self._write(released)

    async def _try_to_claim(self) -> bool:
        """Claim or renew the Lease if that is allowed and it wasn't released. Returns whether it
        was written; False also after an error, which is logged."""
        async with self._writing:
            try:
                return not self._is_leaving and await self._claim()
            except ClusterError as error:
                log.warning("the Lease can't be claimed or renewed: %s", error)
            except Exception:  # a bug: keep trying; leading ends by the clock
                log.exception("the Lease can't be claimed or renewed")
            return False

    async def _claim(self) -> bool:
        """Renew the Lease, or claim it if nobody holds it or its holder is late. Returns whether
        that succeeded. Raises `ClusterError`."""
        # The leader writes without a read: it knows the version, unless somebody else wrote it.
        if self.leads() and await self._write(self._election.lease_to_claim()):
            return True
        self._election.observe(await self._leases.read(), self._now())
        if not self._election.may_claim(self._now()):
            return False
        return await self._write(self._election.lease_to_claim())

    async def _write(self, lease: Lease) -> bool:
        """Write the Lease; returns False if somebody else wrote it first. Raises `ClusterError`."""
        sent = self._now()
        stored = await self._leases.write(lease)
        if stored is not None:
            self._election.on_written(stored, sent, self._now())
        return stored is not None


class LeaseThread:
    """Acquires and renews the Lease in a thread with its own event loop, started at once."""

    def __init__(self, leadership: Leadership, on_acquired: Callable[[], None]) -> None:
        """`on_acquired` is called in the new thread once this replica leads."""
        self._leadership = leadership
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(leadership.hold(on_acquired), self._loop)

    async def release(self) -> None:
        """Release the Lease; call it when this replica has stopped acting. No effect if the thread
        has ended. Raises `ClusterError`."""
        if not self._thread.is_alive():
            return
        releasing = asyncio.run_coroutine_threadsafe(self._leadership.release(), self._loop)
        await asyncio.wrap_future(releasing)

    async def close(self) -> None:
        """Stop renewing, and end the thread; no effect if it has ended."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        """Run the thread's event loop until `close` stops it."""
        # At the end, the Runner cancels the tasks that are left, and closes the loop.
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()


class Watchdog:
    """A context that restarts the process as soon as this replica no longer leads."""

    def __init__(self, leadership: Leadership) -> None:
        """`leadership` knows whether and until when this replica leads."""
        self._leadership = leadership
        self._exited = threading.Event()
        """Set when the context ends, so that the thread ends too."""
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        """Begin to watch."""
        self._arm()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching, and cancel the timer."""
        self._exited.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        """Restart the process once this replica no longer leads; until then set the timer in C
        again and again. Runs in the watchdog's thread."""
        armed_at = time.monotonic()
        while not self._exited.wait(WATCHDOG_INTERVAL):
            if not self._leadership.leads():
                restart_process()
            if time.monotonic() >= armed_at + REARM_INTERVAL:
                self._arm()
                armed_at = time.monotonic()

    def _arm(self) -> None:
        """Set or postpone a timer in C that ends the process `STUCK_TIMEOUT` seconds after the loss
        of the Lease, even while one long call holds Python's lock."""
        if (seconds_left := self._leadership.seconds_left()) is not None:
            faulthandler.dump_traceback_later(seconds_left + STUCK_TIMEOUT, exit=True)


def restart_process() -> NoReturn:
    """Replace this process by a new one (`exec`) at once, even if its log is blocked.

    All threads and connections end, as at the end of a process. But the container doesn't restart,
    which Kubernetes would delay more each time and count as a crash. If `exec` fails, the process
    exits with `LOST_EXIT_STATUS`.
    """
    logging_thread = threading.Thread(target=_log_loss, name="lease-lost", daemon=True)
    logging_thread.start()
    logging_thread.join(LOG_TIMEOUT)
    with suppress(OSError):  # close connections and files at `exec`
        for descriptor in os.listdir("/proc/self/fd"):
            if int(descriptor) > STDERR:
                with suppress(OSError):  # `listdir`'s own descriptor is closed by now
                    os.set_inheritable(int(descriptor), False)
    with suppress(OSError):
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    os._exit(LOST_EXIT_STATUS)


def _log_loss() -> None:
    """Log that the Lease is lost, and flush the log. Runs in a thread, as this may block."""
    log.error("the Lease is lost: this replica begins anew")
    logging.shutdown()


class ApiLeaseStore:
    """`LeaseStore` on the API server. It has a client and a thread of its own, as those of
    `ApiCluster` may all be busy."""

    def __init__(self, namespace: str) -> None:
        """Use the Lease in this namespace; the new client has the default configuration."""
        configuration = kubernetes.client.Configuration.get_default_copy()
        configuration.retries = False  # each retry would take as long again
        client = kubernetes.client.ApiClient(configuration)
        self._api = kubernetes.client.CoordinationV1Api(client)
        self._namespace = namespace
        self._thread = ThreadPoolExecutor(1, "lease")

    async def read(self) -> Lease | None:
        """Return the stored Lease; None: there is none. Raises `ClusterError`."""
        return await self._request(
            "read", lambda **options: self._api.read_namespaced_lease(LEASE_NAME, **options)
        )

    async def write(self, lease: Lease) -> Lease | None:
        """Replace the Lease of the version in `lease`, or create it if that is empty. Returns the
        stored Lease; None: somebody else wrote it first. Raises `ClusterError`."""
        # Any: the client takes dictionaries, too, whatever its stubs say.
        body: Any = lease_manifest(lease, self._namespace, datetime.now(UTC))

        def write_body(**options: Any) -> Any:
            """Replace the Lease of the version that was read, or create it if none was read."""
            if lease.version:
                return self._api.replace_namespaced_lease(LEASE_NAME, body=body, **options)
            return self._api.create_namespaced_lease(body=body, **options)

        return await self._request("write", write_body)

    async def _request(self, action: str, call: Callable[..., Any]) -> Lease | None:
        """Run `call`, a method of the client, in the thread and return the Lease; None if it
        doesn't exist or a write conflicts. Raises `ClusterError`, which names the `action`."""

        def ask() -> Lease:
            """Send the request and return the Lease in its answer."""
            answer = call(
                namespace=self._namespace,
                _request_timeout=LEASE_REQUEST_TIMEOUT,
                _preload_content=False,
            )
            return lease_of_document(json.loads(answer.data))

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, ask)
        except ApiException as error:
            if error.status in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                return None
            raise ClusterError(f"can't {action} it: {error.status} {error.reason}") from error
        except (HTTPError, OSError, ValueError) as error:
            raise ClusterError(f"can't {action} it: {error}") from error


def lease_manifest(lease: Lease, namespace: str, now: datetime) -> dict[str, Any]:
    """Return the manifest of a Lease. `now` becomes its `renewTime`, which is only for people: no
    replica compares it with its own clock."""
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
    """Parse a stored Lease; in its spec, a missing duration becomes `DURATION`, and other missing
    fields empty or 0. Raises `ValueError` if a field that should be a number isn't one."""
    spec = document.get("spec") or {}
    return Lease(
        str(spec.get("holderIdentity") or ""),
        float(spec.get("leaseDurationSeconds") or DURATION),
        int(spec.get("leaseTransitions") or 0),
        str(document["metadata"]["resourceVersion"]),
    )
