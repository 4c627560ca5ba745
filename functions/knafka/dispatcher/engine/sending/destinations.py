"""Where an Egress's events go: parsed once, before any of them is sent."""

from __future__ import annotations

from knafka.core.contract import Egress, Sink
from knafka.ports.subscriber import Target


def target_of(sink: Sink) -> Target:
    """Return the `Target` of a declared destination. Raises `InvalidDocument`."""
    return Target.parse(sink.url, sink.ca_certs, sink.audience)


def delivery_head(egress: Egress) -> bytes:
    """Return the header lines that each request of this Egress has besides those of its event."""
    return b"kn-namespace: %s\r\n" % egress.namespace.encode()
