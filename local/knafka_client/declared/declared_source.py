"""Sources of declared Brokers and Triggers: the Protocol `DeclaredSource`.

It has two implementations: `InstallationSource` here reads what `knafka up` runs, and
`cluster_source.ClusterSource` reads a Kubernetes cluster. Both return a `DeclaredView`, so that
`knafka tail` and `knafka trace` work alike for both. The names of KafkaChannels and Subscriptions
have the prefix `channel/` or `subscription/`.

An `Ingress` is the entry of a Broker or KafkaChannel in the contract, with its topic; an `Egress`
is that of a Trigger or Subscription, with its topics, group and filters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from knafka.clients.kafka.kafka_connection import connection_configuration
from knafka.core.contract import Egress, Ingress, Kafka
from knafka.core.errors import KnafkaError, LogError
from knafka_client.declared.triggers import UnknownObject
from knafka_client.state import snapshot_file
from knafka_client.state.installation import CHANNEL_PREFIX, SUBSCRIPTION_PREFIX, Installation

DEFAULT_NAMESPACE: Final = "default"
"""The namespace of a name that doesn't include one."""
SYSTEM_NAMESPACE: Final = "knafka"
"""The operator's namespace in a cluster, unless --system-namespace names another."""


class KafkaNotReached(KnafkaError):
    """Kafka doesn't answer at its known address; the text says what to do."""


@dataclass(frozen=True, slots=True)
class DeclaredView:
    """The Brokers, channels, Triggers and Subscriptions that are declared now, and how to reach
    their Kafka."""

    ingresses: Sequence[Ingress]
    """An Ingress for each Broker and KafkaChannel."""
    egresses: Sequence[Egress]
    """An Egress for each Trigger and Subscription, with its topics, group and filters. Where the
    subscriber's URL isn't known, a placeholder stands for it."""
    connections: Mapping[str, Mapping[str, Any]]
    """The librdkafka configuration for each Broker's or channel's Kafka, by the name that
    `broker_name_of` returns."""
    paused: Collection[str] = ()
    """The names (`trigger_name_of`) of paused Triggers."""
    problems: Sequence[str] = ()
    """A sentence for each declared object that can't be read, and so isn't in the view."""
    namespace: str = DEFAULT_NAMESPACE
    """The namespace of a name that doesn't include one."""
    unreached_hint: str = ""
    """What the user can do if Kafka doesn't answer, for error messages; empty if nothing is
    known."""

    def find_ingress(self, broker: str | None) -> Ingress:
        """Return the Ingress of the named Broker (`[NAMESPACE/]NAME`) or KafkaChannel
        (`channel/[NAMESPACE/]NAME`).

        With None, return the only Ingress that is declared. Raises `UnknownObject` if there is no
        such Broker or, with None, not exactly one.
        """
        candidates = self.ingresses
        if broker is not None:
            by_name = {broker_name_of(ingress): ingress for ingress in candidates}
            # `channel/NAME` may be a Broker in a namespace called `channel`, which has precedence.
            named_ingress = by_name.get(self._full_name(broker))
            if named_ingress is None and broker.startswith(CHANNEL_PREFIX):
                named_ingress = by_name.get(
                    CHANNEL_PREFIX + self._full_name(broker.removeprefix(CHANNEL_PREFIX))
                )
            candidates = [] if named_ingress is None else [named_ingress]
        if len(candidates) == 1:
            return candidates[0]
        problem = "which Broker?" if broker is None else f"there is no Broker {broker}:"
        known_names = ", ".join(map(broker_name_of, self.ingresses))
        raise UnknownObject(self._with_problems(f"{problem} there is {known_names or 'none'}"))

    def find_egress(self, trigger: str) -> Egress:
        """Return the Egress of the Trigger of this name, or else of the Subscription of this name,
        which may have the prefix `subscription/`. Raises `UnknownObject`."""
        by_name = {trigger_name_of(egress): egress for egress in self.egresses}
        subscription = SUBSCRIPTION_PREFIX + self._full_name(
            trigger.removeprefix(SUBSCRIPTION_PREFIX)
        )
        egress = by_name.get(self._full_name(trigger)) or by_name.get(subscription)
        if egress is not None:
            return egress
        known_names = ", ".join(by_name) or "none"
        is_prefixed = trigger.startswith(SUBSCRIPTION_PREFIX)
        missing = subscription if is_prefixed else f"Trigger {self._full_name(trigger)}"
        raise UnknownObject(self._with_problems(f"there is no {missing}: there is {known_names}"))

    def egresses_of(self, ingress: Ingress) -> Sequence[Egress]:
        """Return the Egress of each Trigger or Subscription of a Broker or KafkaChannel."""
        return [
            egress for egress in self.egresses if broker_name_of(egress) == broker_name_of(ingress)
        ]

    def kafka_configuration(self, owner: Ingress | Egress) -> dict[str, Any]:
        """Return the librdkafka configuration for the Kafka of a Broker, KafkaChannel, Trigger or
        Subscription."""
        return dict(self.connections[broker_name_of(owner)])

    @contextmanager
    def explain_unreached_kafka(self, owner: Ingress | Egress) -> Iterator[None]:
        """While the context is open, turn a `LogError` that means that the Kafka of `owner` wasn't
        reached into `KafkaNotReached`, which says what to do. Other errors pass unchanged."""
        try:
            yield
        except LogError as error:
            is_unreached = error.retriable and not error.unknown_topic
            if not is_unreached or not self.unreached_hint:
                raise
            servers = self.connections[broker_name_of(owner)]["bootstrap.servers"]
            raise KafkaNotReached(f"Kafka at {servers}: {error}: {self.unreached_hint}") from error

    def _full_name(self, name: str) -> str:
        """Return a name with its namespace, which is `namespace` if the name doesn't include
        one."""
        return name if "/" in name else f"{self.namespace}/{name}"

    def _with_problems(self, text: str) -> str:
        """Return a sentence followed by the view's problems, which may be its cause."""
        return "; ".join([text, *self.problems])


class DeclaredSource(Protocol):
    """A source of declared Brokers, Triggers, KafkaChannels and Subscriptions."""

    def read(self, namespace: str | None = None) -> DeclaredView:
        """Read everything in `namespace`; None leaves the choice to the source (a cluster: the
        context's namespace; `knafka up`: all).

        Raises `KnafkaError`, which says what to do next.
        """
        ...


class InstallationSource:
    """Reads what a `knafka up` runs, from its data folder."""

    def __init__(self, installation: Installation) -> None:
        """`installation` is the data folder."""
        self._installation = installation

    def read(self, namespace: str | None = None) -> DeclaredView:
        """Read everything in `namespace`, or in all namespaces (None). Raises `NotRunning`."""
        running = self._installation.read_state()
        configuration = connection_configuration(Kafka(bootstrap_servers=running.bootstrap_servers))
        paused: set[str] = set()
        with suppress(KnafkaError):  # there is no snapshot while `knafka up` starts
            snapshot = snapshot_file.read_snapshot(self._installation)
            paused = {_prefixed_name(row.kind, row.name) for row in snapshot.triggers if row.paused}
        ingresses = [
            ingress for ingress in running.ingresses if namespace in (None, ingress.namespace)
        ]
        return DeclaredView(
            ingresses,
            [egress for egress in running.egresses if namespace in (None, egress.namespace)],
            {broker_name_of(ingress): configuration for ingress in ingresses},
            paused,
            namespace=namespace or DEFAULT_NAMESPACE,
        )


def broker_name_of(owner: Ingress | Egress) -> str:
    """Return the name of the Broker (`namespace/name`) or KafkaChannel (`channel/namespace/name`)
    that an Ingress or Egress belongs to."""
    name = f"{owner.namespace}/{owner.broker}"
    return CHANNEL_PREFIX + name if owner.kind in ("KafkaChannel", "Subscription") else name


def trigger_name_of(egress: Egress) -> str:
    """Return the name of a Trigger or Subscription: `namespace/name` or
    `subscription/namespace/name`."""
    return _prefixed_name(egress.kind, f"{egress.namespace}/{egress.trigger}")


def namespace_in(name: str) -> str | None:
    """Return the namespace in a name, such as `shop` in `channel/shop/orders`; None if it has
    none."""
    for prefix in (CHANNEL_PREFIX, SUBSCRIPTION_PREFIX):
        name = name.removeprefix(prefix)
    return name.rpartition("/")[0] or None


def _prefixed_name(kind: str, name: str) -> str:
    """Return `name` with the prefix `subscription/` if `kind` is Subscription."""
    return SUBSCRIPTION_PREFIX + name if kind == "Subscription" else name
