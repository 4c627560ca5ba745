"""What the webhooks refuse of a change, in Knative's words."""

from __future__ import annotations

from typing import Any

import pytest
from support.admitted import CONFIG, EVENTING, broker, refusal, trigger, without

from knafka_operator.model.resources import BROKER_CLASS
from knafka_operator.triggers.admission import INJECTION


def test_an_update_may_not_make_it_worse() -> None:
    old = trigger(delivery={"retry": -1})
    assert refusal(trigger(delivery={"retry": -2}), old).startswith("invalid value: -2: ")
    assert refusal(trigger({INJECTION: "yes"}, delivery={"retry": -1}), old).startswith("The prov")


@pytest.mark.conformance("KN-BRK-06", "KN-BRK-05", "KN-TRG-05")
@pytest.mark.parametrize(
    ("new", "old", "told"),
    [
        pytest.param(
            broker(config={**CONFIG, "name": "new"}),
            broker(config=CONFIG),
            "Immutable fields changed (-old +new): spec\n"
            'spec.config.name:\n\t-: "kafka"\n\t+: "new"',
            id="KN-BRK-06-config",
        ),
        pytest.param(
            broker(),
            broker(config={"name": "kafka", "apiVersion": "v1", "kind": "ConfigMap"}),
            "Immutable fields changed (-old +new): spec\n"
            'spec.config.apiVersion:\n\t-: "v1"\nspec.config.kind:\n\t-: "ConfigMap"\n'
            'spec.config.name:\n\t-: "kafka"\nspec.config.namespace:\n\t-: "shop"',
            id="KN-BRK-06-no-config",
        ),
        pytest.param(
            broker({BROKER_CLASS: "Kafka"}),
            broker({BROKER_CLASS: "kafka"}),
            "Immutable annotations changed (-old +new): annotations\n"
            'eventing.knative.dev/broker.class:\n\t-: "kafka"\n\t+: "Kafka"',
            id="KN-BRK-05-class",
        ),
        pytest.param(
            broker({}),
            broker({BROKER_CLASS: "kafka"}),
            "Immutable annotations changed (-old +new): annotations\n"
            'eventing.knative.dev/broker.class:\n\t-: "kafka"\n\t+: ""',
            id="KN-BRK-05-no-class",
        ),
        pytest.param(
            trigger(broker="other"),
            trigger(),
            "Immutable fields changed (-old +new): spec, broker\n"
            'spec.broker:\n\t-: "orders"\n\t+: "other"',
            id="KN-TRG-05",
        ),
        pytest.param(
            broker(delivery={"retry": 3}), broker(delivery={"retry": 1}), "", id="delivery-may"
        ),
        pytest.param(
            broker(config={**CONFIG, "namespace": "shop"}),
            broker(config=CONFIG),
            "",
            id="a-default-filled-in-later",
        ),
        pytest.param(
            trigger(filter={"attributes": {"type": "a"}}, subscriber={"uri": "http://b/"}),
            trigger(),
            "",
            id="KN-TRG-05-others-may",
        ),
        pytest.param(
            without(
                trigger(brokerRef={"apiVersion": EVENTING, "kind": "Broker", "name": "orders"}),
                "broker",
            ),
            trigger(),
            "",
            id="the-same-broker-by-reference",
        ),
        pytest.param(trigger(), trigger(broker=""), "", id="a-broker-at-last"),
    ],
)
def test_what_may_not_change_stays(new: dict[str, Any], old: dict[str, Any], told: str) -> None:
    assert refusal(new, old) == told


def test_a_change_is_refused_together_with_what_is_wrong() -> None:
    told = refusal(trigger(broker="other", delivery={"retry": -1}), trigger())
    assert "Immutable fields changed" in told
    assert "spec.delivery.retry" in told
