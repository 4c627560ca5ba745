"""Admin requests with a timeout, retried while a coordinator or leader is moving.

The error of a request without an answer includes librdkafka's last report
(`core.kafka_settings.connection_errors`). If waiting can't resolve that report, the request fails
at once.

Not here: the requests themselves (`kafka_admin`, `kafka_groups`, `kafka_topic_requests`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from knafka.clients.kafka.kafka_client import Connection, log_error_of, open_admin
from knafka.core.errors import LogError
from knafka.core.kafka_settings.connection_errors import ConnectionErrors

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

REQUEST_RETRY_INTERVAL: Final = 0.1
"""Seconds before a request is repeated because its coordinator or leader is moving."""
REPORT_POLL_INTERVAL: Final = 0.2
"""Seconds between two polls for librdkafka's reports while there is no answer."""
METADATA_REFRESH_INTERVAL: Final = 1.0
"""Seconds without an answer after which librdkafka must read the cluster's metadata again. By
itself (2.16.1) it waits for minutes for a controller or leader that is gone."""
LONGEST_TIMEOUT: Final = 3600.0
"""The longest timeout (seconds) of a request that librdkafka accepts, for a request that must have
no timeout."""
MAX_BLOCKING_CALLS: Final = 8
"""Most blocking calls at a time. They have threads of their own, so as not to use up asyncio's."""

MOVING_LEADER_ERRORS: Final = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        # A broker may not know yet of a partition that has just been created or moved.
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
"""Errors of a request that went to a partition's leader as librdkafka knows it, after which the
metadata must be read (`refresh_metadata`): an admin client's ListOffsets names the leader's epoch
that was read last, and fails for minutes after a restart of Kafka (2.16.1)."""
MOVING_ERRORS: Final = MOVING_LEADER_ERRORS | {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
"""Errors of a request that may succeed a moment later, as a coordinator or leader is moving."""
WATERMARK_RETRY_ERRORS: Final = MOVING_ERRORS | {KafkaError._UNKNOWN_PARTITION}
"""Errors of a request for a partition's offsets that may succeed a moment later. librdkafka
(2.16.1) may not know a partition that it has named just before (confluent-kafka-dotnet#1510)."""
NO_ANSWER_ERRORS: Final = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
    }
)
"""Errors of a request to which Kafka gave no answer."""

K = TypeVar("K")
T = TypeVar("T")


class AdminCalls:
    """Sends requests to one Kafka; used on one event loop.

    A request that fails raises `LogError`. So does a request that Kafka doesn't answer within
    `timeout` seconds, with the reason that librdkafka reports. Until then, requests are repeated
    while a coordinator or leader is moving.
    """

    def __init__(self, connection: Connection, timeout: float) -> None:
        """Open the admin client and the threads for blocking calls. Raises `LogError` if the client
        can't be opened."""
        self.timeout = timeout
        """Seconds within which Kafka must answer a request, repetitions included."""
        self._connection = connection
        self._threads = ThreadPoolExecutor(MAX_BLOCKING_CALLS, thread_name_prefix="kafka-admin")
        self._errors = ConnectionErrors()
        """What librdkafka has reported of the client's connections."""
        self._refreshing: Future[None] | None = None
        """The last reading of the cluster's metadata in a thread; None: there was none yet."""
        self._answered_at = time.monotonic()
        """When Kafka last answered, or the client was opened."""
        self.admin = open_admin(connection, self._errors.record)
        """The admin client; `reopen` replaces it."""
        self._opened_clients = 1
        """Number of clients opened so far, by which a request notices that its client was
        replaced."""

    async def request_one(self, send_request: Callable[[float], Future[T]]) -> T:
        """Send a request that has one future, and return its result. `send_request` sends the
        request with the given timeout in seconds. Raises `LogError`."""
        # `request_each` needs a key for the only future: None.
        results = await self.request_each(lambda timeout: {None: send_request(timeout)})
        return results[None]

    async def request_each(
        self,
        send_request: Callable[[float], Mapping[K, Future[T]]],
        omitted_codes: Collection[int] = (),
        *,
        allow_failures: bool = False,
    ) -> dict[K, T]:
        """Send a request that has a future for each key, and return the results by key.

        Keys whose error has one of `omitted_codes` are left out. `allow_failures`: also leave out
        keys with any other error, unless no key succeeds. `send_request` sends the request with the
        given timeout in seconds. Raises `LogError`.
        """

        async def request(timeout: float) -> dict[K, T]:
            """Send the request and return its results by key."""
            return await self._wait_for_results(
                send_request(timeout), timeout, omitted_codes, allow_failures=allow_failures
            )

        return await self._repeat_until_answered(request)

    async def ask_coordinator(
        self,
        send_request: Callable[[float], Mapping[K, Future[T]]],
        omitted_codes: Collection[int] = (),
    ) -> dict[K, T]:
        """Send a request that a group's coordinator answers, and return the results by key: the
        request has a future for each key. Keys whose error has one of `omitted_codes` are left out.
        Raises `LogError`.

        librdkafka (2.16.1) aborts the process if its own timeout for such a request expires and a
        broker comes up afterwards (librdkafka#4605). So `send_request` gets `LONGEST_TIMEOUT` as
        its timeout. If we stop waiting earlier, the client is replaced, so that the request is not
        sent late.
        """

        async def request(timeout: float) -> dict[K, T]:
            """Send the request and return its results by key; replace the client if a request is
            left without an answer."""
            client_number = self._opened_clients
            futures = send_request(LONGEST_TIMEOUT)
            try:
                return await self._wait_for_results(futures, timeout, omitted_codes)
            finally:
                is_present_client = client_number == self._opened_clients
                if is_present_client and not all(future.done() for future in futures.values()):
                    with suppress(LogError):
                        self._release(self._replace())

        return await self._repeat_until_answered(request)

    async def _wait_for_results(
        self,
        futures: Mapping[K, Future[T]],
        timeout: float,
        omitted_codes: Collection[int],
        *,
        allow_failures: bool = False,
    ) -> dict[K, T]:
        """Wait for the futures and return their results by key, with `omitted_codes` and
        `allow_failures` as in `request_each`. Raises `KafkaException` for the first other error,
        and `LogError` for an error that waiting won't mend."""
        results = {}
        first_error: KafkaException | None = None
        for key, future in futures.items():
            # All futures are done at the same time: awaiting each would cost more than the request.
            if not future.done():
                await self._wait_for_answer(future, timeout)
            try:
                results[key] = future.result()
            except KafkaException as error:
                if error.args[0].code() in omitted_codes:
                    continue
                if not allow_failures:
                    raise
                first_error = first_error or error
        if first_error is not None and not results:
            raise first_error
        return results

    async def request_together(
        self,
        send_request: Callable[[Future[dict[K, Any]], float], None],
        omitted_codes: Collection[int] = (),
        *,
        allow_failures: bool = False,
    ) -> dict[K, Any]:
        """Send a request that has one future for the results of all keys, and return the results by
        key. In the future's result, a failed key has a `KafkaError` as its value. `omitted_codes`
        and `allow_failures` are those of `request_each`. Raises `LogError`.

        With thousands of keys, a future for each would cost more than the request.
        """

        async def request(timeout: float) -> dict[K, Any]:
            """Send the request and return the results that succeeded, by key. Raises
            `KafkaException` for an error not in `omitted_codes`, unless `allow_failures` is set and
            a key succeeded."""
            answer: Future[dict[K, Any]] = Future()
            # librdkafka must be able to set a result even after the caller was cancelled.
            answer.set_running_or_notify_cancel()
            send_request(answer, timeout)
            await self._wait_for_answer(answer, timeout)
            results = answer.result()
            errors = [result for result in results.values() if isinstance(result, KafkaError)]
            if not errors:
                return results
            successes = {
                key: result for key, result in results.items() if not isinstance(result, KafkaError)
            }
            unexpected_errors = [error for error in errors if error.code() not in omitted_codes]
            if unexpected_errors and not (allow_failures and successes):
                raise KafkaException(unexpected_errors[0])
            return successes

        return await self._repeat_until_answered(request)

    async def run_in_thread(self, call: Callable[[float], T]) -> T:
        """Run a blocking call in a thread and return its result. `call` gets the seconds that it
        may take, and may raise `KafkaException`. The call is repeated while a coordinator or leader
        is moving. Raises `LogError`."""

        def run(timeout: float) -> Awaitable[T]:
            """Run `call` in one of the threads, with this timeout (seconds)."""
            loop = asyncio.get_running_loop()
            return loop.run_in_executor(self._threads, call, timeout)

        return await self._repeat_until_answered(run)

    def close(self) -> None:
        """Stop the threads; calls that have not begun are cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _wait_for_answer(self, future: Future[Any], timeout: float) -> None:
        """Wait until `future` is done, with a result or an error. Raises `LogError` if librdkafka
        reports an error that waiting won't mend, and `KafkaException` after `timeout` seconds."""
        answer = asyncio.wrap_future(future)
        deadline = time.monotonic() + timeout + REPORT_POLL_INTERVAL
        refresh_at = time.monotonic() + METADATA_REFRESH_INTERVAL
        try:
            while True:
                done, _ = await asyncio.wait({answer}, timeout=REPORT_POLL_INTERVAL)
                if done:
                    break
                if time.monotonic() > deadline:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
                self.admin.poll(0)
                if time.monotonic() > refresh_at:
                    self._refresh_metadata()
                    refresh_at = time.monotonic() + METADATA_REFRESH_INTERVAL
                if refusal := self._errors.refusal:
                    raise LogError(refusal)
            # The caller gets an error from `future`; this call keeps asyncio from logging it.
            answer.exception()
        finally:
            answer.cancel()

    def _refresh_metadata(self) -> None:
        """Make librdkafka read the cluster's metadata, in a thread, unless that is under way."""
        if self._refreshing is None or self._refreshing.done():
            with suppress(RuntimeError):  # the threads are stopped already
                self._refreshing = self._threads.submit(refresh_metadata, self.admin, self.timeout)

    async def _repeat_until_answered(self, send_request: Callable[[float], Awaitable[T]]) -> T:
        """Send a request by `send_request`, which gets a timeout in seconds and raises
        `KafkaException`. Repeat that while a coordinator or leader moves, for at most
        `self.timeout` seconds. Returns the request's result; raises `LogError`."""
        # Earlier reports don't explain a failure of this request: poll first, so that `forget`
        # drops those that librdkafka hasn't delivered yet, too.
        self.admin.poll(0)
        self._errors.forget()
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                answer = await send_request(
                    max(REQUEST_RETRY_INTERVAL, deadline - time.monotonic())
                )
                self._errors.forget_all()
                self._answered_at = time.monotonic()
                return answer
            except KafkaException as error:
                code = error.args[0].code()
                if code in NO_ANSWER_ERRORS:
                    # This comes before `reopen`, as the present client knows the reason.
                    no_answer = self._no_answer_error()
                    if time.monotonic() - self._answered_at >= self.timeout:
                        # The client may have lost its brokers (`kafka_liveness`).
                        with suppress(LogError):
                            self.reopen()
                    raise no_answer from error
                if code not in MOVING_ERRORS or time.monotonic() > deadline:
                    raise log_error_of(error.args[0]) from error
                if code in MOVING_LEADER_ERRORS:
                    self._refresh_metadata()
            await asyncio.sleep(REQUEST_RETRY_INTERVAL)

    def reopen(self) -> None:
        """Replace the client by a new one, and release the former one after `timeout` seconds.
        Raises `LogError` if none can be created."""
        # Other callers' requests by the former client may still be answered.
        asyncio.get_running_loop().call_later(self.timeout, self._release, self._replace())

    def _replace(self) -> AdminClient:
        """Open a new client in place of the present one. Returns the former one, which the caller
        must release (`_release`). Raises `LogError` if none can be created."""
        former, self.admin = self.admin, open_admin(self._connection, self._errors.record)
        self._opened_clients += 1
        self._answered_at = time.monotonic()
        return former

    def _release(self, former: AdminClient) -> None:
        """Release a client in a thread: its destructor waits for librdkafka's threads, and would
        block the event loop. The thread's call holds the last reference to the client."""
        with suppress(RuntimeError):  # the threads are stopped already
            self._threads.submit(former.poll, 0)

    def _no_answer_error(self) -> LogError:
        """Return the error of a request without an answer, with the reason if librdkafka has
        reported one."""
        self.admin.poll(0)
        report = f": {self._errors}" if str(self._errors) else ""
        return LogError(f"Kafka did not answer within {self.timeout:g} s{report}")


def refresh_metadata(admin: AdminClient, timeout: float) -> None:
    """Make librdkafka read the cluster's metadata, so also who leads each partition, within
    `timeout` seconds; errors are ignored."""
    with suppress(KafkaException):
        admin.list_topics(timeout=timeout)


def read_watermarks(
    consumer: Consumer, topic: str, partitions: Iterable[int], timeout: float
) -> dict[int, tuple[int, int]]:
    """Return the first offset and the end offset of each partition, by number. Blocks: sends one
    request after the other, each for one partition and with this timeout (seconds).

    While a partition's leader is moving, as after a topic's creation, or librdkafka doesn't know
    the partition yet, its request is repeated, but no more once `timeout` seconds have passed since
    this call. Raises `KafkaException`.
    """
    deadline = time.monotonic() + timeout
    bounds: dict[int, tuple[int, int]] = {}
    for number in partitions:
        while number not in bounds:
            try:
                bounds[number] = consumer.get_watermark_offsets(
                    TopicPartition(topic, number), timeout=timeout
                )
            except KafkaException as error:
                code = error.args[0].code()
                if code not in WATERMARK_RETRY_ERRORS or time.monotonic() > deadline:
                    raise
                time.sleep(REQUEST_RETRY_INTERVAL)
    return bounds
