"""NetworkPolicies, evaluated: who may reach whom, by what networking.k8s.io/v1 means.

    network = Network(namespaces={"shop": {}}, policies=[...])
    network.allows(source, target, 8080)      both ends must allow it

A pod that no policy selects for a direction is open in it; else the rules of all that do are added
up. As implementations differ in it, an `ipBlock` is of what is no pod only: a policy that relies on
more is refused here. Not here: named ports, and replies, which are always let through.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Direction = Literal["Ingress", "Egress"]
Document = Mapping[str, Any]


@dataclass(frozen=True)
class Peer:
    """A pod, or an address that is no pod's: the API server, a node, something outside."""

    name: str
    namespace: str | None = None
    """None: it is no pod."""
    labels: Mapping[str, str] = field(default_factory=dict)
    address: str = "203.0.113.1"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Network:
    """The policies of a cluster."""

    namespaces: Mapping[str, Mapping[str, str]]
    """Their labels beside their name's."""
    policies: Sequence[Document]

    def allows(self, source: Peer, target: Peer, port: int, protocol: str = "TCP") -> bool:
        """Whether a connection from one to the other is let through by both ends."""
        return self._passes("Egress", source, target, port, protocol) and self._passes(
            "Ingress", target, source, port, protocol
        )

    def _passes(self, way: Direction, pod: Peer, other: Peer, port: int, protocol: str) -> bool:
        if pod.namespace is None:
            return True
        selecting = [each for each in self.policies if self._selects(way, each, pod)]
        return not selecting or any(
            self._is_named(rule.get("from" if way == "Ingress" else "to"), each, other)
            and _has_port(rule.get("ports"), port, protocol)
            for each in selecting
            for rule in each["spec"].get(way.lower()) or ()
        )

    def _selects(self, way: Direction, policy: Document, pod: Peer) -> bool:
        spec = policy["spec"]
        default = ["Ingress", *(["Egress"] if "egress" in spec else [])]
        return (
            way in (spec.get("policyTypes") or default)
            and policy["metadata"]["namespace"] == pod.namespace
            and matches(spec["podSelector"], pod.labels)
        )

    def _is_named(self, peers: Iterable[Document] | None, policy: Document, other: Peer) -> bool:
        """No list, or an empty one, names everybody."""
        return not peers or any(self._is(each, policy, other) for each in peers)

    def _is(self, peer: Document, policy: Document, other: Peer) -> bool:
        if block := peer.get("ipBlock"):
            assert peer.keys() == {"ipBlock"}, "an ipBlock stands alone"
            return other.namespace is None and _is_in(block, other.address)
        assert peer, "a peer names something"
        if other.namespace is None:
            return False
        if "namespaceSelector" in peer:
            name = {"kubernetes.io/metadata.name": other.namespace}
            labels = {**self.namespaces.get(other.namespace, {}), **name}
            if not matches(peer["namespaceSelector"], labels):
                return False
        elif other.namespace != policy["metadata"]["namespace"]:
            return False
        return matches(peer.get("podSelector") or {}, other.labels)


def matches(selector: Document, labels: Mapping[str, str]) -> bool:
    """Whether a label selector takes these labels; an empty one takes all."""
    assert selector.keys() <= {"matchLabels", "matchExpressions"}, selector
    wanted = (selector.get("matchLabels") or {}).items()
    return wanted <= labels.items() and all(
        _fulfils(each, labels) for each in selector.get("matchExpressions") or ()
    )


def _fulfils(expression: Document, labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    raise AssertionError(expression)


def _has_port(ports: Iterable[Document] | None, port: int, protocol: str) -> bool:
    """No list, or an empty one, has every port."""
    return not ports or any(
        each.get("protocol", "TCP") == protocol
        and each["port"] <= port <= each.get("endPort", each["port"])
        for each in ports
    )


def _is_in(block: Document, address: str) -> bool:
    found = ipaddress.ip_address(address)

    def has(cidr: str) -> bool:
        network = ipaddress.ip_network(cidr)
        return network.version == found.version and found in network

    return has(block["cidr"]) and not any(map(has, block.get("except") or ()))
