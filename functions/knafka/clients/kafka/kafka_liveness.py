"""Checks whether a silent consumer has lost all its brokers.

While every broker is fenced, as after a long pause of a single node's JVM, Kafka's metadata name no
broker. librdkafka (2.16.0) then drops the brokers that it knows, and may stay without any, silently
(confluentinc/librdkafka#5301). Such a consumer seems to have nothing to read. So a silent consumer
sends a request; if it gets no answer and other clients do, it must be opened anew.

Not here: writers (`reachability`) and admin clients (`kafka_requests`), which notice missing
answers.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, KafkaException

from knafka.clients.kafka.kafka_client import Connection, open_admin
from knafka.core.errors import LogError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

MAX_CONSUMER_SILENCE: Final = 30.0
"""Seconds without a record, an end of a partition or an answer, after which a request is sent."""
ASK_TIMEOUT: Final = 2.0
"""Seconds that Kafka may take to answer; it takes milliseconds."""
LIVENESS_CHECK_INTERVAL: Final = 5.0
"""Seconds until the next check if Kafka answered no client."""


class Liveness:
    """Checks that Kafka still answers one consumer, whose thread calls `check` after each read."""

    def __init__(self, connection: Connection, topic: str) -> None:
        """`connection` opens the other clients, whose answers are compared; requests ask for the
        metadata of `topic`."""
        self._connection = connection
        self._topic = topic
        self._ask_at = time.monotonic() + MAX_CONSUMER_SILENCE
        """When the next request is due if the consumer stays silent (`time.monotonic`)."""

    def check(self, client: Consumer | AdminClient, *, heard: bool) -> None:
        """Raise `LogError` if Kafka answers other clients but not `client`. `heard`: whether
        `client` has got anything from Kafka since the last call. Sends requests only if it has got
        nothing for `MAX_CONSUMER_SILENCE`; blocks for up to three times `ASK_TIMEOUT` then."""
        now = time.monotonic()
        if heard:
            self._ask_at = now + MAX_CONSUMER_SILENCE
        elif now >= self._ask_at:
            if self._gets_answer(client):
                self._ask_at = now + MAX_CONSUMER_SILENCE
            elif not self._other_client_gets_answer():
                self._ask_at = now + LIVENESS_CHECK_INTERVAL
            elif not self._gets_answer(client):  # Kafka may have come back between the two checks
                raise LogError("the Kafka client has lost its brokers: it is opened anew")

    def _other_client_gets_answer(self) -> bool:
        """Whether Kafka answers a new client; the errors that it reports are not logged."""
        return self._gets_answer(open_admin(self._connection, lambda error: None))

    def _gets_answer(self, client: Consumer | AdminClient) -> bool:
        """Whether Kafka answers this client within `ASK_TIMEOUT` seconds."""
        try:
            client.list_topics(self._topic, timeout=ASK_TIMEOUT)
        except KafkaException:
            return False
        return True
