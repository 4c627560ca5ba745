"""The operator's environment."""

from __future__ import annotations

import pytest

from knafka.core.errors import InvalidDocument
from knafka_operator.installation.settings import Settings

REQUIRED = {"KNAFKA_NAMESPACE": "knafka", "KNAFKA_IMAGE": "example.com/knafka:1"}


def test_only_where_it_is_and_what_it_starts_must_be_said() -> None:
    settings = Settings.from_environment(REQUIRED)
    assert settings.broker_classes == {"Kafka", "kafka"}
    assert settings.project_secrets is False
    assert settings.local_addresses is False


def test_everything_may_be_said() -> None:
    settings = Settings.from_environment(
        {
            **REQUIRED,
            "KNAFKA_BROKER_CLASSES": "Mine, Other",
            "KNAFKA_DEFAULT_CLASS": "Other",
            "KNAFKA_PROJECT_SECRETS": "true",
            "KNAFKA_DELETION_TIMEOUT": "5",
            "KNAFKA_INITIAL_SCALE": "0",
            "KNAFKA_LOG_LEVEL": "DEBUG",
            "KNAFKA_PROFILING": "enabled",
            "KNAFKA_RECORD_POSITION": "disabled",
            "KNAFKA_LOCAL_ADDRESSES": "allowed",
            "KNAFKA_SENSORS": "enabled",
            "KNAFKA_JOBS_IMAGE": "jobs:1",
        }
    )
    assert settings.broker_classes == {"Mine", "Other"}
    assert settings.default_class == "Other"
    assert settings.project_secrets is True
    assert (settings.deletion_timeout, settings.initial_scale) == (5, 0)
    assert settings.log_level == "debug"
    assert settings.profiling is True
    assert settings.record_position is False
    assert settings.local_addresses is True
    assert settings.sensors is True
    assert settings.jobs_image == "jobs:1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KNAFKA_NAMESPACE", ""),
        ("KNAFKA_IMAGE", ""),
        ("KNAFKA_DEFAULT_CLASS", "MTChannelBasedBroker"),
        ("KNAFKA_PROJECT_SECRETS", "yes"),
        ("KNAFKA_WEBHOOKS", "1"),
        ("KNAFKA_DELETION_TIMEOUT", "-1"),
        ("KNAFKA_LOG_LEVEL", "loud"),
        ("KNAFKA_PROFILING", "true"),
        ("KNAFKA_LOCAL_ADDRESSES", "true"),
        ("KNAFKA_SENSORS", "true"),
        ("KNAFKA_RECORD_POSITION", "false"),
    ],
)
def test_what_is_wrong_is_told_by_its_name(name: str, value: str) -> None:
    with pytest.raises(InvalidDocument, match=name):
        Settings.from_environment({**REQUIRED, name: value})
