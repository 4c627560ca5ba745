"""Kafka names: what a Broker's topic and a Trigger's consumer group may be called.

A job asks no API server, which would know. It is told of the templates that the operator knows, by
a variable, and takes the name that Kafka has.
"""

from __future__ import annotations

import os

from knafka.core import names


def possible_topics(namespace: str, broker: str) -> list[str]:
    """What the topic of a Broker may be called: which of them it is Kafka knows."""
    usual = names.broker_topic(namespace, broker), names.distinct_broker_topic(namespace, broker)
    return [*usual, *_by_templates(namespace, broker)]


def possible_groups(namespace: str, trigger: str) -> list[str]:
    """What the consumer group of a Trigger may be called, the usual name first."""
    usual = (
        names.trigger_group(namespace, trigger),
        names.distinct_trigger_group(namespace, trigger),
    )
    return [*usual, *_by_templates(namespace, trigger)]


def _by_templates(namespace: str, name: str) -> list[str]:
    """By the templates that the operator knows; a job knows no UID, so those with one give none."""
    templates = os.environ.get(names.NAME_TEMPLATES, "").splitlines()
    found = (names.rendered(template, namespace, name) for template in templates)
    return [each for each in dict.fromkeys(found) if names.is_topic(each)]
