"""Kept names: which topics and groups belong to which objects, kept over restarts (KN-BRK-19).

The names are annotations of the objects' status. A cluster keeps a status over restarts; here a
file in the data folder keeps these annotations. Each Kafka cluster has its own: with another Kafka
all objects are new, and with the first one again they have their topics again. The names of an
object that no file declares any more stay kept, since its topic is deleted only if the object
leaves the files while `knafka up` runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic import RootModel

from knafka.core.documents import parse_json
from knafka.core.errors import InvalidDocument
from knafka_client.state.installation import replace_file
from knafka_operator.kafka.shards import CONTRACT_TOPIC_KEY, DISPATCHER_KEY
from knafka_operator.kafka.topics import TOPIC_ID
from knafka_operator.model.resources import GROUP_STATUS, TOPIC_STATUS

SENSOR_ANNOTATIONS: Final = (
    *(f"knafka.dev/{topic}-topic" for topic in ("trigger", "changelog", "action")),
    *(f"knafka.dev/{topic}-topic-id" for topic in ("trigger", "changelog", "action")),
    "knafka.dev/bus",
)
"""Status annotations of Sensors, repeated here since importing `sensors.decide` would take longer
than Kafka's start."""
GENERATION_KEY: Final = "generation"
"""Key beside a Sensor's kept annotations: the generation that its status describes. The records of
its trigger topic carry a generation, and a Sensor ignores records of a later one than its own."""
KEPT_ANNOTATIONS: Final = frozenset(
    {TOPIC_STATUS, TOPIC_ID, GROUP_STATUS, CONTRACT_TOPIC_KEY, DISPATCHER_KEY, *SENSOR_ANNOTATIONS}
    | {GENERATION_KEY}
)
"""Keys of `status.annotations` that are kept; the operator sets all others again at each start."""


class _KeptNamesFile(RootModel[dict[str, dict[str, dict[str, str]]]]):
    """Kept annotations by cluster id and owner (`Broker default/shop`): what the file holds."""


class KeptNames:
    """The kept names of one Kafka cluster, in `file`; without a file, in memory only."""

    def __init__(self, file: Path | None = None, cluster_id: str = "") -> None:
        """Read the kept names of the Kafka cluster `cluster_id`; none if `file` doesn't exist yet.
        Raises `OSError` or `ValueError` for a file that can't be read or holds anything else."""
        self._file = file
        self._clusters: dict[str, dict[str, dict[str, str]]] = {}
        """What `file` holds."""
        if file is not None and file.exists():
            try:
                self._clusters = parse_json(_KeptNamesFile, file.read_text()).root
            except InvalidDocument as error:
                raise ValueError(str(error)) from None
        self._names = self._clusters.setdefault(cluster_id, {})
        """The part of `_clusters` for this Kafka cluster, kept annotations by owner: the same dict,
        so that `_write` writes its changes."""

    def annotations_of(self, owner: str) -> Mapping[str, str] | None:
        """Return the kept annotations of an object (`Broker default/shop`); None if none are kept,
        as for a new object."""
        return self._names.get(owner)

    def owners_of_kind(self, kind: str) -> Sequence[str]:
        """Return `namespace/name` of all objects of a kind with kept names, whether a file declares
        them or not."""
        return [key.partition(" ")[2] for key in self._names if key.startswith(f"{kind} ")]

    def put(self, owner: str, annotations: Mapping[str, str]) -> None:
        """Replace the kept annotations of an object (`Broker default/shop`) by those of
        `annotations` whose keys are in `KEPT_ANNOTATIONS`. If there are none, the kept ones stay.
        Returns once the file is written. Raises `OSError`."""
        kept = {key: value for key, value in annotations.items() if key in KEPT_ANNOTATIONS}
        if kept and self._names.get(owner) != kept:
            self._names[owner] = kept
            self._write()

    def drop(self, owner: str) -> None:
        """Drop the kept annotations of an object (`Broker default/shop`), if there are any. Raises
        `OSError`."""
        if self._names.pop(owner, None) is not None:
            self._write()

    def _write(self) -> None:
        """Write the kept names of all Kafka clusters to the file; does nothing without a file.
        Raises `OSError`."""
        if self._file is not None:
            replace_file(self._file, json.dumps(self._clusters, indent=2, sort_keys=True))
