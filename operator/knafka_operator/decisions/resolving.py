"""Resolving: resolves declared destinations to addresses (KN-DST).

    ref            the address of the object, with its CACerts and audience
    ref and uri    the uri, relative to the address of the object
    uri            the uri

The address of an object is the entry of `status.addresses` that `ref.address` names, or else the
first entry; without entries it is `status.address`. The address of a Service is its host name, with
https if the destination declares CACerts. An object of another namespace that has no address counts
as missing.

Not here: retries, or waiting until an object has an address: callers retry.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import urljoin

from knafka.core import addresses
from knafka.core.contract import Sink
from knafka.core.documents import parse, shown_url
from knafka.core.errors import InvalidDocument, KnafkaError
from knafka_operator.model.resources import CORE, AddressReference, Destination, are_certificates

Get: TypeAlias = Callable[[str, str, str, str], Awaitable[Mapping[str, Any] | None]]
"""apiVersion, kind, namespace and name -> the object; None if it doesn't exist."""

NOT_FOUND_REASON: Final = "NotFound"
NOT_ADDRESSABLE: Final = "NotAddressable"
NOT_ALLOWED_REASON: Final = "NotAllowed"
INVALID_ADDRESS: Final = "InvalidAddress"
ADDRESS_NOT_ALLOWED: Final = "AddressNotAllowed"
"""Reasons why a destination has no address (`Unresolved.reason`)."""
ADDRESSABLE_LABEL: Final = 'duck.knative.dev/addressable: "true"'
"""Label of ClusterRoles whose rights the operator gets."""


class Unresolved(KnafkaError):
    """A destination has no address, or none yet. `reason` is one CamelCase word, for a
    condition."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def not_allowed_error(api_version: str, kind: str, namespace: str, name: str) -> Unresolved:
    """Return the error for a referenced object that the operator's roles don't let it read. The
    texts are cut, as a user has declared them and may have made them long."""
    return Unresolved(
        NOT_ALLOWED_REASON,
        f"the operator may not read {kind:.100} {namespace}/{name:.253} ({api_version:.300}): "
        f"create a ClusterRole that may get this kind, with the label {ADDRESSABLE_LABEL}",
    )


async def resolve(
    destination: Destination,
    namespace: str,
    get: Get,
    domain: str,
    *,
    local_addresses: bool = False,
) -> Sink:
    """Resolve a destination declared in `namespace` to an address. Raises `Unresolved`, and the
    errors of `get`, which reads a referenced object.

    `domain` is the cluster's DNS domain, such as `cluster.local`. `local_addresses`: whether the
    URL's host may be an address of the pod or the node.
    """
    url, ca_certs = destination.uri or "", destination.ca_certs
    audience = destination.audience
    if destination.ref is not None:
        address = await _address_of_reference(
            destination.ref, namespace, get, domain, service_scheme="https" if ca_certs else "http"
        )
        url = urljoin(str(address["url"]), url)
        ca_certs = ca_certs or address.get("CACerts")
        audience = audience or address.get("audience")
        if ca_certs and not are_certificates(ca_certs):
            raise Unresolved(
                INVALID_ADDRESS,
                f"the CACerts in the status of {destination.ref.kind:.100} "
                f"{destination.ref.name:.253} are no certificates in PEM form",
            )
    if not local_addresses:
        _refuse_local_host(url)
    optional = {"caCerts": ca_certs, "audience": audience}
    try:
        return parse(Sink, {"url": url, **{key: value for key, value in optional.items() if value}})
    except InvalidDocument as error:
        raise Unresolved(
            INVALID_ADDRESS, f"its address {shown_url(url)} can't be used: {error}"
        ) from None


def _refuse_local_host(url: str) -> None:
    """Raise `Unresolved` if a URL's host is an address or name of the pod or the node, such as
    `localhost`. Other names pass; dispatchers check their addresses when they connect."""
    if (reason := addresses.refusal_of_url(url)) is not None:
        raise Unresolved(
            ADDRESS_NOT_ALLOWED,
            f"its address {url:.200} can't be used: {reason}; an administrator may allow these for "
            f"everybody with {addresses.LOCAL_ADDRESSES}=allowed",
        )


async def _address_of_reference(
    ref: AddressReference, namespace: str, get: Get, domain: str, *, service_scheme: str
) -> Mapping[str, Any]:
    """Return the address of a referenced object: `url`, and, if known, `CACerts` and `audience`.
    `namespace` applies if the reference names none; `service_scheme` is the URL scheme for a
    Kubernetes Service. Raises `Unresolved`, and the errors of `get`."""
    ref_namespace = ref.namespace or namespace
    stored = await get(ref.api_version, ref.kind, ref_namespace, ref.name)
    object_name = f"{ref.kind:.100} {ref_namespace}/{ref.name:.253} ({ref.api_version:.300})"
    missing = f"{object_name} does not exist"
    if is_elsewhere := ref_namespace != namespace:
        missing += " or has no address"
    if stored is None:
        raise Unresolved(NOT_FOUND_REASON, missing)
    if (ref.api_version, ref.kind) == (CORE, "Service"):
        return {"url": f"{service_scheme}://{ref.name}.{ref_namespace}.svc.{domain}"}  # KN-DST-02
    status = stored.get("status") or {}
    listed = status.get("addresses") or ()
    address: Mapping[str, Any]
    if ref.address:
        address = next(
            (candidate for candidate in listed if candidate.get("name") == ref.address), {}
        )
        why_missing = f"status.addresses has none with the name {ref.address:.63}"
    else:
        address = next(iter(listed), status.get("address") or {})
        why_missing = "its status.address.url is empty"
    if not address.get("url"):
        if is_elsewhere:  # nobody learns which other objects, such as Secrets, exist there
            raise Unresolved(NOT_FOUND_REASON, missing)
        raise Unresolved(NOT_ADDRESSABLE, f"{object_name} has no address: {why_missing}")
    return dict(address)
