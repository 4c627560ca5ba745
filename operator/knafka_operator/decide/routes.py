"""Routes: how a KafkaChannel has an address of its own at a receiver that many share. Pure.

    http://{name}-kn-channel.{namespace}.svc.{domain}     (KN-CHN-11)
      -> Service of type ExternalName, in the channel's namespace -> Knative's gateway
      -> Ingress with that host -> the receiver, which is given the host that was asked for

An Ingress is in the namespace of what it leads to: the receiver's.
That is what a DomainMapping does, which Knative refuses for a cluster's own domain. Where there is
no gateway the address is the channel's path at its receiver. Past Knative's proxy (`direct`) the
host leads to the receiver's pods; the Ingress stays for who still knows where the gateway is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from knafka.core import names
from knafka_operator.decide import services
from knafka_operator.decide.services import Manifest
from knafka_operator.model.family import CHANNELS
from knafka_operator.model.resources import Broker
from knafka_operator.model.settings import Settings

NETWORKING: Final = "networking.internal.knative.dev/v1alpha1"
INGRESS_CLASS: Final = "networking.knative.dev/ingress.class"
ORIGINAL_HOST: Final = "K-Original-Host"
"""The header that names the host which was asked for, as Knative's own routes have it."""
SUFFIX: Final = "-kn-channel"
ROLE: Final = "channel"


@dataclass(frozen=True, slots=True)
class Gateway:
    """Knative's, as the receiver's own Ingress names it."""

    host: str
    ingress_class: str | None = None


def gateway(ingress: Mapping[str, Any] | None) -> Gateway | None:
    """What leads to a function, by its Ingress; None: it doesn't say."""
    if ingress is None:
        return None
    balancer = (ingress.get("status") or {}).get("privateLoadBalancer") or {}
    hosts = [each.get("domainInternal") for each in balancer.get("ingress") or ()]
    host = next(filter(None, hosts), None)
    annotations = ingress["metadata"].get("annotations") or {}
    return None if host is None else Gateway(str(host), annotations.get(INGRESS_CLASS))


def service_name(channel: Broker) -> str:
    return names.child(channel.metadata.name, SUFFIX)


def route_name(channel: Broker) -> str:
    """Of the Ingress, beside those of all other channels."""
    return names.child(CHANNELS.parent(services.identity_of(channel)), SUFFIX)


def hosts(channel: Broker, settings: Settings) -> tuple[str, ...]:
    """All names of the channel's host, as a pod may write them; the last one is whole."""
    short = f"{service_name(channel)}.{channel.metadata.namespace}"
    return short, f"{short}.svc", f"{short}.svc.{settings.cluster_domain}"


def route(channel: Broker, receiver: str, to: Gateway, settings: Settings) -> Manifest:
    """The Ingress with the channel's host."""
    whole = hosts(channel, settings)[-1]
    annotations = {} if to.ingress_class is None else {INGRESS_CLASS: to.ingress_class}
    split = {
        "serviceNamespace": settings.namespace,
        "serviceName": receiver,
        "servicePort": 80,
        "percent": 100,
        "appendHeaders": {ORIGINAL_HOST: whole},
    }
    path = {
        "rewriteHost": services.host(receiver, settings.namespace, settings),
        "splits": [split],
    }
    rule = {
        "hosts": list(hosts(channel, settings)),
        "visibility": "ClusterLocal",
        "http": {"paths": [path]},
    }
    return {
        "apiVersion": NETWORKING,
        "kind": "Ingress",
        "metadata": {
            "name": route_name(channel),
            "namespace": settings.namespace,
            "labels": services.with_common_labels(
                {services.ROLE: ROLE, services.OWNER: channel.metadata.uid}
            ),
            "annotations": annotations,
        },
        "spec": {"httpOption": "Enabled", "rules": [rule]},
    }


def service(channel: Broker, to: str) -> Manifest:
    """The name of the channel's host, which leads to another one."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service_name(channel),
            "namespace": channel.metadata.namespace,
            "labels": services.with_common_labels({services.ROLE: ROLE}),
            "ownerReferences": [services.owner_reference(channel)],
        },
        "spec": {
            "type": "ExternalName",
            "externalName": to,
            "sessionAffinity": "None",
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 80}],
        },
    }
