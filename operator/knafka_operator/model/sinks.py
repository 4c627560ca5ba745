"""KafkaSink as declared, as far as Knafka reads it.

Not here: what a webhook fills in, and what may not change (`sinks.admission`).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field

from knafka_operator.model.resources import Declared, Given, Observed, Resource
from knafka_operator.model.sources import somebodys_topic

SINKS_VERSION: Final = "eventing.knative.dev/v1alpha1"
KAFKA_SINK: Final = "KafkaSink"
TOPIC_OWNER: Final = "eventing.knative.dev/topic.owner"
"""Key of `status.annotations`, upstream's: `MADE`, or `EXTERNAL`."""
MADE: Final = "kafkasink-controller"
"""The topic was made for this sink, and goes with it."""
EXTERNAL: Final = "external"
"""The topic is somebody's: it is never made, changed or deleted."""

DEFAULT_MODE: Final = "binary"
ContentMode: TypeAlias = Literal["binary", "structured"]


class SinkSecretName(Observed):
    name: Given


class SinkSecret(Declared):
    ref: SinkSecretName | None = None
    """A Secret of the sink's namespace, as a Broker's (`knafka.core.kafka_secret`)."""


class SinkAuth(Declared):
    secret: SinkSecret = SinkSecret()


class KafkaSinkSpec(Declared):
    topic: Annotated[Given, AfterValidator(somebodys_topic)]
    num_partitions: Annotated[int, Field(gt=0, le=2**31 - 1, strict=True)] | None = None
    replication_factor: Annotated[int, Field(gt=0, le=32_767, strict=True)] | None = None
    bootstrap_servers: Annotated[tuple[Given, ...], Field(min_length=1)]
    content_mode: Annotated[ContentMode, BeforeValidator(lambda given: given or DEFAULT_MODE)] = (
        "binary"
    )
    auth: SinkAuth = SinkAuth()

    @property
    def makes_topic(self) -> bool:
        """Whether the topic is to be made where it isn't there, as upstream has it."""
        return self.num_partitions is not None and self.replication_factor is not None


class KafkaSink(Resource):
    spec: KafkaSinkSpec

    @property
    def servers(self) -> str:
        """host:port, comma-separated."""
        return ",".join(self.spec.bootstrap_servers)
