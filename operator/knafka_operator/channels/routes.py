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
from knafka_operator.functions import services
from knafka_operator.functions.services import Manifest
from knafka_operator.installation.settings import Settings
from knafka_operator.model.family import CHANNELS
from knafka_operator.model.resources import Broker

NETWORKING: Final = "networking.internal.knative.dev/v1alpha1"
INGRESS_CLASS: Final = "networking.knative.dev/ingress.class"
ORIGINAL_HOST: Final = "K-Original-Host"
"""The header that names the host which was asked for, as Knative's own routes have it."""
ROUTE_SUFFIX: Final = "-kn-channel"
ROLE: Final = "channel"


@dataclass(frozen=True, slots=True)
class Gateway:
    """Knative's internal gateway, as the status of the receiver's Ingress names it."""

    host: str
    ingress_class: str | None = None


def gateway_of(ingress: Mapping[str, Any] | None) -> Gateway | None:
    """The gateway in the status of a function's Ingress; None: there is none."""
    if ingress is None:
        return None
    balancer = (ingress.get("status") or {}).get("privateLoadBalancer") or {}
    hosts = [each.get("domainInternal") for each in balancer.get("ingress") or ()]
    host = next(filter(None, hosts), None)
    annotations = ingress["metadata"].get("annotations") or {}
    return None if host is None else Gateway(str(host), annotations.get(INGRESS_CLASS))


def service_name(channel: Broker) -> str:
    """The name of a channel's ExternalName Service, which is also its host's first label."""
    return names.child(channel.metadata.name, ROUTE_SUFFIX)


def route_name(channel: Broker) -> str:
    """The name of a channel's Ingress, unique among those of all channels."""
    return names.child(CHANNELS.function_name_prefix(services.identity_of(channel)), ROUTE_SUFFIX)


def channel_hosts(channel: Broker, settings: Settings) -> tuple[str, ...]:
    """The names of a channel's host that pods may use; the last is the full name."""
    short = f"{service_name(channel)}.{channel.metadata.namespace}"
    return short, f"{short}.svc", f"{short}.svc.{settings.cluster_domain}"


def route_manifest(channel: Broker, receiver: str, to: Gateway, settings: Settings) -> Manifest:
    """The Ingress that routes a channel's host to its receiver."""
    whole = channel_hosts(channel, settings)[-1]
    annotations = {} if to.ingress_class is None else {INGRESS_CLASS: to.ingress_class}
    split = {
        "serviceNamespace": settings.namespace,
        "serviceName": receiver,
        "servicePort": 80,
        "percent": 100,
        "appendHeaders": {ORIGINAL_HOST: whole},
    }
    path = {
        "rewriteHost": services.service_host(receiver, settings.namespace, settings),
        "splits": [split],
    }
    rule = {
        "hosts": list(channel_hosts(channel, settings)),
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
                {services.ROLE_LABEL: ROLE, services.OWNER_LABEL: channel.metadata.uid}
            ),
            "annotations": annotations,
        },
        "spec": {"httpOption": "Enabled", "rules": [rule]},
    }


def external_name_service(channel: Broker, to: str) -> Manifest:
    """The ExternalName Service of a channel's host, which leads to the host `to`."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service_name(channel),
            "namespace": channel.metadata.namespace,
            "labels": services.with_common_labels({services.ROLE_LABEL: ROLE}),
            "ownerReferences": [services.owner_reference(channel)],
        },
        "spec": {
            "type": "ExternalName",
            "externalName": to,
            "sessionAffinity": "None",
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 80}],
        },
    }
