"""Routes: gives a KafkaChannel its own host at a receiver that many channels share. Pure.

    http://{name}-kn-channel.{namespace}.svc.{domain}     (KN-CHN-11)
      -> Service of type ExternalName, in the channel's namespace -> Knative's gateway
      -> Ingress with that host -> the receiver, which gets the requested host in a header

An Ingress is in the namespace of its target, the receiver's. A DomainMapping would do the same, but
Knative refuses one for a cluster's own domain. Without a gateway the address is the channel's path
at its receiver. With `direct` the host leads to the receiver's pods; the Ingress stays for clients
that have cached the gateway's address.
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
"""The apiVersion of Knative's Ingresses."""
INGRESS_CLASS: Final = "networking.knative.dev/ingress.class"
"""Annotation of an Ingress: the networking layer that serves it."""
ORIGINAL_HOST: Final = "K-Original-Host"
"""Header with the requested host, as in Knative's own routes."""
ROUTE_SUFFIX: Final = "-kn-channel"
"""End of the names of a channel's ExternalName Service (as upstream, KN-CHN-11) and Ingress."""
ROUTE_ROLE: Final = "channel"
"""Value of the role label of the ExternalName Service and the Ingress."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """Knative's internal gateway, from the status of the receiver's Ingress."""

    host: str
    """The gateway's host name inside the cluster."""
    ingress_class: str | None = None
    """Knative's annotation that names the networking layer of this gateway; None: the Ingress has
    none."""


def gateway_of(ingress: Mapping[str, Any] | None) -> Gateway | None:
    """Return the gateway in the status of a function's Ingress; None: the status names none yet, or
    there is no Ingress."""
    if ingress is None:
        return None
    balancer = (ingress.get("status") or {}).get("privateLoadBalancer") or {}
    hosts = (address.get("domainInternal") for address in balancer.get("ingress") or ())
    host = next(filter(None, hosts), None)
    annotations = ingress["metadata"].get("annotations") or {}
    return None if host is None else Gateway(str(host), annotations.get(INGRESS_CLASS))


def service_name(channel: Broker) -> str:
    """Return the name of a channel's ExternalName Service, the first label of the channel's host
    name."""
    return names.child(channel.metadata.name, ROUTE_SUFFIX)


def route_name(channel: Broker) -> str:
    """Return the name of a channel's Ingress, unique among all channels."""
    return names.child(CHANNELS.function_name_prefix(services.identity_of(channel)), ROUTE_SUFFIX)


def channel_hosts(channel: Broker, settings: Settings) -> tuple[str, ...]:
    """Return the host names by which pods may address a channel; the last one is the full name."""
    short_host = f"{service_name(channel)}.{channel.metadata.namespace}"
    return short_host, f"{short_host}.svc", f"{short_host}.svc.{settings.cluster_domain}"


def route_manifest(
    channel: Broker, receiver: str, gateway: Gateway, settings: Settings
) -> Manifest:
    """Return the manifest of the Ingress by which `gateway` routes the channel's host names to the
    Knative Service `receiver`, the receiver's."""
    full_host = channel_hosts(channel, settings)[-1]
    annotations = {} if gateway.ingress_class is None else {INGRESS_CLASS: gateway.ingress_class}
    split = {
        "serviceNamespace": settings.namespace,
        "serviceName": receiver,
        "servicePort": 80,
        "percent": 100,
        "appendHeaders": {ORIGINAL_HOST: full_host},
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
                {services.ROLE_LABEL: ROUTE_ROLE, services.OWNER_LABEL: channel.metadata.uid}
            ),
            "annotations": annotations,
        },
        "spec": {"httpOption": "Enabled", "rules": [rule]},
    }


def external_name_service(channel: Broker, target_host: str) -> Manifest:
    """Return the manifest of the ExternalName Service by which a channel's host names resolve to
    `target_host`."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service_name(channel),
            "namespace": channel.metadata.namespace,
            "labels": services.with_common_labels({services.ROLE_LABEL: ROUTE_ROLE}),
            "ownerReferences": [services.owner_reference(channel)],
        },
        "spec": {
            "type": "ExternalName",
            "externalName": target_host,
            "sessionAffinity": "None",
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 80}],
        },
    }
