"""Whether a function's Service was edited, and what is said of one that waits for its turn."""

from __future__ import annotations

from typing import Any

import pytest

from knafka_operator.functions.rolls import is_edited, roll_waits_condition
from knafka_operator.model.identity import Identity

MAIL = Identity("shop", "mail")


def service(**environment: str) -> dict[str, Any]:
    variables = [{"name": name, "value": value} for name, value in environment.items()]
    container = {"env": variables}
    return {"metadata": {}, "spec": {"template": {"spec": {"containers": [container]}}}}


@pytest.mark.parametrize(
    ("stored", "new", "edited"),
    [
        pytest.param("{}", "{}", False, id="equal"),
        pytest.param(None, "{}", True, id="it had none"),
        pytest.param("{}", None, True, id="it has none any more"),
        pytest.param("not JSON", "{}", False, id="of which nothing can be said"),
    ],
)
def test_a_service_without_a_digest_is_compared_by_its_contract(
    stored: str | None, new: str | None, edited: bool
) -> None:
    was, now = (
        service() if contract is None else service(KNAFKA_EGRESS=contract)
        for contract in (stored, new)
    )
    assert is_edited(was, now) is edited


def test_a_roll_that_is_stuck_is_named_to_its_neighbours_and_to_no_other_namespace() -> None:
    stuck = {Identity("shop", "audit"): "shop", Identity("other", "stock"): "other"}
    condition = roll_waits_condition(MAIL, "shop", stuck, at_most=5)
    assert condition.reason == "RollStuck"
    assert "waits for audit" in condition.message
    assert "stock" not in condition.message


def test_a_roll_waits_for_its_turn() -> None:
    condition = roll_waits_condition(MAIL, "shop", {}, at_most=5)
    assert condition.reason == "RollWaits"
    assert "5 functions at a time" in condition.message
