"""Records in real Kafka that confluent-kafka can't write: header names of any bytes.

It takes names as text only, so librdkafka itself, the library that it brings along, is asked.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib.metadata import files
from typing import Final

_PRODUCER: Final = 0
_END, _TOPIC, _VALUE, _KEY, _FLAGS, _HEADER = 0, 1, 4, 5, 7, 9
"""What rd_kafka_producev calls RD_KAFKA_VTYPE_*."""
_COPY: Final = 2


def produce_with_raw_headers(
    bootstrap_servers: str, topic: str, headers: Sequence[tuple[bytes, bytes]], value: bytes
) -> None:
    """Append one record and wait until Kafka has it."""
    library = _librdkafka()
    problem = ctypes.create_string_buffer(512)
    configuration = ctypes.c_void_p(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(
        configuration, b"bootstrap.servers", bootstrap_servers.encode(), problem, 512
    )
    producer = ctypes.c_void_p(library.rd_kafka_new(_PRODUCER, configuration, problem, 512))
    assert producer, problem.value
    arguments: list[object] = [producer, _TOPIC, topic.encode(), _FLAGS, _COPY]
    arguments += [_VALUE, value, ctypes.c_size_t(len(value))]
    for name, content in headers:
        arguments += [_HEADER, name, content, ctypes.c_ssize_t(len(content))]
    assert library.rd_kafka_producev(*arguments, _END) == 0
    assert library.rd_kafka_flush(producer, 10_000) == 0
    library.rd_kafka_destroy(producer)


def _librdkafka() -> ctypes.CDLL:
    bundled = next(
        each for each in files("confluent-kafka") or () if each.name.startswith("librdkafka")
    )
    library = ctypes.CDLL(str(bundled.locate()))
    library.rd_kafka_conf_new.restype = library.rd_kafka_new.restype = ctypes.c_void_p
    return library
