"""A Kafka that runs beside tests, on a loop and in a thread of its own, and may be killed."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from knafka_local.kafka.kafka_distribution import KafkaDistribution
from knafka_local.kafka.kafka_server import KafkaServer
from testcluster import settings


class MortalKafka:
    """A Kafka that is killed and comes back with what it had."""

    def __init__(self, server: KafkaServer) -> None:
        self.server = server
        # Tests have loops of theirs, each for a single test.
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def start(self) -> None:
        asyncio.run_coroutine_threadsafe(self.server.start(), self._loop).result()

    def kill(self) -> None:
        assert self.server.pid is not None
        os.kill(self.server.pid, signal.SIGKILL)
        asyncio.run_coroutine_threadsafe(self.server.wait(), self._loop).result()

    def kill_and_restart(self) -> None:
        self.kill()
        self.start()

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.server.stop(), self._loop).result()
        asyncio.run_coroutine_threadsafe(
            self._loop.shutdown_default_executor(), self._loop
        ).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def mortal_kafka(
    kafka_distribution: KafkaDistribution, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MortalKafka]:
    """One of the test's own, which pods reach, too."""
    directory = tmp_path_factory.mktemp("mortal-kafka")
    kafka = MortalKafka(KafkaServer(kafka_distribution, directory, host=settings.HOST_IP))
    kafka.start()
    yield kafka
    kafka.stop()
