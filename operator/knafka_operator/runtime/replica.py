"""Replica: runs one process of the operator from start to end. A launcher, so it may import every
module.

    every replica    webhooks, metrics, connections to every Kafka: warm
    the leader       resume deliveries -> reconcile everything -> close drain requests
                     -> release the Lease

kopf serves the webhooks in a thread with its own event loop: at its end it cancels all tasks of its
loop, and a webhook's answer must not wait for the leader's work.

Not here: who leads (`kube_api.leadership`), and what is done (`controller`, `operator`).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Final, TypeVar

import kopf

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
from knafka_operator.installation.settings import Settings
from knafka_operator.kube_api.cache import CachedCluster
from knafka_operator.kube_api.cluster import ApiCluster
from knafka_operator.kube_api.leadership import ApiLeaseStore, Leadership, LeaseThread, Watchdog
from knafka_operator.kube_api.lease import Election
from knafka_operator.model.cluster import ClusterError, NotAllowed
from knafka_operator.model.resources import CORE
from knafka_operator.operator import Operator
from knafka_operator.runtime.controller import ClusterController
from knafka_operator.runtime.function_keys import FunctionKeys
from knafka_operator.runtime.metrics import MetricsServer
from knafka_operator.runtime.naming import FollowedNaming
from knafka_operator.runtime.tracing import FollowedTracing
from knafka_operator.scale.repeat import run_repeatedly
from knafka_operator.webhooks import channel_handlers, handlers, sink_handlers, source_handlers
from knafka_operator.webhooks import server as webhooks
from knafka_operator.webhooks.registration import REGISTER_INTERVAL, Registration, declared_webhooks
from knafka_operator.wiring import OperatorClients

log = logging.getLogger("knafka")

T = TypeVar("T")

PREPARE_INTERVAL: Final = 300.0
"""Seconds between two rounds in which a waiting replica connects to the Kafkas that it would
need."""
MAX_READ_BYTES: Final = 128 * 1024 * 1024
"""Most bytes of a topic that is read into memory as a whole; anyone with access to its Kafka can
fill it. The contract of ten thousand Triggers has 20 MB, and several times as much before
compaction."""
REPLICA_RETRY_INTERVAL: Final = 1.0
"""Seconds before a failed request to the API server is repeated."""
WEBHOOKS_STOP_TIMEOUT: Final = 5.0
"""Seconds to wait for the end of the webhooks' thread."""


async def run(settings: Settings) -> None:
    """Run one replica of the operator until SIGTERM or SIGINT: serve webhooks and metrics, and
    reconcile while it leads. At the end, and after an error, close all that was started, and
    release the Lease if this replica holds it. Raises `ClusterError` if no cluster is configured.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    api = await asyncio.to_thread(ApiCluster.from_environment)
    async with AsyncExitStack() as closing:
        await _run(settings, api, stop, closing)


async def _run(
    settings: Settings, api: ApiCluster, stop: asyncio.Event, closing: AsyncExitStack
) -> None:
    """Run one replica until `stop` is set. `closing` gets a callback for each part that is started,
    which closes the part; the caller runs the callbacks afterwards, the last one first."""
    loop, cluster = asyncio.get_running_loop(), CachedCluster(api)
    leadership = Leadership(ApiLeaseStore(settings.namespace), Election(settings.identity))
    # Start this first: another replica's Lease counts as expired only after a timeout that begins
    # with our first read.
    acquired = asyncio.Event()
    lease = LeaseThread(leadership, lambda: _set_from_thread(loop, acquired))
    closing.push_async_callback(_leave, lease)  # if what follows fails; below it is pushed again
    tracing = FollowedTracing(settings, api)
    keys = FunctionKeys(settings, api)
    clients = OperatorClients(partial(KafkaAdmin, max_read_bytes=MAX_READ_BYTES), KafkaWriter)
    operator = Operator(settings, cluster, clients)
    closing.push_async_callback(operator.close)
    serving: Webhooks | None = None
    # Serve probes before any request to the API server: its failure must not restart the pod.
    http = await MetricsServer.start(
        operator, leadership.leads, lambda: serving is not None and serving.is_ready()
    )
    closing.push_async_callback(http.close)
    await tracing.start()
    await keys.start()
    if settings.channels:
        installation_id = await _retry_until_answered(
            "the installation", lambda: _read_installation_id(settings, api)
        )
        settings = replace(settings, installation=installation_id)
        # It registers itself with `operator`, which from now on also runs it, and closes it.
        Operator(settings, cluster, clients, beside=operator)
    serving = await _start_webhooks(
        settings, api, operator, lambda: _set_from_thread(loop, stop), channels=settings.channels
    )
    closing.push_async_callback(serving.close)
    # Exclude imported modules from garbage collection: each full collection would visit them, and
    # block the process for 50 ms.
    gc.collect()
    gc.freeze()
    # This callback runs first: it releases the Lease, so that after an error another replica can
    # lead while this one closes the rest.
    closing.push_async_callback(_leave, lease)
    if await _wait_for_lease(acquired, operator, stop):
        with Watchdog(leadership):
            naming = FollowedNaming(settings, api)
            controller = ClusterController(operator, cluster, api, tracing, keys, naming)
            await _lead(controller, operator, lease, (keys, tracing, naming), stop)


async def _read_installation_id(settings: Settings, api: ApiCluster) -> str:
    """Return the UID of the operator's namespace, by which installations are told apart; empty if
    the operator may not read the namespace, or if it is missing. Raises other `ClusterError`s than
    `NotAllowed`."""
    namespace = settings.namespace
    try:
        namespace_document = await api.get(CORE, "Namespace", namespace, namespace)
    except NotAllowed as error:
        log.warning(
            "channels can't be told from those of other clusters at the same Kafka: %s", error
        )
        namespace_document = None
    return "" if namespace_document is None else str(namespace_document["metadata"]["uid"])


async def _wait_for_lease(acquired: asyncio.Event, operator: Operator, stop: asyncio.Event) -> bool:
    """Wait until this replica has the Lease (`acquired`) or must stop; returns whether it leads.
    Meanwhile keep it prepared: connected to the Kafkas that a leader needs."""
    log.info("waiting for the Lease")
    preparing = asyncio.create_task(
        run_repeatedly("being ready", operator.prepare, PREPARE_INTERVAL, 0.0)
    )
    waiting = [asyncio.create_task(event.wait()) for event in (acquired, stop)]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in (preparing, *waiting):
        task.cancel()
    await asyncio.wait((preparing, *waiting))
    return acquired.is_set()


async def _lead(
    controller: ClusterController,
    operator: Operator,
    lease: LeaseThread,
    followed: tuple[FunctionKeys, FollowedTracing, FollowedNaming],
    stop: asyncio.Event,
) -> None:
    """Act as the leader until `stop` is set, then close the operator. `followed` has the parts that
    follow ConfigMaps and Secrets; they read these again first. Raises the error of the leader's
    work, if that fails.

    If the operator can't be closed, the Lease isn't released: it expires, because drain requests
    that are still open may go on delivering until then.
    """
    log.info("this replica leads")
    keys, tracing, naming = followed

    async def act() -> None:
        """Load what another leader may have changed, resume deliveries, then reconcile until
        cancelled."""
        await keys.start()  # another leader may have changed the keys
        await naming.start()
        for family_operator in operator.all_operators:
            await _resume(family_operator)
        await tracing.start()  # tracing may have changed while another replica led
        await controller.run()

    acting, stopping = asyncio.create_task(act()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((acting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if acting.done():
            acting.result()  # the task ends by itself only after a bug
    finally:
        for task in (acting, stopping):
            task.cancel()
        await asyncio.wait((acting, stopping))
        try:
            await operator.close()
        except BaseException:
            await lease.close()
            raise


async def _leave(lease: LeaseThread) -> None:
    """Release the Lease if this replica holds it, so that another one can lead at once, and end the
    Lease's thread. A failed release is logged. Call it only when this replica has stopped acting; a
    second call has no effect."""
    try:
        await lease.release()
    except ClusterError as error:
        log.warning("the Lease is not released: %s", error)
    finally:
        await lease.close()


async def _resume(operator: Operator) -> None:
    """Resume the delivery of all Triggers of an operator; retries until the API server answers."""
    began = time.monotonic()
    count = await _retry_until_answered("resuming what is delivered", operator.resume)
    kind = operator.family.trigger
    log.info("%d %ss resumed after %.2f s", count, kind, time.monotonic() - began)


async def _retry_until_answered(action: str, ask: Callable[[], Awaitable[T]]) -> T:
    """Call `ask` until it doesn't raise `ClusterError`, with `REPLICA_RETRY_INTERVAL` seconds in
    between, and return its result. Each such error is logged after `action`, which names what is
    attempted."""
    while True:
        try:
            return await ask()
        except ClusterError as error:
            log.warning("%s: %s", action, error)
            await asyncio.sleep(REPLICA_RETRY_INTERVAL)


class Webhooks:
    """Runs kopf's webhook server in a thread, and keeps the webhooks registered."""

    def __init__(
        self,
        run_kopf: Callable[[threading.Event], None],
        serves: asyncio.Event,
        registration: Registration | None,
    ) -> None:
        """Start `run_kopf` in a thread: it serves webhooks until the event that it gets is set.
        `serves` is set once webhooks are served. `registration` registers the webhooks at the API
        server; None: there are none."""
        self._stop = threading.Event()
        """Ends the thread."""
        self._serves = serves
        self._registration = registration
        self._registered = registration is None
        """Whether all webhooks are registered."""
        self._thread = threading.Thread(
            target=run_kopf, args=(self._stop,), name="webhooks", daemon=True
        )
        self._thread.start()
        self._registering = asyncio.create_task(self._register())
        """Registers the webhooks, until it is cancelled."""

    def is_ready(self) -> bool:
        """Whether webhooks are served, and all of them are registered at the API server."""
        return self._serves.is_set() and self._registered

    async def _register(self) -> None:
        """Register the webhooks at the API server once this replica serves them, and again every
        `REGISTER_INTERVAL` seconds, until cancelled; does nothing without webhooks."""
        if (registration := self._registration) is None:
            return
        await self._serves.wait()
        await _retry_until_answered("registering webhooks", registration.register)
        self._registered = True
        await run_repeatedly("registering webhooks", registration.register, REGISTER_INTERVAL)

    async def close(self) -> None:
        """Stop serving, and end the thread; the registration stays, as all replicas share it."""
        self._registering.cancel()
        await asyncio.wait([self._registering])
        self._stop.set()
        await asyncio.to_thread(self._thread.join, WEBHOOKS_STOP_TIMEOUT)


async def _start_webhooks(
    operator_settings: Settings,
    cluster: ApiCluster,
    operator: Operator,
    on_end: Callable[[], None],
    *,
    channels: bool = False,
) -> Webhooks:
    """Start kopf's webhook server, and register its webhooks in the background. `on_end` is called
    when the server ends, in its thread. `channels`: whether the webhooks of KafkaChannels and
    Subscriptions are served, too."""
    settings, serves = handlers.kopf_settings(), asyncio.Event()
    loop = asyncio.get_running_loop()
    registration: Registration | None = None
    if channels:
        channel_handlers.register(handlers.REGISTRY)
    if operator_settings.sources:
        source_handlers.register(handlers.REGISTRY)
    if operator_settings.sinks:
        sink_handlers.register(handlers.REGISTRY)
    if operator_settings.webhooks:
        pem = await _retry_until_answered(
            "the webhooks' certificate",
            lambda: webhooks.ensure_certificate(
                cluster, operator_settings.namespace, datetime.now(UTC)
            ),
        )
        settings.admission.server = webhooks.ServiceServer(
            operator_settings.namespace, pem, lambda: _set_from_thread(loop, serves)
        )
        all_webhooks = declared_webhooks(
            handlers.REGISTRY, handlers.DOMAIN, operator_settings.namespace, pem["ca.crt"]
        )
        uid = operator_settings.identity.partition("_")[2]  # the identity is NAME_UID of the pod
        registration = Registration(
            cluster, operator_settings.namespace, uid, handlers.DOMAIN, all_webhooks
        )
    else:
        serves.set()

    def run_kopf(stop: threading.Event) -> None:
        """Serve the webhooks by kopf in this thread until `stop` is set; an error is logged. Calls
        `on_end` at the end."""
        try:
            asyncio.run(
                kopf.operator(
                    registry=handlers.REGISTRY,
                    settings=settings,
                    memo=kopf.Memo(operator=operator, cluster=cluster),
                    clusterwide=True,
                    standalone=True,
                    stop_flag=stop,
                )
            )
        except Exception:
            log.exception("the webhooks ended")
        on_end()

    return Webhooks(run_kopf, serves, registration)


def _set_from_thread(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """Set an event of `loop` from another thread; does nothing once the loop is closed."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)
