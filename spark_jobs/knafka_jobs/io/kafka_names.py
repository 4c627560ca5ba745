"""The possible names of a Broker's topic and a Trigger's consumer group.

A job has no access to the API server, which knows the right name. So it tries the usual names, and
those by the operator's templates, which an environment variable has.
"""

from __future__ import annotations

import os

from knafka.core import names


def possible_topics(namespace: str, broker: str) -> list[str]:
    """Return the names that a Broker's topic may have, the usual ones first."""
    usual_names = (
        names.broker_topic(namespace, broker),
        names.distinct_broker_topic(namespace, broker),
    )
    return [*usual_names, *_by_templates(namespace, broker)]


def possible_groups(namespace: str, trigger: str) -> list[str]:
    """Return the names that a Trigger's consumer group may have, the usual ones first."""
    usual_names = (
        names.trigger_group(namespace, trigger),
        names.distinct_trigger_group(namespace, trigger),
    )
    return [*usual_names, *_by_templates(namespace, trigger)]


def _by_templates(namespace: str, name: str) -> list[str]:
    """Return the names that the operator's templates make of this namespace and name: each once,
    and only those that Kafka allows. Templates with a UID make none, as a job knows no UID."""
    templates = os.environ.get(names.NAME_TEMPLATES, "").splitlines()
    rendered_names = (names.render_template(template, namespace, name) for template in templates)
    return [
        rendered_name
        for rendered_name in dict.fromkeys(rendered_names)
        if names.is_topic(rendered_name)
    ]
