"""The responses of a receiver (KN-DP-09), each built once and ready for the wire."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from knafka.core.tokens.caller_tokens import NO_SCRAPER, REFUSED

MAX_PROBLEM_CHARACTERS: Final = 2_000
"""Most characters of a reason in an answer: it may quote the sender's text, which has any
length."""
MAX_BATCH_PROBLEM_CHARACTERS: Final = 10_000
"""Most characters of the reasons in the answer to a batch."""


class Answer:
    """A whole HTTP response. `wire` is its bytes; `closing` is its bytes with `Connection: close`,
    for the last response of a connection. `status`, `headers` and `body` are for ASGI."""

    __slots__ = ("body", "closing", "headers", "status", "wire")

    def __init__(
        self,
        status: HTTPStatus,
        text: str = "",
        headers: tuple[tuple[bytes, bytes], ...] = (),
        content_type: bytes = b"text/plain; charset=utf-8",
    ) -> None:
        """Encode the response once, as it is sent many times. `text` becomes its body, ended by a
        line break; an empty text gives no body and no content type. `headers`: those besides
        content type and length."""
        self.status = status.value
        self.body = f"{text}\n".encode() if text else b""
        if self.body:
            headers = ((b"content-type", content_type), *headers)
        self.headers = (*headers, (b"content-length", b"%d" % len(self.body)))
        head = b"HTTP/1.1 %d %s\r\n" % (status.value, status.phrase.encode())
        head += b"".join(b"%s: %s\r\n" % header for header in self.headers)
        self.wire = head + b"\r\n" + self.body
        self.closing = head + b"connection: close\r\n\r\n" + self.body


_ALLOW = (b"allow", b"POST, OPTIONS")
"""The header with the methods that a Broker's path takes."""

ACCEPTED: Final = Answer(HTTPStatus.ACCEPTED)
OPTIONS: Final = Answer(
    HTTPStatus.OK,
    headers=(_ALLOW, (b"webhook-allowed-origin", b"*"), (b"webhook-allowed-rate", b"*")),
)
"""The webhook handshake of KN-DP-07."""
HEALTHY: Final = Answer(HTTPStatus.OK, "OK")
NOT_FOUND: Final = Answer(
    HTTPStatus.NOT_FOUND,
    "no Broker, KafkaChannel or KafkaSink is served here: want the path /{namespace}/{name}, or "
    "the path / at a KafkaChannel's own host",
)
UNREAD: Final = Answer(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "the receiver has no valid configuration for this address yet: send the event again",
    headers=((b"retry-after", b"1"),),
)
"""Sent in place of `NOT_FOUND` until the receiver has read its contract, and at an address whose
declaration in the contract is invalid."""
NOT_THE_OPERATOR: Final = Answer(
    HTTPStatus.UNAUTHORIZED, REFUSED, headers=((b"www-authenticate", b"Bearer"),)
)
"""Sent for a request for the contract or the event types without a token that allows it."""
METRICS_REFUSED: Final = Answer(
    HTTPStatus.UNAUTHORIZED, NO_SCRAPER, headers=((b"www-authenticate", b"Bearer"),)
)
"""Sent for a request for the metrics without a token that allows it."""
UNAUTHENTICATED: Final = Answer(
    HTTPStatus.UNAUTHORIZED,
    "want a token in Authorization (Bearer) that is for the audience in status.address.audience",
    headers=((b"www-authenticate", b"Bearer"),),
)
"""Sent for every invalid token alike, as the reason is not the sender's business."""
FORBIDDEN: Final = Answer(
    HTTPStatus.FORBIDDEN, "no EventPolicy allows this sender to send this event here"
)
TOO_COSTLY: Final = Answer(
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "the filters of the EventPolicies cost too much for so many events: send fewer at once",
)
"""Sent for a batch that each of its events alone might pass."""
NOT_ENCRYPTED: Final = Answer(
    HTTPStatus.FORBIDDEN, "encrypted events only: send to the https address in status.address"
)
UNDECIDED: Final = Answer(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "the token can't be verified now: send the event again",
    headers=((b"retry-after", b"2"),),
)
"""Sent when the token may be valid: keys are missing, or too many signatures were wrong."""
NOT_ALLOWED: Final = Answer(
    HTTPStatus.METHOD_NOT_ALLOWED, "send events with POST", headers=(_ALLOW,)
)
HEADERS_TOO_LARGE: Final = Answer(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request's headers are too large"
)
TOO_MANY_HEADERS: Final = Answer(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    "the request has too many headers: an event has at most 128 attributes, and all headers "
    "together are at most 256",
)
NO_HOST: Final = Answer(HTTPStatus.BAD_REQUEST, "want one Host header")
NOT_IMPLEMENTED: Final = Answer(
    HTTPStatus.NOT_IMPLEMENTED, "the only transfer encoding that is understood is chunked"
)
ENCODED: Final = Answer(
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    "send the event without Content-Encoding: subscribers would not learn how it is compressed",
    headers=((b"accept-encoding", b"identity"),),
)
"""Sent for a body with a content encoding, as no attribute of an event can name it."""
CROWDED: Final = Answer(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "too many connections: use fewer, and keep them",
    headers=((b"retry-after", b"5"),),
)
"""Sent at once to a new connection beyond `Limits.connections`, which is then closed."""
MALFORMED: Final = Answer(HTTPStatus.BAD_REQUEST, "the request is not valid HTTP/1.1")
TIMED_OUT: Final = Answer(
    HTTPStatus.REQUEST_TIMEOUT,
    "the rest of the request did not arrive, or too slowly: send it again",
)
UNAVAILABLE: Final = Answer(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "Kafka did not take the event: send it again",
    headers=((b"retry-after", b"2"),),
)
"""Sent when Kafka has not stored an event that it was given."""
AWAY: Final = Answer(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "Kafka is away: send the event again",
    headers=((b"retry-after", b"5"),),
)
"""Sent at once while Kafka is known to be away, as the event would wait in vain."""
BUSY: Final = Answer(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "too many events wait for Kafka or are being received: send this one again",
    headers=((b"retry-after", b"1"),),
)
"""Sent when `Limits`, or the writer's queue, have no room for an event."""


def invalid_event(problem: str) -> Answer:
    """Return 400 for an invalid event, with the problem, cut to `MAX_PROBLEM_CHARACTERS`."""
    return Answer(HTTPStatus.BAD_REQUEST, problem[:MAX_PROBLEM_CHARACTERS])


def invalid_batch(problem: str) -> Answer:
    """Return 400 for a batch with invalid events; `problem` has the position and problem of each,
    and is cut to `MAX_BATCH_PROBLEM_CHARACTERS`."""
    return Answer(HTTPStatus.BAD_REQUEST, problem[:MAX_BATCH_PROBLEM_CHARACTERS])


def too_many_events(problem: str) -> Answer:
    """Return 413 for a batch with too many events; `problem` says how many it may have."""
    return Answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, problem)


def unsupported_format(problem: str) -> Answer:
    """Return 415 for an event in a format that isn't supported; `problem` names the format, and is
    cut to `MAX_PROBLEM_CHARACTERS`."""
    return Answer(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, problem[:MAX_PROBLEM_CHARACTERS])


def event_too_large(limit: int) -> Answer:
    """Return 413 for an event of more than `limit` bytes, headers included."""
    return Answer(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"an event may have {limit} bytes, headers included"
    )


def plain_text(body: bytes, content_type: bytes) -> Answer:
    """Return 200 with a text body of this content type, such as metrics."""
    return Answer(HTTPStatus.OK, body.decode().removesuffix("\n"), content_type=content_type)


def json_document(text: str) -> Answer:
    """Return 200 with `text`, which is JSON, as the body."""
    return Answer(HTTPStatus.OK, text, content_type=b"application/json")


def network_probe(digest: bytes, position: int | None) -> Answer:
    """Return 200 for Knative's network probe (KN-BRK-21). `digest`: the value of the probe's header
    K-Network-Hash, which the answer repeats. `position`: the offset up to which the contract's
    topic is read, for the operator; None: the contract isn't in a topic."""
    position_header = () if position is None else ((b"knafka-contract-position", b"%d" % position),)
    return Answer(HTTPStatus.OK, headers=((b"k-network-hash", digest), *position_header))


def kafka_unanswered(reason: str) -> Answer:
    """Return 503 for the readiness probe: Kafka has not answered. `reason` says why; empty: that
    isn't known."""
    text = "Kafka has not answered yet"
    return Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{text}: {reason}" if reason else text)


def contract_unread(reason: str) -> Answer:
    """Return 503 for the readiness probe: the contract is not read yet, and why."""
    return Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"the contract isn't read yet: {reason}")


def not_storing(reason: str) -> Answer:
    """Return 503 for the liveness probe: no event can be stored, and why."""
    return Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"nothing can be stored: {reason}")
