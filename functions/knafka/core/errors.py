"""Every error that Knafka raises on purpose, as one tree.

    KnafkaError
    ├── InvalidEvent        the bytes are no valid CloudEvent; the sender must change them
    │   ├── InvalidBatch            some events of a batch are not valid
    │   └── UnsupportedContentMode  an event format that is not read here
    │       └── BatchedContent      a batch, where one event was asked for
    ├── InvalidDocument     a declared document breaks a rule; it carries the path
    │   └── InvalidExpression   a CESQL expression or a Sensor's condition that can't be used
    ├── LogError            the log failed; `retriable` says whether to try again
    │   └── LogFull         the local buffer is full; nothing was taken
    └── DeliveryError       an attempt ended without an HTTP response; `reason` says how

Only errors that a caller can act on are here: a bug stays an ordinary Python exception.
"""

from __future__ import annotations


class KnafkaError(Exception):
    """The base class of all errors that Knafka raises on purpose; `str(error)` is one sentence for
    a person."""


class InvalidEvent(KnafkaError):
    """The input is not a valid CloudEvent (CE-H12, KN-DP-09: answered with 400)."""


class InvalidBatch(InvalidEvent):
    """A batch of which some events are not valid; the text names the position of each of them
    (CE-H11).

    `too_many`: it has more events than a batch may have (answered with 413).
    """

    def __init__(self, problem: str, *, too_many: bool = False) -> None:
        super().__init__(problem)
        self.too_many = too_many


class UnsupportedContentMode(InvalidEvent):
    """An event format other than JSON, or a batch of it (CE-H2, CE-H11: answered with 415)."""


class BatchedContent(UnsupportedContentMode):
    """A JSON batch where one event was expected; a Broker splits it into its events (CE-H11)."""


class InvalidDocument(KnafkaError):
    """A declared document breaks a rule.

    `path` is the field in Kubernetes' notation (`spec.delivery.retry`, `spec.filters[1].exact`);
    `problem` says what is wrong and what is allowed.
    """

    def __init__(self, path: str, problem: str) -> None:
        """Create the error. Its text begins with `path`, unless the path is empty, or `problem`
        names it already."""
        needs_path = bool(path) and path not in problem
        super().__init__(f"{path}: {problem}" if needs_path else problem)
        self.path = path
        self.problem = problem


class InvalidExpression(InvalidDocument):
    """A CESQL expression, or a Sensor's condition, that can't be used; `position` is the index of
    the character at which the error was found."""

    def __init__(self, problem: str, position: int = 0) -> None:
        super().__init__("", f"{problem} (at character {position})")
        self.position = position


class LogError(KnafkaError):
    """An operation on the log (Kafka) failed.

    `retriable`: another attempt may succeed. `too_large`: a record is larger than its topic takes.
    `unknown_topic`: the topic doesn't exist. `too_few_brokers`: a new topic is to have more
    replicas than there are brokers. `denied`: the kind of resource that the user isn't authorized
    to use, such as `topic`; empty: no authorization is missing.
    """

    def __init__(
        self,
        problem: str,
        *,
        retriable: bool = True,
        too_large: bool = False,
        unknown_topic: bool = False,
        too_few_brokers: bool = False,
        denied: str = "",
    ) -> None:
        """Create the error; the class describes the other arguments."""
        super().__init__(problem)
        self.too_few_brokers = too_few_brokers
        self.denied = denied
        self.retriable = retriable
        self.too_large = too_large
        self.unknown_topic = unknown_topic


class LogFull(LogError):
    """The writer's bounded buffer is full. No record was taken; the caller may try again later."""


class DeliveryError(KnafkaError):
    """An attempt that got no HTTP response (KN-DLV-08: it has no status code).

    `reason` is one of `timeout`, `refused` or `broken`: the request timed out, no connection was
    made, or the connection or the response broke. Or it is `no-token`: nothing was sent, as the
    destination wants a token and there is none.
    """

    def __init__(self, reason: str, problem: str) -> None:
        super().__init__(problem)
        self.reason = reason
