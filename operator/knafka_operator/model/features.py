"""Features: reads single values of Knative Eventing's ConfigMap `config-features`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from knafka.core.errors import InvalidDocument
from knafka_operator.model.resources import ConfigMap

EVENT_TYPES_FEATURE: Final = "eventtype-auto-create"
"""Feature: EventTypes are created for the events that Brokers and KafkaChannels accept."""


def is_enabled(config: ConfigMap | None, name: str) -> bool:
    """Whether the feature `name` has the value `enabled`; False if it isn't set. `config` None: the
    ConfigMap doesn't exist."""
    return config is not None and config.data.get(name, "").strip().lower() == "enabled"


def feature_value(config: ConfigMap | None, name: str, words: Sequence[str], default: str) -> str:
    """Return the value of feature `name` in lower case, or `default` if it isn't set. Raises
    `InvalidDocument` with the ConfigMap's name if the value isn't one of `words`, which include the
    default. `config` None: the ConfigMap doesn't exist."""
    word = ("" if config is None else config.data.get(name, "")).strip().lower() or default
    if word not in words:
        assert config is not None  # else the word would be the default
        source = f"ConfigMap {config.metadata.namespace}/{config.metadata.name}"
        requirement = f"want {', '.join(words)}"
        problem = f"data.{name}: invalid value: {word:.80}: {requirement}"
        raise InvalidDocument("", f"{source}: {problem}")
    return word
