"""Bounded admin requests, retried while a coordinator or leader is moving.

A request without an answer says what librdkafka reported last (see `core.connection_errors`), and
ends at once if that is something that waiting won't mend.

Not here: what is asked. See `kafka_admin` and `kafka_groups`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from knafka.clients.kafka_client import Connection, log_error_of, open_admin
from knafka.core.connection_errors import ConnectionErrors
from knafka.core.errors import LogError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

ASK_AGAIN: Final = 0.1
"""Seconds before a request is repeated whose coordinator or leader is on its way."""
LISTEN: Final = 0.2
"""Seconds between two looks at what librdkafka tells while there is no answer."""
REFRESH: Final = 1.0
"""Seconds without an answer after which librdkafka is made to ask which brokers there are. By
itself (2.16.1) it waits for minutes for a controller or leader that is gone."""
NO_TIMEOUT: Final = 3600.0
"""Seconds, the most that librdkafka takes for a request."""
THREADS: Final = 8
"""Calls that block, at a time; threads of our own, so that a Kafka that is away stops nobody."""

ON_ITS_WAY: Final = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        # Of a partition that was made or has moved a moment ago, a broker may know less than we.
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
NO_ANSWER: Final = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
    }
)

K = TypeVar("K")
T = TypeVar("T")


class AdminCalls:
    """Requests to one Kafka; belongs to one event loop.

    An answer comes within `timeout` seconds, or a `LogError` that says why not.
    """

    def __init__(self, connection: Connection, timeout: float) -> None:
        self.timeout = timeout
        self._connection = connection
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="kafka-admin")
        self._errors = ConnectionErrors()
        self._refreshing: Future[None] | None = None
        self._answered_at = time.monotonic()
        self.admin = open_admin(connection, self._errors.record)
        """Another one after a `reopen`."""
        self._opened = 1
        """How many clients there were: what holds on to one of them keeps its requests alive."""

    async def single(self, ask: Callable[[float], Future[T]]) -> T:
        """The result of one of the admin client's futures; `ask` is given the seconds it has."""
        return (await self.many(lambda timeout: {None: ask(timeout)}))[None]

    async def many(
        self,
        ask: Callable[[float], Mapping[K, Future[T]]],
        leaving_out: Collection[int] = (),
        *,
        some: bool = False,
    ) -> dict[K, T]:
        """The results of several of the admin client's futures, by key, without those that fail
        with one of these codes; `some`: with any, as long as there is another one's result."""

        async def answers(timeout: float) -> dict[K, T]:
            return await self._results(ask(timeout), timeout, leaving_out, some=some)

        return await self._patiently(answers)

    async def of_coordinator(
        self, ask: Callable[[float], Mapping[K, Future[T]]], leaving_out: Collection[int] = ()
    ) -> dict[K, T]:
        """As `many`, of requests that go to the coordinator of a group.

        librdkafka (2.16.1) aborts the process if its own time for such a request runs out and a
        broker comes up afterwards (librdkafka 4605). So the request is given more time than
        anybody has, and who waits no longer gives up the client with it: nothing is sent late.
        """

        async def answers(timeout: float) -> dict[K, T]:
            opened = self._opened
            asked = ask(NO_TIMEOUT)
            try:
                return await self._results(asked, timeout, leaving_out)
            finally:
                if opened == self._opened and not all(each.done() for each in asked.values()):
                    with suppress(LogError):
                        self._end(self._replace())

        return await self._patiently(answers)

    async def _results(
        self,
        asked: Mapping[K, Future[T]],
        timeout: float,
        leaving_out: Collection[int],
        *,
        some: bool = False,
    ) -> dict[K, T]:
        found = {}
        first: KafkaException | None = None
        for key, each in asked.items():
            # All are answered at once: to await each would cost more than the request.
            if not each.done():
                await self._answer(each, timeout)
            try:
                found[key] = each.result()
            except KafkaException as error:
                if error.args[0].code() in leaving_out:
                    continue
                if not some:
                    raise
                first = first or error
        if first is not None and not found:
            raise first
        return found

    async def batch(
        self,
        ask: Callable[[Future[dict[K, Any]], float], None],
        leaving_out: Collection[int] = (),
        *,
        some: bool = False,
    ) -> dict[K, Any]:
        """As `many`, where one future gets all results, a `KafkaError` for each that failed.

        A future for each key costs more than the request where there are thousands of keys.
        """

        async def answers(timeout: float) -> dict[K, Any]:
            answer: Future[dict[K, Any]] = Future()
            # Who waits may give up; librdkafka must be able to set a result nevertheless.
            answer.set_running_or_notify_cancel()
            ask(answer, timeout)
            await self._answer(answer, timeout)
            results = answer.result()
            failed = [each for each in results.values() if isinstance(each, KafkaError)]
            if not failed:
                return results
            found = {k: each for k, each in results.items() if not isinstance(each, KafkaError)}
            raised = [each for each in failed if each.code() not in leaving_out]
            if raised and not (some and found):
                raise KafkaException(raised[0])
            return found

        return await self._patiently(answers)

    async def in_thread(self, call: Callable[[float], T]) -> T:
        """The result of a call that blocks; it is given the seconds it may take."""

        def answer(timeout: float) -> Awaitable[T]:
            loop = asyncio.get_running_loop()
            return loop.run_in_executor(self._threads, call, timeout)

        return await self._patiently(answer)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _answer(self, future: Future[Any], timeout: float) -> None:
        """Wait until there is one; raises `LogError` if there will be none, `KafkaException` if
        there is none within `timeout` seconds, of which a client that is given up says nothing."""
        answered = asyncio.wrap_future(future)
        deadline = time.monotonic() + timeout + LISTEN
        refresh_at = time.monotonic() + REFRESH
        try:
            while not (await asyncio.wait({answered}, timeout=LISTEN))[0]:
                if time.monotonic() > deadline:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
                self.admin.poll(0)
                if time.monotonic() > refresh_at:
                    self._refresh()
                    refresh_at = time.monotonic() + REFRESH
                if refusal := self._errors.refusal:
                    raise LogError(refusal)
            answered.exception()  # asyncio wants it seen; `result` raises it
        finally:
            answered.cancel()

    def _refresh(self) -> None:
        """Ask for all metadata, in a thread, unless that is being done."""

        def ask() -> None:
            with suppress(KafkaException):
                self.admin.list_topics(timeout=self.timeout)

        if self._refreshing is None or self._refreshing.done():
            with suppress(RuntimeError):  # it is being closed
                self._refreshing = self._threads.submit(ask)

    async def _patiently(self, ask: Callable[[float], Awaitable[T]]) -> T:
        self.admin.poll(0)
        self._errors.forget()
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                answer = await ask(max(ASK_AGAIN, deadline - time.monotonic()))
                self._errors.mended()
                self._answered_at = time.monotonic()
                return answer
            except KafkaException as error:
                code = error.args[0].code()
                if code in NO_ANSWER:
                    no_answer = self._no_answer()
                    if time.monotonic() - self._answered_at >= self.timeout:
                        # It may have lost its brokers (`kafka_liveness`).
                        with suppress(LogError):
                            self.reopen()
                    raise no_answer from error
                if code not in ON_ITS_WAY or time.monotonic() > deadline:
                    raise log_error_of(error.args[0]) from error
            await asyncio.sleep(ASK_AGAIN)

    def reopen(self) -> None:
        """Go on with another client. Raises `LogError` where there can be none."""
        # What others have asked it ends in its own time.
        asyncio.get_running_loop().call_later(self.timeout, self._end, self._replace())

    def _replace(self) -> AdminClient:
        """The client until now. Raises `LogError` where there can be no other one."""
        former, self.admin = self.admin, open_admin(self._connection, self._errors.record)
        self._opened += 1
        self._answered_at = time.monotonic()
        return former

    def _end(self, former: AdminClient) -> None:
        """Let go of a client on a thread: its end waits for threads of its own."""
        with suppress(RuntimeError):  # it is being closed
            self._threads.submit(former.poll, 0)

    def _no_answer(self) -> LogError:
        self.admin.poll(0)
        why = f": {self._errors}" if str(self._errors) else ""
        return LogError(f"Kafka did not answer within {self.timeout:g} s{why}")
