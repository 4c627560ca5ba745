"""Where the Brokers and Triggers are that a command asks about: one Protocol, `DeclaredSource`.

It has two implementations: `InstallationSource` here, of what `knafka up` runs, and
`cluster_source.ClusterSource`, of a Kubernetes cluster. Both give a `DeclaredView`, so that
`knafka tail` and `knafka trace` are the same for both; and for KafkaChannels and Subscriptions,
whose names have a prefix: `channel/` and `subscription/`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from knafka.clients.kafka_connection import connection_configuration
from knafka.core.contract import Egress, Ingress, Kafka
from knafka.core.errors import KnafkaError, LogError
from knafka_client.declared.triggers import Unknown
from knafka_client.state import snapshot_file
from knafka_client.state.installation import CHANNEL_PREFIX, SUBSCRIPTION_PREFIX, Installation

DEFAULT_NAMESPACE: Final = "default"
SYSTEM_NAMESPACE: Final = "knafka"
"""Where a cluster's operator is installed, unless it is said."""


class NotReached(KnafkaError):
    """Kafka doesn't answer at the address that is known of it; the text says what to do."""


@dataclass(frozen=True, slots=True)
class DeclaredView:
    """Brokers and Triggers as they are declared now, channels and Subscriptions among them, and how
    their Kafka is reached."""

    ingresses: Sequence[Ingress]
    egresses: Sequence[Egress]
    """`topic`, `group`, `dead_letter_topic` and the filters are right; a subscriber that isn't
    known is a placeholder."""
    connections: Mapping[str, Mapping[str, Any]]
    """librdkafka's configuration by Broker, as `broker_of` gives it."""
    paused: Collection[str] = ()
    """Triggers, as `trigger_of` gives them."""
    problems: Sequence[str] = ()
    """What is declared and can't be read, one sentence each; it isn't in the view."""
    namespace: str = DEFAULT_NAMESPACE
    """Of names that say none."""
    unreached: str = ""
    """What to do if Kafka doesn't answer."""

    def ingress(self, broker: str | None) -> Ingress:
        """The Broker of this name, or the only one. Raises `Unknown`."""
        candidates = self.ingresses
        if broker is not None:
            by_name = {broker_of(ingress): ingress for ingress in candidates}
            there = by_name.get(self._full(broker))
            if there is None and broker.startswith(CHANNEL_PREFIX):
                there = by_name.get(
                    CHANNEL_PREFIX + self._full(broker.removeprefix(CHANNEL_PREFIX))
                )
            candidates = [] if there is None else [there]
        if len(candidates) == 1:
            return candidates[0]
        problem = "which Broker?" if broker is None else f"there is no Broker {broker}:"
        known = ", ".join(map(broker_of, self.ingresses))
        raise Unknown(self._explained(f"{problem} there is {known or 'none'}"))

    def egress(self, trigger: str) -> Egress:
        """The Trigger of this name, else the Subscription. Raises `Unknown`."""
        by_name = {trigger_of(egress): egress for egress in self.egresses}
        prefixed = trigger.startswith(SUBSCRIPTION_PREFIX)
        subscription = SUBSCRIPTION_PREFIX + self._full(trigger.removeprefix(SUBSCRIPTION_PREFIX))
        egress = by_name.get(self._full(trigger)) or by_name.get(subscription)
        if egress is not None:
            return egress
        known = ", ".join(by_name) or "none"
        what = subscription if prefixed else f"Trigger {self._full(trigger)}"
        raise Unknown(self._explained(f"there is no {what}: there is {known}"))

    def of_broker(self, ingress: Ingress) -> Sequence[Egress]:
        """The Triggers of a Broker."""
        return [egress for egress in self.egresses if broker_of(egress) == broker_of(ingress)]

    def connection(self, owner: Ingress | Egress) -> dict[str, Any]:
        """The librdkafka configuration that reaches the Kafka of a Broker or Trigger."""
        return dict(self.connections[broker_of(owner)])

    @contextmanager
    def reaching(self, owner: Ingress | Egress) -> Iterator[None]:
        """Turn a failure to reach Kafka inside into `NotReached`, which says what to do."""
        try:
            yield
        except LogError as error:
            if not self.unreached or not error.retriable or error.unknown_topic:
                raise
            servers = self.connections[broker_of(owner)]["bootstrap.servers"]
            raise NotReached(f"Kafka at {servers}: {error}: {self.unreached}") from error

    def _full(self, name: str) -> str:
        return name if "/" in name else f"{self.namespace}/{name}"

    def _explained(self, text: str) -> str:
        return "; ".join([text, *self.problems])


class DeclaredSource(Protocol):
    """Source of Brokers and Triggers, KafkaChannels and Subscriptions."""

    def read(self, namespace: str | None = None) -> DeclaredView:
        """All that are in `namespace`, or that the source is about if none is given.

        Raises `KnafkaError` with what to do next.
        """
        ...


class InstallationSource:
    """What `knafka up` runs, by the files in its data folder."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation

    def read(self, namespace: str | None = None) -> DeclaredView:
        """Of all namespaces if none is given. Raises `NotRunning`."""
        running = self._installation.running()
        reached = connection_configuration(Kafka(bootstrap_servers=running.bootstrap_servers))
        paused: set[str] = set()
        with suppress(KnafkaError):  # it is starting; it's said where it is known
            now = snapshot_file.read(self._installation)
            paused = {_named(row.kind, row.name) for row in now.triggers if row.paused}
        ingresses = [
            ingress for ingress in running.ingresses if namespace in (None, ingress.namespace)
        ]
        return DeclaredView(
            ingresses,
            [egress for egress in running.egresses if namespace in (None, egress.namespace)],
            {broker_of(ingress): reached for ingress in ingresses},
            paused,
            namespace=namespace or DEFAULT_NAMESPACE,
        )


def broker_of(owner: Ingress | Egress) -> str:
    """`namespace/name` of the Broker, `channel/namespace/name` of a KafkaChannel."""
    name = f"{owner.namespace}/{owner.broker}"
    return CHANNEL_PREFIX + name if owner.kind in ("KafkaChannel", "Subscription") else name


def trigger_of(egress: Egress) -> str:
    """`namespace/name` of the Trigger, `subscription/namespace/name` of the Subscription."""
    return _named(egress.kind, f"{egress.namespace}/{egress.trigger}")


def namespace_in(name: str) -> str | None:
    """The namespace that a name of any of the four says; None: it says none."""
    for prefix in (CHANNEL_PREFIX, SUBSCRIPTION_PREFIX):
        name = name.removeprefix(prefix)
    return name.rpartition("/")[0] or None


def _named(kind: str, name: str) -> str:
    return SUBSCRIPTION_PREFIX + name if kind == "Subscription" else name
