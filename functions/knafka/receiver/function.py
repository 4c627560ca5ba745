"""The receiver as a function: the ASGI contract of func and functions-framework (FN-2, FN-4).

`start(environment)` connects, `handle(scope, receive, send)` answers one request, `ready()` and
`alive()` answer the platform's probes, `stop()` finishes the requests in flight. Under `protocol`,
which is faster than ASGI, all of them are used but `handle`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from knafka import settings
from knafka.clients.kafka.consumers.kafka_identified import KafkaIdentifiedReader
from knafka.clients.kafka.kafka_connection import connection_configuration, producer_configuration
from knafka.clients.kafka.kafka_statistics import ClientStatistics
from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
from knafka.contract_topic import Contract, ContractFollower
from knafka.core import contract
from knafka.core.contract import Ingress, Kafka
from knafka.core.errors import DeliveryError, InvalidDocument, KnafkaError, LogError
from knafka.observability import RateLimitedFilter
from knafka.ports.log import LogWriter, failure_of
from knafka.receiver import answers
from knafka.receiver.address import HttpHeaders, address_of, decode_path
from knafka.receiver.answers import Answer
from knafka.receiver.authentication import TokenVerifier
from knafka.receiver.connections import Connections
from knafka.receiver.direct import HOLD_TIMEOUT, LOAD_PATH, MAX_HOLDS, DirectLoad, HeldRequests
from knafka.receiver.entries import IngressEntryParser, refuse_if_missing
from knafka.receiver.event_types import SeenTypes
from knafka.receiver.ingest import IngestHandler
from knafka.receiver.limits import header_bytes, leaves_room, limits_for_process
from knafka.receiver.observing import ReceiverObservers
from knafka.receiver.tracing import IngestTracing
from knafka.serving import Receive, Scope, Send
from knafka.tracing.starting import Tracing, start_tracing

if TYPE_CHECKING:
    from knafka.clients.http.http_subscriber import HttpSubscriber

log = logging.getLogger(__name__)
log.addFilter(RateLimitedFilter())

PROBE_TIMEOUT: Final = 2.0
"""Seconds to wait for Kafka's first answer, and for the contract, before looking again."""
DEFAULT_BATCH_BYTES: Final = 1_000_000
"""librdkafka's default for a batch; less costs CPU (docs/decisions/0010)."""
WRITER_RETRY_INTERVAL: Final = 5.0
"""Seconds after which writers that couldn't be opened are tried again."""
UNUSED_WRITER_SECONDS: Final = 60.0
"""Seconds for which an unused writer stays open, as requests that have begun may still need it."""
RECEIVER_STOP_TIMEOUT: Final = 5.0
"""Seconds to finish requests when the process stops: with `serving.GRACEFUL_TIMEOUT`, less than
ten."""


class ReceiverFunction:
    """The receiver's ASGI application; `start` opens all that it needs."""

    ingest: IngestHandler
    """Answers the requests; set by `start`, as are `_connections` and `_statistics`."""

    def __init__(self) -> None:
        """Create the application; nothing is opened before `start`."""
        self._writers: dict[Kafka, LogWriter] = {}
        """The writers in use, by their connection and settings."""
        self._retired_writers: set[LogWriter] = set()
        """Writers that no Ingress uses any more, until they are closed."""
        self._follower: ContractFollower[Ingress] | None = None
        """Reads the contract's topic; None: the environment declares the Ingresses."""
        self._writer_retry: asyncio.TimerHandle | None = None
        """Timer that tries writers again, as last set; None: it was never set."""
        self._tasks: list[asyncio.Task[None]] = []  # those in the background, until `stop`
        self._tracing: Tracing | None = None  # None: no spans are recorded
        self._keys_first_read: asyncio.Event | None = None
        """Set once the keys were read or reading failed; None: no tokens are verified."""
        self._verifier: TokenVerifier | None = None  # verifies senders' tokens; None: nothing does
        self._subscriber: HttpSubscriber | None = None
        """Sends requests to the receiver's own Service, to show load; None: no load is shown."""
        self._statistics: ClientStatistics

    async def start(self, environment: Mapping[str, str]) -> None:
        """Read the settings, connect to Kafka and start to serve. Raises `InvalidDocument` for
        settings or a contract that can't be used."""
        receiver = settings.receiver(environment)  # None: the environment declares the Ingresses
        ingresses = settings.ingresses(environment) if receiver is None else ()
        callers, scrapers = settings.callers(environment), settings.scrapers(environment)
        types = SeenTypes() if settings.lists_event_types(environment) else None
        # `_serve` and `_follow` need the keys and the statistics, and create `ingest`.
        self._open_keys(settings.oidc_url(environment), settings.oidc_folder(environment))
        self._statistics = ClientStatistics(settings.statistics_interval(environment))
        self._tracing = start_tracing(environment, "knafka-receiver")
        spans = None if self._tracing is None else IngestTracing(self._tracing.tracer)
        observers = ReceiverObservers(spans, types, self._statistics.metrics, callers, scrapers)
        if receiver is None:
            self._serve(ingresses, observers)
        else:
            self._follow(receiver, observers)
        # The rest needs `ingest`.
        self._connections = Connections(self.ingest, asyncio.get_running_loop())
        self._tasks.append(asyncio.create_task(self._wait_for_kafka()))
        self._start_direct_load(settings.service_url(environment))

    def _start_direct_load(self, service_url: str | None) -> None:
        """Start to show direct events to Knative's autoscaler (`direct`). `service_url`: the
        receiver's own Service; None: do nothing. Raises `InvalidDocument` for an invalid URL."""
        if service_url is None:
            return
        # Imported here, as most receivers send no requests.
        from knafka.clients.http.http_subscriber import HttpSubscriber
        from knafka.ports.subscriber import Target

        target = Target.parse(service_url.rstrip("/") + LOAD_PATH.decode())
        subscriber = self._subscriber = HttpSubscriber(limit=MAX_HOLDS)

        async def hold() -> None:
            """Send a request to the receiver's own Service, which answers late; ignore errors."""
            with contextlib.suppress(DeliveryError):
                await subscriber.post(target, b"", b"", HOLD_TIMEOUT)

        self.ingest.held = HeldRequests(asyncio.get_running_loop())
        load = DirectLoad(lambda: self._connections.direct_requests, hold)
        self._tasks.append(asyncio.create_task(load.follow()))

    def _open_keys(self, url: str | None, folder: Path) -> None:
        """Start to read the keys of senders' tokens from the API server at `url`, with the
        credentials in `folder`, and create the verifier; if `url` is None, do nothing. Raises
        `InvalidDocument` if a library is missing, or the URL or the credentials can't be used."""
        if url is None:
            return
        try:
            # Imported here: the libraries take 0.1 s, and most receivers don't need them.
            from knafka.clients.kubernetes.api_server_keys import (
                ApiServerKeys,
                fetch_with_credentials,
            )
        except ImportError as error:
            problem = f"senders' tokens want the extra `oidc`, which isn't installed ({error})"
            raise InvalidDocument(settings.OIDC_URL, problem) from error
        try:
            keys = ApiServerKeys(fetch_with_credentials(url, folder))
        except InvalidDocument as error:
            raise InvalidDocument(settings.OIDC_URL, str(error)) from error
        self._verifier, self._keys_first_read = TokenVerifier(keys), keys.tried
        self._tasks.append(asyncio.create_task(keys.follow()))

    def _serve(self, ingresses: Sequence[Ingress], observers: ReceiverObservers) -> None:
        """Serve the Ingresses that the environment declares, with one writer for each Kafka."""
        for ingress in ingresses:
            if ingress.kafka not in self._writers:
                configuration = {
                    **producer_configuration(ingress.kafka),
                    **_batch_size_setting(ingress.kafka, ingresses),
                    **self._statistics.connection,
                }
                self._writers[ingress.kafka] = KafkaWriter(configuration)
        writers = [self._writers[ingress.kafka] for ingress in ingresses]
        self.ingest = IngestHandler(
            ingresses, writers, limits_for_process(), verifier=self._verifier, observers=observers
        )

    def _follow(self, receiver: contract.Receiver, observers: ReceiverObservers) -> None:
        """Serve the Ingresses in the contract topic of `receiver`, and follow its changes. Batches
        aren't limited to the present topics' limits, as other topics may be added later: if a batch
        was too large, the writer sends its records again one by one."""
        open_reader = partial(
            KafkaIdentifiedReader, connection_configuration(receiver.kafka), receiver.contract_topic
        )
        parser = IngressEntryParser(receiver.path)
        follower = self._follower = ContractFollower(parser, open_reader)
        self.ingest = IngestHandler(
            (), (), limits_for_process(), Contract(), verifier=self._verifier, observers=observers
        )
        contract_writer = self._ensure_writer(receiver.kafka)

        def apply_contract() -> None:
            """Serve the Ingresses that the contract declares now. Those whose writer can't be
            opened are refused until it can (`WRITER_RETRY_INTERVAL`)."""
            current_contract = refuse_if_missing(receiver.path, follower.contract)
            served, refused = [], dict(current_contract.refused)
            for path, ingress in current_contract.entries.items():
                kafka = _with_producer_settings(ingress, receiver.kafka)
                try:
                    served.append((ingress, self._ensure_writer(kafka)))
                except KnafkaError as error:  # all other Ingresses must be served
                    log.warning("%s: its Kafka client can't be opened: %s", path, error)
                    refused[path] = f"its Kafka client can't be opened: {error}"
            self.ingest.serve(served, replace(current_contract, refused=refused), receiver.path)
            self._connections.forget_routes()
            self._retire_writers_except({contract_writer, *(writer for _, writer in served)})
            self._stop_writer_retry()
            if len(served) < len(current_contract.entries):
                loop = asyncio.get_running_loop()
                self._writer_retry = loop.call_later(WRITER_RETRY_INTERVAL, apply_contract)

        follower.listeners.append(apply_contract)
        self._tasks.append(asyncio.create_task(follower.follow()))

    def _stop_writer_retry(self) -> None:
        """Stop the timer that tries writers again, if it is set."""
        if self._writer_retry is not None:
            self._writer_retry.cancel()

    def _ensure_writer(self, kafka: Kafka) -> LogWriter:
        """Return the writer for `kafka`; if there is none, open it and add it to `ingest`."""
        if kafka not in self._writers:
            self._writers[kafka] = KafkaWriter(
                {**producer_configuration(kafka), **self._statistics.connection}
            )
            self.ingest.writers.append(self._writers[kafka])
        return self._writers[kafka]

    def _retire_writers_except(self, needed: Collection[LogWriter]) -> None:
        """Take all writers except `needed` out of use; they close `UNUSED_WRITER_SECONDS` later."""
        for kafka, writer in list(self._writers.items()):
            if writer not in needed:
                del self._writers[kafka]
                self._retired_writers.add(writer)
                closing = asyncio.create_task(self._close_later(writer))
                self._tasks.append(closing)
                closing.add_done_callback(self._tasks.remove)

    async def _close_later(self, writer: LogWriter) -> None:
        """Close a writer after `UNUSED_WRITER_SECONDS` seconds."""
        await asyncio.sleep(UNUSED_WRITER_SECONDS)
        await writer.close(RECEIVER_STOP_TIMEOUT)
        self._retired_writers.discard(writer)
        self.ingest.writers.remove(writer)

    async def _wait_for_kafka(self) -> None:
        """Wait until every Kafka has answered or is known to be away, then become ready.

        If Kafka is away, this pod becomes ready and answers 503: another pod would do no better,
        and Knative starts more pods while none is ready. If Kafka refuses this client, this pod
        stays unready: Kafka may accept another revision of the function.
        """
        if self._keys_first_read is not None:
            # Without the keys, the first events would be refused. If they can't be read, go on, as
            # other pods can't read them either.
            await self._keys_first_read.wait()
        writers = list(self._writers.values())
        for writer in writers:
            while True:
                try:
                    await writer.reach(PROBE_TIMEOUT)
                except LogError as error:
                    if writer.away is not None:
                        break  # the writer itself goes on asking Kafka
                    self.ingest.waiting = answers.kafka_unanswered(str(error))
                    await asyncio.sleep(PROBE_TIMEOUT / 10)
                else:
                    break
        if self._follower is not None:
            await self._wait_for_contract(self._follower, writers)
        self.ingest.waiting = None

    async def _wait_for_contract(
        self, follower: ContractFollower[Ingress], writers: Sequence[LogWriter]
    ) -> None:
        """Wait until the contract is read, or until a writer's Kafka is known to be away: requests
        are then answered 503 until the contract is read."""
        while not follower.is_ready and all(writer.away is None for writer in writers):
            self.ingest.waiting = answers.contract_unread(follower.problem or "no answer so far")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PROBE_TIMEOUT):
                    await follower.wait_until_ready()

    def state(self) -> Mapping[str, Any]:
        """Return the objects, by name, that `ReceiverProtocol` gets as its `app_state`."""
        return {"connections": self._connections}

    def interrupt(self) -> None:
        """Do nothing, as no request needs to be ended early."""

    async def wait_until_interrupted(self) -> None:
        """Return at once, as `interrupt` ends nothing that must be waited for."""

    async def stop(self) -> None:
        """End the background tasks, wait up to `RECEIVER_STOP_TIMEOUT` for Kafka's answers to the
        requests under way, and close all clients."""
        if self.ingest.held is not None:
            self.ingest.held.close()
        self._connections.close()
        self._stop_writer_retry()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        writers = [*self._writers.values(), *self._retired_writers]
        await asyncio.gather(*(writer.close(RECEIVER_STOP_TIMEOUT) for writer in writers))
        if self._subscriber is not None:
            await self._subscriber.close()
        if self._tracing is not None:
            await self._tracing.close()

    def alive(self) -> tuple[bool, str]:
        """Return whether the process is alive, and a text: `alive`, or the error that only a
        restart ends."""
        failure = failure_of(self._writers.values())
        return (True, "alive") if failure is None else (False, str(failure))

    def ready(self) -> tuple[bool, str]:
        """Return whether the receiver is ready (`_wait_for_kafka`), and a text: `ready`, or what
        the receiver waits for (UX-3)."""
        if (unready_answer := self.ingest.waiting) is None:
            return True, "ready"
        return False, unready_answer.body.decode().strip()

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request, as an ASGI application."""
        path = decode_path(scope.get("raw_path") or scope["path"].encode())
        headers = [(name, value) for name, value in scope["headers"]]  # ASGI allows lists as pairs
        address = address_of(path, headers)
        body = await self._read_body(address, headers, receive)
        if body is None:
            return  # the sender has hung up
        if isinstance(body, Answer):
            answer = self.ingest.count_refusal(address, body)
        else:
            answer = await self._answer(scope["method"].encode(), address, headers, body)
        await send(
            {"type": "http.response.start", "status": answer.status, "headers": answer.headers}
        )
        await send({"type": "http.response.body", "body": answer.body})

    async def _read_body(
        self, address: bytes, headers: HttpHeaders, receive: Receive
    ) -> bytes | Answer | None:
        """Return the whole body, the `Answer` if the request is refused, or None if the sender has
        hung up. While the body comes in, its bytes count in `Connections.receiving_bytes`."""
        limits, shared = self.ingest.limits, self._connections
        if header_bytes(headers) > limits.header_bytes:
            return answers.HEADERS_TOO_LARGE
        if len(headers) > limits.headers:
            return answers.TOO_MANY_HEADERS
        limit, refusal = self.ingest.body_limit(address)
        for name, value in headers:
            if name == b"content-length" and value.isdigit():
                if len(value) > 18 or int(value) > limit:  # `int` of many digits takes long
                    return refusal
            if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
                return answers.ENCODED
        parts: list[bytes] = []
        size, has_more = 0, True
        try:
            while has_more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                shared.receiving_bytes += len(parts[-1])
                has_more = message.get("more_body", False)
                if size > limit:
                    return refusal
                if not leaves_room(size, shared.receiving_bytes, limits.in_flight_bytes):
                    return answers.BUSY
        finally:
            shared.receiving_bytes -= size
        return b"".join(parts)

    async def _answer(
        self, method: bytes, address: bytes, headers: HttpHeaders, body: bytes
    ) -> Answer:
        """Pass a whole request to `ingest`, and return its answer once there is one."""
        answer_future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def respond(answer: Answer) -> None:
            """Pass the answer to `handle`, unless that was cancelled."""
            if not answer_future.done():
                answer_future.set_result(answer)

        self.ingest.handle(method, address, headers, body, respond)
        return await answer_future


def _with_producer_settings(ingress: Ingress, kafka: Kafka) -> Kafka:
    """Return the connection `kafka` with the producer settings that an Ingress declares."""
    return kafka.model_copy(update={"producer": ingress.kafka.producer})


def _batch_size_setting(kafka: Kafka, ingresses: Sequence[Ingress]) -> Mapping[str, Any]:
    """Return librdkafka's setting `batch.size` if a topic of this Kafka, or its declared settings,
    want smaller batches than the default; else an empty mapping.

    The setting holds for all topics, so it is the smallest of their limits. A topic with an unknown
    limit works too: if a batch was too large, the writer sends its records again one by one.
    """
    limits = [ingress.max_batch_bytes for ingress in ingresses if ingress.kafka == kafka]
    declared = int(kafka.producer.get("batch.size", DEFAULT_BATCH_BYTES))
    smallest = min((limit for limit in limits if limit is not None), default=DEFAULT_BATCH_BYTES)
    smallest = min(smallest, declared)
    return {"batch.size": smallest} if smallest < DEFAULT_BATCH_BYTES else {}
