"""KafkaSinks: the model of declared ones, as far as Knafka reads them.

Not here: defaults and immutable fields (`sinks.admission`).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field

from knafka_operator.model.resources import Declared, NonEmpty, Observed, Resource
from knafka_operator.model.sources import check_user_topic

SINKS_VERSION: Final = "eventing.knative.dev/v1alpha1"
KAFKA_SINK: Final = "KafkaSink"
TOPIC_OWNER: Final = "eventing.knative.dev/topic.owner"
"""Key of `status.annotations`, upstream's: `MADE`, or `EXTERNAL`."""
MADE: Final = "kafkasink-controller"
"""The topic was created for this sink and is deleted with it."""
EXTERNAL: Final = "external"
"""The topic belongs to somebody else: it is never created, changed or deleted."""

DEFAULT_MODE: Final = "binary"
"""The content mode of a sink that declares none."""
ContentMode: TypeAlias = Literal["binary", "structured"]
"""How events lie in a topic, see `KafkaSinkSpec.content_mode`."""


class SinkSecretName(Observed):
    name: NonEmpty


class SinkSecret(Declared):
    ref: SinkSecretName | None = None
    """A Secret in the sink's namespace, in the same form as a Broker's
    (`core.kafka_settings.kafka_secret`)."""


class SinkAuth(Declared):
    secret: SinkSecret = SinkSecret()


class KafkaSinkSpec(Declared):
    topic: Annotated[NonEmpty, AfterValidator(check_user_topic)]
    num_partitions: Annotated[int, Field(gt=0, le=2**31 - 1, strict=True)] | None = None
    """Partitions of a topic that Knafka creates; None: a missing topic isn't created."""
    replication_factor: Annotated[int, Field(gt=0, le=32_767, strict=True)] | None = None
    """Replicas of a topic that Knafka creates; None: a missing topic isn't created."""
    bootstrap_servers: Annotated[tuple[NonEmpty, ...], Field(min_length=1)]
    """`host:port` of the Kafka servers."""
    content_mode: Annotated[ContentMode, BeforeValidator(lambda given: given or DEFAULT_MODE)] = (
        "binary"
    )
    """How events lie in the topic: `binary` (attributes as headers) or `structured` (the whole
    event as JSON)."""
    auth: SinkAuth = SinkAuth()

    @property
    def makes_topic(self) -> bool:
        """Whether a missing topic is created: if both counts are declared, as upstream does."""
        return self.num_partitions is not None and self.replication_factor is not None


class KafkaSink(Resource):
    spec: KafkaSinkSpec

    @property
    def servers(self) -> str:
        """Return the Kafka servers of the sink, `host:port`, comma-separated."""
        return ",".join(self.spec.bootstrap_servers)
