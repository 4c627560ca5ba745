"""Who handles Subscriptions, and what becomes of Knative Eventing's finalizer on them."""

from __future__ import annotations

from typing import Any

import pytest

from knafka.core.errors import InvalidDocument
from knafka_operator.channels.subscription_status import orphaned_finalizers
from knafka_operator.installation.handler import (
    EVENTING_FINALIZER,
    Handler,
    Handling,
    parse_handler,
)

OWN = Handling(Handler.OWN, is_eventing_installed=False)
BESIDE_EVENTING = Handling(Handler.OWN, is_eventing_installed=True)
EVENTINGS = Handling(Handler.EVENTING, is_eventing_installed=True)


def subscription(*finalizers: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "shop", "name": "mail", "finalizers": [*finalizers]}}


@pytest.mark.parametrize(
    ("document", "handling", "removed"),
    [
        pytest.param(subscription("mine"), OWN, (), id="it has none"),
        pytest.param(subscription(EVENTING_FINALIZER), EVENTINGS, (), id="another handles it"),
        pytest.param(
            subscription(EVENTING_FINALIZER), OWN, (EVENTING_FINALIZER,), id="nobody removes it"
        ),
    ],
)
def test_the_finalizer_goes_where_its_controller_is_certainly_gone(
    document: dict[str, Any], handling: Handling, removed: tuple[str, ...]
) -> None:
    assert orphaned_finalizers(document, handling) == (removed, "")


def test_where_its_controller_may_be_back_users_get_the_command() -> None:
    removed, warning = orphaned_finalizers(subscription(EVENTING_FINALIZER), BESIDE_EVENTING)
    assert removed == ()
    assert "kubectl -n shop patch subscription mail" in warning


def test_an_unknown_handler_is_refused_with_what_is_wanted() -> None:
    assert parse_handler("own", "KNAFKA_SUBSCRIPTIONS") is Handler.OWN
    with pytest.raises(InvalidDocument, match="want auto, own, eventing"):
        parse_handler("mine", "KNAFKA_SUBSCRIPTIONS")
