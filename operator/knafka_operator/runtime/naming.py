"""Naming: applies the name templates in ConfigMap config-kafka-features when this replica becomes
the leader, and after each change.

    config-kafka-features --change--> valid: recorded in ConfigMap knafka-name-templates, then used
    for new names
                                      invalid: a Warning Event; the last valid template stays in
                                      force

Our own ConfigMap has, under the same keys, one template a line: first the one in force, then the
earlier ones. They prove that a name in a status belongs to its object (`installation.naming`), so a
template is written there before any name is made with it.

Not here: which templates are valid, and which name belongs to which object (`installation.naming`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from knafka.core.errors import InvalidDocument
from knafka_operator.installation.naming import (
    DEFAULTS,
    MAX_KNOWN,
    NameKind,
    Naming,
    normalize_template,
)
from knafka_operator.installation.settings import Settings
from knafka_operator.model.cluster import Cluster, ClusterError, Document
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import CORE

log = logging.getLogger(__name__)

TEMPLATES_CONFIG_MAP: Final = "knafka-name-templates"
"""Name of the ConfigMap, in the operator's namespace, with the current and earlier templates."""
NAMING_RETRY_INTERVAL: Final = 1.0
"""Seconds before a failed request to the API server is repeated."""
WRITE_RETRY_INTERVAL: Final = 30.0
"""Seconds before a failed write of the templates is repeated."""

Post = Callable[[Document, Literal["Normal", "Warning"], str, str], None]
"""Posts an Event: the object, its type, reason and message."""


class FollowedNaming:
    """Updates `Settings.naming` from the ConfigMap."""

    def __init__(self, settings: Settings, cluster: Cluster) -> None:
        """`cluster` reads the ConfigMap, and reads and writes the one with recorded templates."""
        self._settings = settings
        self._cluster = cluster
        self._changed = asyncio.Event()
        """Set when the ConfigMap may have changed; wakes `follow`."""
        self._problems: Mapping[NameKind, str] = {}
        """The problem of each invalid template, so that it is posted as an Event only once."""
        self._unposted: list[tuple[Document, Literal["Normal", "Warning"], str, str]] = []
        """The Events of `start`, as arguments of `Post`; `follow` posts them."""

    async def start(self) -> None:
        """Load the recorded templates, then put the declared ones in force; called when this
        replica becomes the leader. Loading is retried until the API server answers: without the
        recorded templates, names in statuses would look foreign. A failure to apply the declared
        ones is logged; `follow` tries again, and posts the Events of changes and problems that were
        found here."""
        while True:
            try:
                await self._load_recorded()
                break
            except ClusterError as error:
                log.warning("can't read the recorded templates of names: %s", error)
                await asyncio.sleep(NAMING_RETRY_INTERVAL)
        try:
            await self.apply_config(lambda *event: self._unposted.append(event))
        except ClusterError as error:
            log.warning("the templates of names stay as they were: %s", error)
        self.reread_soon()

    def on_config_map(self, document: Document) -> None:
        """Request a new reading if the changed or deleted ConfigMap is config-kafka-features."""
        if Identity.of(document) == self._settings.kafka_features_config:
            self.reread_soon()

    def reread_soon(self) -> None:
        """Request that the ConfigMap is read again, as it may have changed."""
        self._changed.set()

    async def follow(self, post: Post) -> None:
        """Post the Events of `start`, then apply each change of the ConfigMap, until cancelled;
        `post` posts Kubernetes Events. Errors are logged."""
        for event in self._unposted:
            post(*event)
        self._unposted.clear()
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.apply_config(post)
            except ClusterError as error:
                log.warning("the templates of names stay as they are: %s", error)
                await asyncio.sleep(WRITE_RETRY_INTERVAL)
                self._changed.set()
            except Exception:  # a bug: go on following
                log.exception("can't apply the templates of names")

    async def apply_config(self, post: Post) -> None:
        """Record the templates that the ConfigMap declares, then put them in force; an invalid one
        leaves the current template of its kind in force. Post an Event for each change and each new
        problem. Raises `ClusterError`."""
        identity, naming = self._settings.kafka_features_config, self._settings.naming
        config = await self._cluster.get(CORE, "ConfigMap", *identity)
        data = {} if config is None else config.get("data") or {}
        problems: dict[NameKind, str] = {}
        for kind in NameKind:
            try:
                template = declared_template(kind, data)
                _check_known_limit(kind, template, naming)
            except InvalidDocument as error:
                problems[kind] = (
                    f"ConfigMap {identity}: {error}: {naming.current_template(kind)} stays"
                )
                continue
            if template == naming.current_template(kind):
                continue
            await self._record_template(kind, template)
            naming.set_current_template(kind, template)
            message = f"{kind.value} is {template} now; existing names stay"
            log.info("%s", message)
            if config is not None:
                post(config, "Normal", "NameTemplateChanged", message)
        for kind, problem in problems.items():
            if self._problems.get(kind) != problem:
                log.warning("%s", problem)
                if config is not None:
                    post(config, "Warning", "InvalidNameTemplate", problem)
        self._problems = problems

    async def _load_recorded(self) -> None:
        """Read the templates that earlier operators have recorded: remember all of them, and put
        the latest one of each kind in force again. Raises `ClusterError`."""
        namespace = self._settings.namespace
        record = await self._cluster.get(CORE, "ConfigMap", namespace, TEMPLATES_CONFIG_MAP)
        for kind, templates in parse_recorded_templates(record).items():
            for template in templates:
                self._settings.naming.remember(kind, template)
            if templates:
                self._settings.naming.set_current_template(kind, templates[0])

    async def _record_template(self, kind: NameKind, template: str) -> None:
        """Write `template` to our ConfigMap as the one of its kind in force, before the earlier
        ones. Raises `ClusterError`."""
        naming = self._settings.naming
        data = {}
        for name_kind in NameKind:
            current = template if name_kind is kind else naming.current_template(name_kind)
            lines = [
                current,
                *(earlier for earlier in naming.known_templates(name_kind) if earlier != current),
            ]
            data[name_kind.value] = "\n".join(lines)
        manifest = {
            "apiVersion": CORE,
            "kind": "ConfigMap",
            "metadata": {"name": TEMPLATES_CONFIG_MAP, "namespace": self._settings.namespace},
            "data": data,
        }
        await self._cluster.apply(manifest)


def declared_template(kind: NameKind, data: Mapping[str, Any]) -> str:
    """Return the template that a ConfigMap's `data` declares for a kind of name, under its newer or
    else its older key; upstream's default if there is none. Raises `InvalidDocument` for an invalid
    template."""
    text = data.get(kind.newer_key, data.get(kind.value))
    return DEFAULTS[kind] if text is None else normalize_template(kind, str(text))


def _check_known_limit(kind: NameKind, template: str, naming: Naming) -> None:
    """Raise `InvalidDocument` for a template that isn't known yet, if `MAX_KNOWN` of its kind are
    recorded already."""
    known = naming.known_templates(kind)
    if template not in known and len(known) >= MAX_KNOWN:
        raise InvalidDocument(
            f"data.{kind.value}",
            f"{MAX_KNOWN} templates have been in force, and no more are recorded: keep one of them",
        )


def parse_recorded_templates(record: Document | None) -> Mapping[NameKind, tuple[str, ...]]:
    """Return the templates in our ConfigMap `record` (None: it doesn't exist) by kind, the one in
    force first; a kind without templates has an empty tuple. Invalid templates are logged and left
    out."""
    data = {} if record is None else record.get("data") or {}
    templates_by_kind = {}
    for kind in NameKind:
        templates = []
        for line in str(data.get(kind.value) or "").splitlines():
            try:
                templates.append(normalize_template(kind, line))
            except InvalidDocument as error:
                log.warning("ConfigMap %s: %s", TEMPLATES_CONFIG_MAP, error)
        templates_by_kind[kind] = tuple(templates)
    return templates_by_kind
