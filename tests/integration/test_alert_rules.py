"""Alerts of operator/deploy/monitoring in Prometheus' own `promtool`: each fires when what it is
about is so, and does not when it is not. A running Prometheus: test_prometheus.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from support.prometheus import Programs, promtool, rule_groups

TRIGGER: Final = '{namespace="shop",broker="b",trigger="t"}'
BROKER: Final = '{namespace="shop",broker="b"}'
CHANNEL: Final = '{namespace="shop",channel="c"}'
SUBSCRIPTION: Final = '{namespace="shop",channel="c",subscription="s"}'
WITH_OUTCOME: Final = '{namespace="shop",broker="b",trigger="t",outcome="dead_lettered"}'
OPERATOR: Final = 'knafka_operator_leader{pod="%d"}'


def refused(labels: str) -> dict[str, str]:
    inner = labels[:-1]
    return {
        "knafka_receiver_events_total" + inner + ',code="202"}': "0+90x90",
        "knafka_receiver_events_total" + inner + ',code="503"}': "0+10x90",
    }


def accepted(labels: str) -> dict[str, str]:
    return {name: "0+90x90" if "202" in name else "0x90" for name in refused(labels)}


def failures(labels: str, a_minute: int) -> dict[str, str]:
    """Of ten attempts a minute."""
    inner = labels[:-1]
    return {
        f'knafka_delivery_failures_total{inner},reason="status",code="503"}}': f"0+{a_minute}x90",
        f"kn_eventing_dispatch_latency_seconds_count{labels}": "0+10x90",
    }


def dead_letters(labels: str, oldest: int, retention: int | None = 30 * 86_400) -> dict[str, str]:
    """Seconds; a topic that keeps for ever has no retention."""
    found = {"knafka_dead_letters_oldest_age_seconds": oldest}
    if retention is not None:
        found["knafka_dead_letters_retention_seconds"] = retention
    return {f"{name}{labels}": f"{value}x90" for name, value in found.items()}


FIRING: Final[list[tuple[str, str, dict[str, str]]]] = [
    ("KnafkaOperatorDown", "", {OPERATOR % 1: "1x10 0x90", OPERATOR % 2: "0x100"}),
    ("KnafkaOperatorDown", "", {"up": "0x100"}),
    ("KnafkaBrokerNotReady", BROKER, {f"knafka_broker_ready{BROKER}": "0x90"}),
    ("KnafkaBrokerNotReady", CHANNEL, {f"knafka_channel_ready{CHANNEL}": "0x90"}),
    ("KnafkaKafkaAway", BROKER, {f"knafka_receiver_kafka_away{BROKER}": "1x90"}),
    ("KnafkaKafkaAway", CHANNEL, {f"knafka_receiver_kafka_away{CHANNEL}": "1x90"}),
    ("KnafkaReceiverRefuses", BROKER, refused(BROKER)),
    ("KnafkaReceiverRefuses", CHANNEL, refused(CHANNEL)),
    ("KnafkaLagGrows", TRIGGER, {f"knafka_trigger_lag{TRIGGER}": "100+10x90"}),
    ("KnafkaLagGrows", SUBSCRIPTION, {f"knafka_trigger_lag{SUBSCRIPTION}": "100+10x90"}),
    ("KnafkaLagUnknown", TRIGGER, {f"knafka_trigger_lag_known{TRIGGER}": "1x70 0x20"}),
    ("KnafkaLagUnknown", SUBSCRIPTION, {f"knafka_trigger_lag_known{SUBSCRIPTION}": "0x90"}),
    ("KnafkaDeliveryFails", TRIGGER, failures(TRIGGER, 9)),
    ("KnafkaDeliveryFails", SUBSCRIPTION, failures(SUBSCRIPTION, 9)),
    ("KnafkaSubscriberAway", TRIGGER, {f"knafka_dispatcher_congestion{TRIGGER}": "1x90"}),
    ("KnafkaDeadLettersWait", TRIGGER, dead_letters(TRIGGER, oldest=90_000)),
    ("KnafkaDeadLettersWait", SUBSCRIPTION, dead_letters(SUBSCRIPTION, oldest=90_000)),
    ("KnafkaDeadLettersExpire", TRIGGER, dead_letters(TRIGGER, oldest=15 * 86_400)),
    (
        "KnafkaDeadLetters",
        WITH_OUTCOME,
        {f"knafka_trigger_events_total{WITH_OUTCOME}": "0x40 1x50"},
    ),
]

RESTING: Final[list[tuple[str, dict[str, str]]]] = [
    ("KnafkaOperatorDown", {OPERATOR % 1: "1x10 0x90", OPERATOR % 2: "0x10 1x90"}),
    ("KnafkaBrokerNotReady", {f"knafka_broker_ready{BROKER}": "1x90"}),
    ("KnafkaBrokerNotReady", {f"knafka_channel_ready{CHANNEL}": "1x90"}),
    ("KnafkaKafkaAway", {f"knafka_receiver_kafka_away{BROKER}": "0x90"}),
    ("KnafkaReceiverRefuses", accepted(BROKER)),
    ("KnafkaLagGrows", {f"knafka_trigger_lag{TRIGGER}": "900-10x90"}),
    ("KnafkaLagGrows", {f"knafka_trigger_lag{TRIGGER}": "0x80 500x10"}),
    ("KnafkaLagUnknown", {f"knafka_trigger_lag_known{TRIGGER}": "0x80 1x10"}),
    ("KnafkaDeliveryFails", failures(TRIGGER, 2)),
    ("KnafkaSubscriberAway", {f"knafka_dispatcher_congestion{TRIGGER}": "0x90"}),
    ("KnafkaDeadLetters", {f"knafka_trigger_events_total{WITH_OUTCOME}": "7x90"}),
    ("KnafkaDeadLettersWait", dead_letters(TRIGGER, oldest=3_600)),
    ("KnafkaDeadLettersExpire", dead_letters(TRIGGER, oldest=14 * 86_400)),
    ("KnafkaDeadLettersExpire", dead_letters(TRIGGER, oldest=400 * 86_400, retention=None)),
]


def rules(folder: Path) -> Path:
    """As Prometheus reads them, without Kubernetes' wrapping."""
    path = folder / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": rule_groups()}))
    return path


def alerts() -> dict[str, dict[str, Any]]:
    (group,) = rule_groups()
    return {each["alert"]: each for each in group["rules"]}


def check(
    programs: Programs,
    folder: Path,
    alert: str,
    series: dict[str, str],
    fires: list[dict[str, Any]],
) -> None:
    """After an hour and a half of these series, one sample a minute."""
    test = {
        "rule_files": [str(rules(folder))],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": k, "values": v} for k, v in series.items()],
                "promql_expr_test": [
                    {
                        "expr": f'ALERTS{{alertname="{alert}",alertstate="firing"}}',
                        "eval_time": "85m",
                        "exp_samples": fires,
                    }
                ],
            }
        ],
    }
    path = folder / "test.yaml"
    path.write_text(yaml.safe_dump(test))
    promtool(programs, "test", "rules", path)


def test_prometheus_takes_the_rules(prometheus_programs: Programs, tmp_path: Path) -> None:
    promtool(prometheus_programs, "check", "rules", rules(tmp_path))


def test_each_alert_has_a_case() -> None:
    assert {name for name, _, _ in FIRING} == {name for name, _ in RESTING} == alerts().keys()


@pytest.mark.parametrize(("alert", "labels", "series"), FIRING)
def test_an_alert_fires(
    prometheus_programs: Programs,
    tmp_path: Path,
    alert: str,
    labels: str,
    series: dict[str, str],
) -> None:
    severity = alerts()[alert]["labels"]["severity"]
    own = f'alertname="{alert}",alertstate="firing",severity="{severity}"'
    inner = ",".join(filter(None, (own, labels.strip("{}"))))
    fires = [{"labels": f"ALERTS{{{inner}}}", "value": 1}]
    check(prometheus_programs, tmp_path, alert, series, fires)


@pytest.mark.parametrize(("alert", "series"), RESTING)
def test_an_alert_rests(
    prometheus_programs: Programs, tmp_path: Path, alert: str, series: dict[str, str]
) -> None:
    check(prometheus_programs, tmp_path, alert, series, [])
