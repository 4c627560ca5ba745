"""Destinations that nothing can be sent to: refused with the reason by `knafka check`, by the
webhooks and by `knafka up` alike, and no password is in what any of them says."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.admitted import broker, refusal, trigger
from support.certificates import PEM
from support.local_world import broker as local_broker
from support.local_world import running_locally
from support.local_world import trigger as local_trigger

from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument
from knafka.ports.subscriber import Target
from knafka_cli.checks.checking import check
from knafka_operator.decisions.resolving import Unresolved, resolve
from knafka_operator.model.resources import Destination

PASSWORD = "hunter2"
CREDENTIALS = "the URL holds credentials, which belong in a Secret"
CLEAN = "want ASCII without spaces, controls or quotes"
CERTIFICATES = "CA Cert provided is invalid"
REFERENCE = {"apiVersion": "v1", "kind": "Service", "name": "mail"}

UNUSABLE: Mapping[str, tuple[dict[str, Any], str]] = {
    "a user and a password": ({"uri": f"http://u:{PASSWORD}@x/"}, CREDENTIALS),
    "a token for a user": ({"uri": f"https://{PASSWORD}@x/"}, CREDENTIALS),
    "a password with an @": ({"uri": f"http://u:{PASSWORD}@{PASSWORD}@x/"}, CREDENTIALS),
    "a password with a slash": ({"uri": f"http://u:{PASSWORD}/{PASSWORD}@x/"}, CREDENTIALS),
    "a password with a question mark": ({"uri": f"http://u:{PASSWORD}?@x/"}, CREDENTIALS),
    "a password with a #": ({"uri": f"http://u:{PASSWORD}#@x/"}, CREDENTIALS),
    "a password and another scheme": ({"uri": f"bad://u:{PASSWORD}@x/"}, CREDENTIALS),
    "a password and a space": ({"uri": f"http://u:{PASSWORD}@x/a b"}, CREDENTIALS),
    "a password without a scheme": ({"uri": f"u:{PASSWORD}@x/"}, "a URL without a host"),
    "a password in half a URL": ({"uri": f"//u:{PASSWORD}@x/"}, "relative URL without a ref"),
    "a password beside a ref": (
        {"ref": REFERENCE, "uri": f"http://u:{PASSWORD}@x/"},
        "absolute URL beside a ref",
    ),
    "a password and no IPv6 address": ({"uri": f"http://u:{PASSWORD}@[::1/"}, "Invalid IPv6 URL"),
    "a host that isn't ASCII": (
        {"uri": "http://bücher.example/"},
        f"{CLEAN}; its host is written xn--bcher-kva.example",
    ),
    "a path that isn't ASCII": ({"uri": "http://x/é"}, CLEAN),
    "a space": ({"uri": "http://x/a b"}, CLEAN),
    "a space before it": ({"uri": " http://x/"}, CLEAN),
    "a space behind it": ({"uri": "http://x/ "}, CLEAN),
    "CRLF": ({"uri": "http://x/\r\nce-id: forged"}, CLEAN),
    "a tab": ({"uri": "http://x/\ta"}, CLEAN),
    "a line's end": ({"uri": "http://x/\n"}, CLEAN),
    "NUL": ({"uri": "http://x/\0"}, CLEAN),
    "quotes": ({"uri": 'http://x/"a"'}, CLEAN),
    "a backslash": ({"uri": "http://x\\y/"}, CLEAN),
    "half an encoded byte": ({"uri": "http://x/%z"}, CLEAN),
    "a port without a host": ({"uri": "http://:80/"}, "a URL without a host"),
    "a space beside a ref": ({"ref": REFERENCE, "uri": "a b"}, CLEAN),
    "CRLF beside a ref": ({"ref": REFERENCE, "uri": "/a\r\nx: y"}, CLEAN),
    "certificates that are none": ({"uri": "https://x/", "CACerts": "nonsense"}, CERTIFICATES),
    "half a certificate": ({"uri": "https://x/", "CACerts": PEM[: len(PEM) // 2]}, CERTIFICATES),
    "a certificate of no bytes": (
        {"uri": "https://x/", "CACerts": PEM.splitlines()[0] + "\nAA\n" + PEM.splitlines()[-1]},
        CERTIFICATES,
    ),
    "certificates of http": ({"uri": "http://x/", "CACerts": "nonsense"}, CERTIFICATES),
    "certificates beside a ref": ({"ref": REFERENCE, "CACerts": "nonsense"}, CERTIFICATES),
}
EVERY_ONE = pytest.mark.parametrize(("destination", "reason"), UNUSABLE.values(), ids=UNUSABLE)

USABLE: Mapping[str, dict[str, Any]] = {
    "an address": {"uri": "http://x:8080/a/b?c=d"},
    "an @ in its path": {"uri": "http://x/@user"},
    "an @ in its query": {"uri": "http://x/?to=a@b"},
    "an encoded path": {"uri": "http://x/%C3%A9"},
    "a host in ASCII": {"uri": "http://xn--bcher-kva.example/"},
    "an IPv6 address": {"uri": "http://[::1]:80/"},
    "another scheme, as upstream": {"uri": "bad://uri"},
    "certificates": {"uri": "https://x/", "CACerts": PEM},
    "two certificates": {"uri": "https://x/", "CACerts": PEM * 2},
    "no certificates": {"uri": "https://x/", "CACerts": ""},
}


def destined(kind: str, destination: dict[str, Any]) -> dict[str, Any]:
    """An object of the kind that sends there."""
    subscription = {
        "channel": {
            "apiVersion": "messaging.knative.dev/v1beta1",
            "kind": "KafkaChannel",
            "name": "c",
        }
    }
    match kind:
        case "Trigger":
            return trigger(subscriber=destination)
        case "Trigger's sink":
            return trigger(delivery={"deadLetterSink": destination})
        case "Broker's sink":
            return broker(delivery={"deadLetterSink": destination})
        case "Subscription's reply":
            replying = {**subscription, "subscriber": {"uri": "http://x/"}, "reply": destination}
            return _object("messaging.knative.dev/v1", "Subscription", replying)
        case _:
            fires = {"name": "t", "conditions": "a", "subscriber": destination}
            spec: dict[str, Any] = {
                "broker": "b",
                "dependencies": [{"name": "a"}],
                "triggers": [fires],
            }
            return _object("knafka.dev/v1alpha1", "Sensor", spec)


KINDS = ("Trigger", "Trigger's sink", "Broker's sink", "Subscription's reply", "Sensor")


def _object(version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "o"}, "spec": spec}


def errors_of(folder: Path, document: dict[str, Any]) -> list[str]:
    """What `knafka check` says of it."""
    file = folder / "object.yaml"
    file.write_text(json.dumps(document))  # JSON is YAML
    return [str(each) for each in check([file], partial=True).findings]


@EVERY_ONE
@pytest.mark.parametrize("kind", KINDS)
def test_check_refuses_a_destination_that_cant_be_used(
    tmp_path: Path, kind: str, destination: dict[str, Any], reason: str
) -> None:
    errors = errors_of(tmp_path, destined(kind, destination))
    assert len(errors) == 1, errors
    assert ": error: " in errors[0]
    assert reason in errors[0]
    assert PASSWORD not in errors[0]


@EVERY_ONE
@pytest.mark.parametrize("kind", KINDS[:3])
def test_the_webhook_refuses_a_destination_that_cant_be_used(
    kind: str, destination: dict[str, Any], reason: str
) -> None:
    said = refusal(destined(kind, destination))
    assert reason.partition(": want ")[0].partition("want ")[0] in said
    assert PASSWORD not in said


@pytest.mark.looptime
@EVERY_ONE
async def test_up_says_why_a_trigger_whose_destination_cant_be_used_is_not_ready(
    caplog: pytest.LogCaptureFixture, destination: dict[str, Any], reason: str
) -> None:
    """A Trigger beside it is not concerned; the operator's reconciliation is the same."""
    caplog.set_level(logging.DEBUG)
    async with running_locally() as world:
        await world.apply(local_broker(), local_trigger("orders"), local_trigger("o", destination))
        assert world.reason("Trigger", "orders") == ""
        said = world.reason("Trigger", "o")
        assert said.startswith("Invalid: spec.subscriber")
        assert reason in said
        told = json.dumps(world.status("Trigger", "o")) + str(world.snapshot()) + caplog.text
        assert PASSWORD not in told


@pytest.mark.parametrize("destination", USABLE.values(), ids=USABLE)
@pytest.mark.parametrize("kind", KINDS)
def test_check_lets_a_destination_pass_that_can_be_used(
    tmp_path: Path, kind: str, destination: dict[str, Any]
) -> None:
    assert errors_of(tmp_path, destined(kind, destination)) == []


@pytest.mark.conformance("KN-DST-04")
@pytest.mark.parametrize(
    ("address", "reason"),
    [
        pytest.param({"url": f"http://u:{PASSWORD}@x/"}, CREDENTIALS, id="a password"),
        pytest.param({"url": "http://x/a b"}, CLEAN, id="a space"),
        pytest.param({"url": "http://bücher.example/"}, CLEAN, id="a host that isn't ASCII"),
        pytest.param(
            {"url": "https://x/", "CACerts": "nonsense"},
            "the CACerts in the status of Inbox mail are no certificates in PEM form",
            id="certificates that are none",
        ),
    ],
)
async def test_an_address_that_another_object_gives_and_cant_be_used_is_a_reason(
    address: dict[str, str], reason: str
) -> None:
    """KN-DST-04."""

    async def get(*_: str) -> dict[str, Any]:
        return {"status": {"address": address}}

    inbox = {"ref": {"apiVersion": "example.com/v1", "kind": "Inbox", "name": "mail"}}
    with pytest.raises(Unresolved) as refused:
        await resolve(parse(Destination, inbox), "shop", get, "cluster.local")
    assert refused.value.reason == "InvalidAddress"
    assert reason in str(refused.value)
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize(
    "url", [str(each["uri"]) for each, _ in UNUSABLE.values() if PASSWORD in str(each.get("uri"))]
)
def test_a_dispatcher_that_is_given_a_password_doesnt_say_it(url: str) -> None:
    """It is refused before that; a contract of an earlier release may hold one."""
    with pytest.raises(InvalidDocument) as refused:
        Target.parse(url)
    assert PASSWORD not in str(refused.value)
