"""Kept names: which topics and groups belong to which objects, over restarts (KN-BRK-19).

They are annotations of the objects' status, which a cluster keeps; here a file in the data folder
does. They hold for one Kafka: with another everything begins anew, and coming back all is as it
was. What no file declares any more stays known until it is declared again: only what leaves the
files while `knafka up` runs is deleted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from knafka_client.state.installation import replace_file
from knafka_operator.decide.shards import CONTRACT_TOPIC_KEY, DISPATCHER_KEY
from knafka_operator.decide.topics import TOPIC_ID
from knafka_operator.model.resources import GROUP_STATUS, TOPIC_STATUS

SENSOR_ANNOTATIONS: Final = (
    *(f"knafka.dev/{what}-topic" for what in ("trigger", "changelog", "action")),
    *(f"knafka.dev/{what}-topic-id" for what in ("trigger", "changelog", "action")),
    "knafka.dev/bus",
)
"""Those of `decide.sensor`, whose import would take longer than Kafka's start allows for."""
KEPT_ANNOTATIONS: Final = frozenset(
    {TOPIC_STATUS, TOPIC_ID, GROUP_STATUS, CONTRACT_TOPIC_KEY, DISPATCHER_KEY, *SENSOR_ANNOTATIONS}
)
"""Keys of `status.annotations` that are kept; everything else is found out again."""


class KeptNames:
    """The names of one Kafka cluster, in `file`; without one, in memory only."""

    def __init__(self, file: Path | None = None, cluster_id: str = "") -> None:
        """Raises `OSError` or `ValueError` for a file that can't be read."""
        self._file = file
        self._clusters: dict[str, dict[str, dict[str, str]]] = {}
        if file is not None and file.exists():
            self._clusters = json.loads(file.read_text())
        self._names = self._clusters.setdefault(cluster_id, {})

    def get(self, owner: str) -> Mapping[str, str] | None:
        """The kept annotations of an object (`Broker default/shop`); None: it is new here."""
        return self._names.get(owner)

    def of(self, kind: str) -> Sequence[str]:
        """`namespace/name` of all objects of a kind that are known, declared or not."""
        return [key.partition(" ")[2] for key in self._names if key.startswith(f"{kind} ")]

    def put(self, owner: str, annotations: Mapping[str, str]) -> None:
        """Keep what there is to keep of them; on disk when this returns."""
        kept = {key: value for key, value in annotations.items() if key in KEPT_ANNOTATIONS}
        if kept and self._names.get(owner) != kept:
            self._names[owner] = kept
            self._write()

    def drop(self, owner: str) -> None:
        if self._names.pop(owner, None) is not None:
            self._write()

    def _write(self) -> None:
        if self._file is not None:
            replace_file(self._file, json.dumps(self._clusters, indent=2, sort_keys=True))
