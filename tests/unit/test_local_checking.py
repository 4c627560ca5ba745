"""`knafka check`: what a cluster would say, without one; each mistake is named with its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from knafka.core.cesql.functions import names
from knafka_cli.checks.checking import FindingSeverity, check
from knafka_cli.command_line import app

CHANNEL_EXAMPLE = Path(__file__).parents[2] / "examples" / "channel"
QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"
GOOD = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: shop-kafka}
data: {default.topic.partitions: "4"}
---
apiVersion: eventing.knative.dev/v1
kind: Broker
metadata: {name: shop, annotations: {eventing.knative.dev/broker.class: kafka}}
spec: {config: {apiVersion: v1, kind: ConfigMap, name: shop-kafka}}
---
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata: {name: orders, annotations: {kafka.eventing.knative.dev/delivery.order: ordered}}
spec:
  broker: shop
  filters: [{exact: {type: order}}]
  subscriber: {ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: mail}}
---
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: mail}
spec: {template: {spec: {containers: [{image: mail}]}}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "shop.yaml"


def found(file: Path, before: str, after: str) -> list[tuple[FindingSeverity, str]]:
    """What is said of the good file with one thing changed."""
    assert before in GOOD
    file.write_text(GOOD.replace(before, after))
    return [(each.severity, str(each)) for each in check([file]).findings]


def test_what_is_right_has_nothing_to_be_said_of_it(file: Path) -> None:
    file.write_text(GOOD)
    checked = check([file])
    assert (checked.object_count, list(checked.findings)) == (4, [])
    assert check([QUICKSTART]).findings == []


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("  broker: shop", "  broker: shop\n  fliter: {}", "spec.fliter"),
        ("  broker: shop", "  broker: shpo", "Broker default/shpo isn't among the files; did you"),
        ("name: shop-kafka}}", "name: shop-kakfa}}", "did you mean shop-kafka?"),
        ("kind: Service, name: mail", "kind: Service, name: male", "did you mean mail?"),
        ('partitions: "4"', 'partitions: "four"', "data.default.topic.partitions"),
        ("{exact: {type: order}}", "{cesql: 'UPPERCASE(type) = 1'}", "mean UPPER?"),
        ("{exact: {type: order}}", "{not: {cesql: 'a IN (1, FOO(b))'}}", "no function FOO; there"),
        ("{exact: {type: order}}", "{all: [{cesql: 'NOT LEFT(a)'}]}", "LEFT does not take 1 "),
        ("{exact: {type: order}}", "{cesql: 'UPPER(type)'}", "returns a string"),
        ("{exact: {type: order}}", "{exact: {type: a}}, {prefix: {type: b}}", "never matches"),
        ("delivery.order: ordered", "delivery.order: sorted", "want ordered, unordered, key"),
        ("kind: Trigger", "kind: [Trigger", "can't be read"),
        ("metadata: {name: mail}", "metadata: {name: Mail}", "metadata.name"),
    ],
    ids=[
        "unknown field",
        "no Broker",
        "no ConfigMap",
        "no Service",
        "value in a ConfigMap",
        "no such function",
        "no such function, deep within",
        "no such number of arguments",
        "no Boolean",
        "contradiction",
        "annotation's value",
        "no YAML",
        "name",
    ],
)
def test_a_mistake_is_an_error_that_names_the_place(
    file: Path, before: str, after: str, says: str
) -> None:
    errors = [
        text for severity, text in found(file, before, after) if severity is FindingSeverity.ERROR
    ]
    assert any(says in each for each in errors), errors
    assert all(str(file) in each for each in errors)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("default.topic.partitions", "default.topic.partition", "mean default.topic.partitions?"),
        ("delivery.order", "delivery.odrer", "delivery.order?"),
        ("broker.class: kafka", "broker.class: InMemory", "another implementation's"),
        (
            "name: shop-kafka}}",
            "name: a, namespace: knative-eventing}}",
            "must be in the cluster",
        ),
        ("  broker: shop", "  broker: shop\n  filter: {attributes: {a: b}}", "is ignored"),
    ],
    ids=["key of a ConfigMap", "annotation", "class", "other namespace", "two filters"],
)
def test_what_is_allowed_but_hardly_meant_is_a_warning(
    file: Path, before: str, after: str, says: str
) -> None:
    findings = found(file, before, after)
    assert [severity for severity, _ in findings] == [FindingSeverity.WARNING]
    assert says in findings[0][1]


def test_every_function_of_the_specification_is_known() -> None:
    """CESQL 1.0, §3.4."""
    assert names() == [
        *("ABS", "BOOL", "CONCAT", "CONCAT_WS", "INT", "IS_BOOL", "IS_INT", "LEFT", "LENGTH"),
        *("LOWER", "RIGHT", "STRING", "SUBSTRING", "TRIM", "UPPER"),
    ]


def test_all_problems_of_a_document_are_told_at_once(file: Path) -> None:
    broken = "  broker: ''\n  filters: [{exact: {Type: a}}]"
    ((_, text),) = [
        each
        for each in found(file, "  broker: shop\n  filters: [{exact: {type: order}}]", broken)
        if "orders" in each[1]
    ]
    assert "spec.broker" in text
    assert "spec.filters[0].exact" in text


def test_an_object_that_stands_in_two_files_is_an_error(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(GOOD)
    says = [str(each) for each in check([tmp_path]).findings]
    assert len(says) == 4
    assert all("a.yaml" in each and "b.yaml" in each for each in says)


def test_a_part_may_refer_to_what_is_in_the_cluster(file: Path) -> None:
    trigger = GOOD.split("---\n")[2]
    file.write_text(trigger)
    assert check([file]).failed
    assert check([file], partial=True).findings == []


def test_objects_of_other_kinds_are_nobodys_business_here(file: Path) -> None:
    file.write_text(GOOD + "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n")
    assert check([file]).object_count == 4
    assert check([file]).findings == []


def test_the_command_fails_on_errors_and_not_on_warnings(file: Path) -> None:
    for before, after, code in (
        ("  broker: shop", "  broker: other", 1),
        ("delivery.order", "delivery.odrer", 0),
    ):
        file.write_text(GOOD.replace(before, after))
        result = CliRunner().invoke(app, ["check", str(file)])
        assert result.exit_code == code
        assert "4 objects checked" in result.output


SUBSCRIPTION = """\
apiVersion: messaging.knative.dev/v1
kind: Subscription
metadata: {name: audit, annotations: {knafka.dev/isolation: own}}
spec:
  channel: {apiVersion: messaging.knative.dev/v1, kind: KafkaChannel, name: orders}
  subscriber: {uri: "http://there/"}
---
apiVersion: messaging.knative.dev/v1beta1
kind: KafkaChannel
metadata: {name: orders}
"""


def test_channels_that_are_right_have_nothing_to_be_said_of_them(file: Path) -> None:
    file.write_text(SUBSCRIPTION)
    assert (check([file]).object_count, list(check([file]).findings)) == (2, [])
    assert check([CHANNEL_EXAMPLE]).findings == []


@pytest.mark.parametrize(
    ("before", "after", "severity", "said"),
    [
        ("name: orders}", "name: order}", FindingSeverity.ERROR, "did you mean orders?"),
        (
            "{name: orders}\n",
            "{name: orders}\nspec: {numPartitions: -1}",
            FindingSeverity.ERROR,
            "numP",
        ),
        (
            "knafka.dev/isolation: own",
            "knafka.dev/isolation: mine",
            FindingSeverity.ERROR,
            "isolation",
        ),
        ("knafka.dev/isolation", "knafka.dev/isolatoin", FindingSeverity.WARNING, "did you mean"),
        (
            '{uri: "http://there/"}',
            "{ref: {apiVersion: messaging.knative.dev/v1, kind: KafkaChannel, name: orders}}",
            FindingSeverity.WARNING,
            "its own channel",
        ),
        (
            "kind: KafkaChannel, name",
            "kind: InMemoryChannel, name",
            FindingSeverity.WARNING,
            "another",
        ),
        (
            '{uri: "http://there/"}',
            "{ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: mail}}",
            FindingSeverity.ERROR,
            "Service default/mail isn't among the files",
        ),
    ],
)
def test_mistakes_in_subscriptions_and_channels_are_named(
    file: Path, before: str, after: str, severity: FindingSeverity, said: str
) -> None:
    assert before in SUBSCRIPTION
    file.write_text(SUBSCRIPTION.replace(before, after, 1))
    (finding,) = check([file]).findings
    assert finding.severity is severity
    assert said in str(finding)


BACK = "{apiVersion: eventing.knative.dev/v1, kind: Broker, name: shop}"
KEPT = "3 times at most, and then goes to the dead-letter topic"


@pytest.mark.conformance("KN-BRK-13")
@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        pytest.param(
            "  broker: shop",
            f"  broker: shop\n  delivery: {{deadLetterSink: {{ref: {BACK}}}}}",
            f"deadLetterSink.ref: its own Broker: a failed event comes back {KEPT}",
            id="sink, by ref",
        ),
        pytest.param(
            "  broker: shop",
            "  broker: shop\n  delivery: {deadLetterSink: {uri: 'http://a.b/default/shop'}}",
            "spec.delivery.deadLetterSink.uri: its own Broker",
            id="sink, by its address",
        ),
        pytest.param(
            "name: shop-kafka}}",
            f"name: shop-kafka}}, delivery: {{deadLetterSink: {{ref: {BACK}}}}}}}",
            "Broker default/shop: warning: spec.delivery.deadLetterSink.ref: its own Broker",
            id="the Broker's sink",
        ),
        pytest.param(
            "{apiVersion: serving.knative.dev/v1, kind: Service, name: mail}",
            BACK,
            "spec.subscriber.ref: its own Broker: every delivered event comes back",
            id="subscriber",
        ),
        pytest.param(
            "---\napiVersion: serving",
            "  delivery:\n    deadLetterSink:\n      ref: "
            + BACK.replace("shop", "second")
            + "\n---\napiVersion: eventing.knative.dev/v1\nkind: Broker\n"
            "metadata: {name: second, annotations: {eventing.knative.dev/broker.class: kafka}}\n"
            f"spec: {{delivery: {{deadLetterSink: {{ref: {BACK}}}}}}}\n---\napiVersion: serving",
            "spec.delivery.deadLetterSink: leads back over Broker default/second: a failed event",
            id="sink, over another Broker",
        ),
    ],
)
def test_what_comes_back_to_its_own_broker_is_a_warning(
    file: Path, before: str, after: str, says: str
) -> None:
    """KN-BRK-13."""
    findings = found(file, before, after)
    assert [severity for severity, _ in findings] == [FindingSeverity.WARNING], findings
    assert says in findings[0][1]


def test_a_sink_that_is_another_broker_is_no_loop(file: Path) -> None:
    other = BACK.replace("shop", "letters")
    file.write_text(
        GOOD.replace(
            "  broker: shop", f"  broker: shop\n  delivery: {{deadLetterSink: {{ref: {other}}}}}"
        )
        + "---\napiVersion: eventing.knative.dev/v1\nkind: Broker\n"
        "metadata: {name: letters, annotations: {eventing.knative.dev/broker.class: kafka}}\n"
    )
    assert list(check([file]).findings) == []
