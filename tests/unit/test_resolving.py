"""A declared destination as an address (KN-DST-01..04)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from support.certificates import OTHER_PEM, PEM

from knafka.core import documents
from knafka_operator.decisions.resolving import Unresolved, resolve
from knafka_operator.model.resources import Destination

OBJECTS: Mapping[tuple[str, str, str, str], Mapping[str, Any]] = {
    ("v1", "Service", "shop", "plain"): {},
    ("v1", "Service", "other", "plain"): {},
    ("serving.knative.dev/v1", "Service", "shop", "fn"): {
        "status": {"address": {"url": "http://fn.shop.svc.cluster.local"}}
    },
    ("serving.knative.dev/v1", "Service", "shop", "new"): {"status": {}},
    ("example.com/v1", "Inbox", "shop", "secure"): {
        "status": {"addresses": [{"url": "https://inbox.shop", "CACerts": PEM}]}
    },
    ("example.com/v1", "Inbox", "shop", "both"): {
        "status": {
            "address": {"name": "http", "url": "http://both.shop"},
            "addresses": [
                {"name": "https", "url": "https://both.shop", "CACerts": PEM},
                {"name": "http", "url": "http://both.shop"},
            ],
        }
    },
    ("v1", "Secret", "other", "there"): {"data": {}},
    ("example.com/v1", "Inbox", "other", "new"): {"status": {"addresses": [{"name": "http"}]}},
    ("example.com/v1", "Inbox", "shop", "odd"): {"status": {"address": {"url": "mailto:you"}}},
}


async def _get(api_version: str, kind: str, namespace: str, name: str) -> Mapping[str, Any] | None:
    return OBJECTS.get((api_version, kind, namespace, name))


async def _resolve(declared: Mapping[str, Any]) -> tuple[str, str | None]:
    sink = await resolve(documents.parse(Destination, declared), "shop", _get, "cluster.local")
    return sink.url, sink.ca_certs


def _ref(api_version: str, kind: str, name: str, **more: str) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "name": name, **more}


PLAIN = _ref("v1", "Service", "plain")
FUNCTION = _ref("serving.knative.dev/v1", "Service", "fn")


@pytest.mark.conformance("KN-DST-01", "KN-DST-02", "KN-DST-03")
@pytest.mark.parametrize(
    ("declared", "url"),
    [
        pytest.param({"uri": "http://there/x"}, "http://there/x", id="uri"),
        pytest.param({"uri": "bad://uri"}, "bad://uri", id="any-scheme"),
        pytest.param({"ref": FUNCTION}, "http://fn.shop.svc.cluster.local", id="KN-DST-01"),
        pytest.param({"ref": PLAIN}, "http://plain.shop.svc.cluster.local", id="KN-DST-02"),
        pytest.param(
            {"ref": {**PLAIN, "namespace": "other"}},
            "http://plain.other.svc.cluster.local",
            id="another-namespace",
        ),
        pytest.param(
            {"ref": FUNCTION, "uri": "/a/b"}, "http://fn.shop.svc.cluster.local/a/b", id="KN-DST-03"
        ),
        pytest.param(
            {"ref": PLAIN, "uri": "a"}, "http://plain.shop.svc.cluster.local/a", id="KN-DST-03-path"
        ),
    ],
)
async def test_a_destination_has_an_address(declared: Mapping[str, Any], url: str) -> None:
    assert await _resolve(declared) == (url, None)


@pytest.mark.conformance("KN-DST-01")
@pytest.mark.parametrize(
    ("name", "url"),
    [
        ({}, ("https://both.shop", PEM)),
        ({"address": "https"}, ("https://both.shop", PEM)),
        ({"address": "http"}, ("http://both.shop", None)),
    ],
    ids=["unnamed", "https", "http"],
)
async def test_of_several_addresses_the_named_one_is_used_or_the_first(
    name: dict[str, str], url: tuple[str, str | None]
) -> None:
    assert await _resolve({"ref": _ref("example.com/v1", "Inbox", "both", **name)}) == url


async def test_an_address_that_is_not_among_them_is_named() -> None:
    ref = _ref("example.com/v1", "Inbox", "both", address="grpc")
    with pytest.raises(Unresolved, match=r"status\.addresses has none with the name grpc"):
        await _resolve({"ref": ref})


async def test_a_service_with_authorities_is_asked_by_https() -> None:
    """As upstream's resolver does."""
    url = "https://plain.shop.svc.cluster.local"
    assert await _resolve({"ref": PLAIN, "CACerts": PEM}) == (url, PEM)


async def test_an_addressables_authorities_are_trusted_unless_others_are_declared() -> None:
    ref = _ref("example.com/v1", "Inbox", "secure")
    assert await _resolve({"ref": ref}) == ("https://inbox.shop", PEM)
    assert await _resolve({"ref": ref, "CACerts": OTHER_PEM}) == ("https://inbox.shop", OTHER_PEM)


@pytest.mark.conformance("KN-DST-04", "KN-TRG-03")
@pytest.mark.parametrize(
    ("ref", "reason"),
    [
        (_ref("v1", "Service", "missing"), "NotFound"),
        (_ref("v1", "Service", "plain", namespace="nowhere"), "NotFound"),
        (_ref("serving.knative.dev/v1", "Service", "new"), "NotAddressable"),
        (_ref("example.com/v1", "Inbox", "odd"), "InvalidAddress"),
    ],
)
async def test_what_has_no_address_says_why(ref: Mapping[str, Any], reason: str) -> None:
    """KN-DST-04, KN-TRG-03."""
    with pytest.raises(Unresolved) as refused:
        await _resolve({"ref": ref})
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    ("api_version", "kind", "name"), [("v1", "Secret", "there"), ("example.com/v1", "Inbox", "new")]
)
@pytest.mark.parametrize("address", [{}, {"address": "grpc"}], ids=["unnamed", "named"])
async def test_what_has_no_address_in_another_namespace_is_the_same_as_what_is_missing_there(
    api_version: str, kind: str, name: str, address: dict[str, str]
) -> None:
    """A Trigger's status must not say which Secrets another namespace has."""
    refusals = set()
    for each in (name, "missing"):
        ref = _ref(api_version, kind, each, namespace="other", **address)
        with pytest.raises(Unresolved) as refused:
            await _resolve({"ref": ref})
        refusals.add((refused.value.reason, str(refused.value).replace(each, "NAME")))
    message = f"{kind} other/NAME ({api_version}) does not exist or has no address"
    assert refusals == {("NotFound", message)}


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8080/",
        "http://169.254.169.254/latest/meta-data/iam/security-credentials/",
        "http://0x7f000001/",
        "http://[::ffff:127.0.0.1]/",
        "http://LOCALHOST/",
        "https://metadata.google.internal/",
    ],
)
async def test_an_address_of_the_pod_or_the_node_is_refused_unless_it_is_allowed(url: str) -> None:
    destination = documents.parse(Destination, {"uri": url})
    with pytest.raises(Unresolved, match="KNAFKA_LOCAL_ADDRESSES=allowed") as caught:
        await resolve(destination, "shop", _get, "cluster.local")
    assert caught.value.reason == "AddressNotAllowed"
    found = await resolve(destination, "shop", _get, "cluster.local", local_addresses=True)
    assert found.url == url


async def test_so_is_one_that_an_object_says_is_its_own() -> None:
    async def get(*_: str) -> Mapping[str, Any]:
        return {"status": {"address": {"url": "http://169.254.169.254/"}}}

    ref = {"apiVersion": "example.com/v1", "kind": "Inbox", "name": "inbox"}
    destination = documents.parse(Destination, {"ref": ref, "uri": "/latest"})
    with pytest.raises(Unresolved, match="link-local"):
        await resolve(destination, "shop", get, "cluster.local")
