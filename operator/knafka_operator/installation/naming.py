"""Naming: names new topics and consumer groups by the installation's templates.

    ConfigMap config-kafka-features   brokers.topic.template         of a Broker's topic
                                      channels.topic.template        of a KafkaChannel's topic
                                      triggers.consumergroup.template   of a Trigger's group

eventing-kafka-broker reads them as Go templates of the object's metadata; here exactly the three
placeholders that its documentation names are read: `{{ .Namespace }}`, `{{ .Name }}`, `{{ .UID }}`.

A template applies to new objects. An object keeps its name, which is stored only in its
`status.annotations` (`default.topic`, `group.id`). Others may write a status, so a name there
counts only if a template gives it to this object: the template in force, upstream's default, or an
earlier one. Templates are recorded in a ConfigMap of the operator's namespace (`runtime.naming`).
Two objects can get the same default name (`a-b`/`c` and `a`/`b-c`): the later one gets a distinct
name. With another template the later object is refused, as the intended name isn't known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from knafka.core import names
from knafka.core.errors import InvalidDocument, KnafkaError

MAX_TEMPLATE: Final = 500
"""Most characters of a template."""
MAX_KNOWN: Final = 100
"""Most templates of one kind that are recorded; any further one is refused."""

_match_literal = re.compile(r"[A-Za-z0-9._-]*").fullmatch
"""Matches the text of a template besides its placeholders."""


class NameTaken(KnafkaError):
    """Another object has the name that a template gives to this one. `reason` is one CamelCase
    word, for a condition."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class NamedObject(NamedTuple):
    """The object that a topic or group is named for."""

    namespace: str
    name: str
    uid: str = ""
    """Empty: the object isn't stored yet."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> NamedObject:
        """Return the named object of a stored document."""
        metadata = document["metadata"]
        return cls(metadata["namespace"], metadata["name"], metadata.get("uid", ""))


class NameKind(Enum):
    """The kinds of names; each value is the key of its template in ConfigMap
    config-kafka-features."""

    BROKER_TOPIC = "brokers.topic.template"
    CHANNEL_TOPIC = "channels.topic.template"
    TRIGGER_GROUP = "triggers.consumergroup.template"

    @property
    def newer_key(self) -> str:
        """Return the key as newer releases spell it. If both keys are set, this one counts."""
        return self.value.replace(".", "-")


DEFAULTS: Final[Mapping[NameKind, str]] = {
    NameKind.BROKER_TOPIC: f"{names.BROKERS}{{{{ .Namespace }}}}-{{{{ .Name }}}}",
    NameKind.CHANNEL_TOPIC: f"{names.CHANNELS}{{{{ .Namespace }}}}.{{{{ .Name }}}}",
    NameKind.TRIGGER_GROUP: f"{names.TRIGGERS}{{{{ .Namespace }}}}-{{{{ .Name }}}}",
}
"""Upstream's default templates."""

_RESERVED_PREFIXES: Final[Mapping[NameKind, tuple[str, ...]]] = {
    NameKind.BROKER_TOPIC: (names.CHANNELS, names.OURS, "__"),
    NameKind.CHANNEL_TOPIC: (names.BROKERS, names.OURS, "__"),
    NameKind.TRIGGER_GROUP: ("kafka.", names.SOURCES, names.OURS, "__"),
}
"""Prefixes that names of each kind may not have, as they are reserved for other names."""


def normalize_template(kind: NameKind, text: str) -> str:
    """Return the template with its placeholders in the spelling of `DEFAULTS`. Raises
    `InvalidDocument`, whose path is the template's key, for an invalid template."""
    key = f"data.{kind.value}"
    if len(text) > MAX_TEMPLATE:
        raise InvalidDocument(key, f"want at most {MAX_TEMPLATE} characters")
    template = names.PLACEHOLDER.sub(r"{{ .\1 }}", text.strip())
    literal = names.PLACEHOLDER.sub("", template)
    if "{{" in literal or "}}" in literal:
        raise InvalidDocument(
            key,
            f"invalid value: {text:.200}: want no placeholders but {{{{ .Namespace }}}}, "
            "{{ .Name }} and {{ .UID }}, and no other actions of Go templates",
        )
    if _match_literal(literal) is None:
        raise InvalidDocument(
            key, f"invalid value: {text:.200}: want A-Z, a-z, 0-9, '.', '_' and '-' beside them"
        )
    if literal == template:  # it has no placeholder
        raise InvalidDocument(
            key,
            f"invalid value: {text:.200}: every object would have the same name: want "
            "{{ .Namespace }} and {{ .Name }}, or {{ .UID }}",
        )
    for prefix in _RESERVED_PREFIXES[kind]:
        if template.startswith(prefix):
            raise InvalidDocument(
                key, f"invalid value: {text:.200}: names that begin with {prefix} are others'"
            )
    return template


def render_name(template: str, named_object: NamedObject) -> str:
    """Return the name that a template gives to an object; empty if the template needs a UID and the
    object has none yet."""
    return names.render_template(template, *named_object)


class Naming:
    """The current and earlier name templates of an installation, which may change at run time."""

    def __init__(self) -> None:
        self._current_templates = dict(DEFAULTS)
        """The template of new names, by kind."""
        self._known: dict[NameKind, tuple[str, ...]] = {
            kind: (template,) for kind, template in DEFAULTS.items()
        }
        """All templates by which objects may have got their names, by kind."""

    def current_template(self, kind: NameKind) -> str:
        """Return the template that names new topics or groups of this kind."""
        return self._current_templates[kind]

    def known_templates(self, kind: NameKind) -> tuple[str, ...]:
        """Return all templates by which topics or groups of this kind may have got their names."""
        return self._known[kind]

    @property
    def custom_templates(self) -> list[str]:
        """Return the known templates of all kinds, without duplicates and upstream's defaults."""
        known = (template for templates in self._known.values() for template in templates)
        defaults = DEFAULTS.values()
        return list(dict.fromkeys(template for template in known if template not in defaults))

    def remember(self, kind: NameKind, template: str) -> None:
        """Add a template by which objects may have got their names, so that `is_own` accepts them.
        The template has the form that `normalize_template` returns."""
        if template not in self._known[kind]:
            self._known[kind] += (template,)

    def set_current_template(self, kind: NameKind, template: str) -> None:
        """Use this template for new objects, and remember it. It has the form that
        `normalize_template` returns."""
        self.remember(kind, template)
        self._current_templates[kind] = template

    def is_default(self, kind: NameKind) -> bool:
        """Whether new topics or groups of this kind get upstream's usual names."""
        return self._current_templates[kind] == DEFAULTS[kind]

    def name(self, kind: NameKind, owner: NamedObject) -> str:
        """Return the name that the current template gives to a new topic or group of `owner`.
        Raises `InvalidDocument` if Kafka doesn't accept that name, or if it is reserved."""
        if kind is NameKind.CHANNEL_TOPIC and self.is_default(kind):
            # The same name as by the template, but a long one is shortened.
            return names.channel_topic(owner.namespace, owner.name)
        template = self._current_templates[kind]
        name = render_name(template, owner)
        if not self.is_default(kind) and not names.is_topic(name):
            raise InvalidDocument(
                kind.value,
                f"the template {template} gives {name:.300}: want at most {names.MAX_LENGTH} of "
                "A-Z, a-z, 0-9, '.', '_' and '-'",
            )
        if any(name.startswith(prefix) for prefix in _RESERVED_PREFIXES[kind]):
            raise InvalidDocument(
                kind.value, f"the template {template} gives {name:.300}, a name that is others'"
            )
        return name

    def is_own(self, kind: NameKind, name: str | None, owner: NamedObject) -> bool:
        """Whether `owner` may have got this topic or group name from Knafka or upstream: by one of
        the known templates of this kind, or in a form that the defaults of either have used. False
        for an empty name or None."""
        if not name:
            return False
        if kind is NameKind.BROKER_TOPIC and names.is_broker_topic(
            name, owner.namespace, owner.name
        ):
            return True
        if kind is NameKind.CHANNEL_TOPIC and name == names.channel_topic(
            owner.namespace, owner.name
        ):
            return True
        if kind is NameKind.TRIGGER_GROUP and (
            names.is_trigger_group(name, owner.namespace, owner.name)
            # eventing-kafka-broker's groups until its release 1.10.
            or name == owner.uid
        ):
            return True
        return names.is_topic(name) and any(
            name == render_name(template, owner) for template in self._known[kind]
        )


DEFAULT_NAMING: Final = Naming()
"""Upstream's templates, for installations that change none; this instance is never modified."""


class AsRecorded(Naming):
    """A naming that accepts every legal name in a status as the object's own: for read-only tools,
    which rely on the statuses that the operator has written."""

    def is_own(self, kind: NameKind, name: str | None, owner: NamedObject) -> bool:
        """Whether the name is legal in Kafka; False for None. `owner` doesn't matter."""
        return name is not None and names.is_topic(name)


AS_RECORDED: Final = AsRecorded()
"""The naming of read-only tools; this instance is never modified."""
