"""librdkafka's own mock of a Kafka cluster: brokers whose leaders move when a test says so.

A real Kafka of one node can't show what a change of leader does to a producer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

ERROR_BYTES = 512
PRODUCER = 0
"""librdkafka's type of a client that only carries the cluster."""


def _load_librdkafka() -> Any:
    """The same library that confluent-kafka has loaded."""
    folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    if not (found := sorted(folder.glob("librdkafka-*.so*"))):
        pytest.skip("confluent-kafka has no librdkafka of its own here")
    library = ctypes.CDLL(str(found[0]))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
        getattr(library, name).restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return library


class MockKafka:
    """A cluster of some brokers, whose ids begin at 1."""

    def __init__(self, brokers: int) -> None:
        self._library = library = _load_librdkafka()
        configuration = ctypes.c_void_p(library.rd_kafka_conf_new())
        library.rd_kafka_conf_set(configuration, b"log_level", b"0", None, ctypes.c_size_t(0))
        error = ctypes.create_string_buffer(ERROR_BYTES)
        size = ctypes.c_size_t(ERROR_BYTES)
        self._client = ctypes.c_void_p(library.rd_kafka_new(PRODUCER, configuration, error, size))
        assert self._client, error.value
        self._cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(self._client, brokers))
        self.bootstrap_servers: str = library.rd_kafka_mock_cluster_bootstraps(
            self._cluster
        ).decode()

    def create_topic(self, topic: str, leader: int) -> None:
        """With one partition."""
        create = self._library.rd_kafka_mock_topic_create
        assert create(self._cluster, topic.encode(), 1, 1) == 0
        self.lead(topic, leader)

    def delete_topic(self, topic: str) -> None:
        assert self._library.rd_kafka_mock_topic_delete(self._cluster, topic.encode()) == 0

    def lead(self, topic: str, leader: int) -> None:
        """Make a broker the leader, with a higher epoch."""
        lead = self._library.rd_kafka_mock_partition_set_leader
        assert lead(self._cluster, topic.encode(), 0, leader) == 0

    def close(self) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)


@pytest.fixture
def mock_kafka() -> Iterator[MockKafka]:
    cluster = MockKafka(3)
    yield cluster
    cluster.close()
