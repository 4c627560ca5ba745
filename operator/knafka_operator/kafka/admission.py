"""Delivery admission: checks the annotations about delivery of Triggers, Subscriptions,
KafkaSources and KafkaChannels. Pure.

The `admission` of each of these kinds calls it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from knafka_operator.decisions.field_errors import (
    Problem,
    annotation_problems,
    upstream_annotation_path,
)
from knafka_operator.kafka import dead_letter_topics, egresses, kafka_settings
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.maxima import Maxima
from knafka_operator.model.resources import (
    DELIVERY_ORDER,
    MAX_IN_FLIGHT,
    annotation_path,
    parse_whole_number,
)


def delivery_annotation_problems(
    annotations: Mapping[str, str], autoscaling: Autoscaling, maxima: Maxima
) -> Iterator[Problem]:
    """Yield the problems of a Trigger's, Subscription's or KafkaSource's annotations about
    delivery. `autoscaling` has the defaults that the annotations override, `maxima` are the
    installation's."""
    yield from order_problems(annotations)
    # Each parser is called only for its `InvalidDocument`, which becomes a `Problem`.
    if (text := annotations.get(MAX_IN_FLIGHT)) is not None:
        path = annotation_path(MAX_IN_FLIGHT)
        yield from annotation_problems(
            lambda: parse_whole_number(text, path, 1, egresses.LARGEST_MAX_IN_FLIGHT)
        )
    yield from annotation_problems(lambda: kafka_settings.check_trigger_settings(annotations))
    yield from annotation_problems(
        lambda: dead_letter_topics.check_retention_annotation(annotations)
    )
    yield from annotation_problems(
        lambda: Autoscaling.from_annotations(annotations, autoscaling, maxima)
    )


def order_problems(annotations: Mapping[str, str]) -> Iterator[Problem]:
    """Yield a problem if the annotation `delivery.order` has an unknown value; it may be absent."""
    order = annotations.get(DELIVERY_ORDER)
    if order is not None and order not in egresses.ORDERS_BY_ANNOTATION:
        requirement = f"want {', '.join(egresses.ORDERS_BY_ANNOTATION)}"
        yield Problem(
            f"invalid value: {order:.80}", requirement, upstream_annotation_path(DELIVERY_ORDER)
        )
