"""Opens the tables of dead letters: those of this machine, or of a cluster's DeadLetterArchive.

`on_tables` gives a command the options that choose the tables. An archive's tables are read from
here if they are in an S3 store, with the keys that the archive itself uses.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from knafka_cli.dead_letters import archive_commands, dead_letter_tables
from knafka_cli.dead_letters.cluster_targets import ClusterTarget, TablesTarget, on_cluster
from knafka_cli.dead_letters.dead_letter_tables import (
    INSTALL_TABLES,
    NO_TABLES,
    Tables,
    tables_option,
)
from knafka_cli.shared.options import DataDir, exit_on_bad_input, print_error, print_table, refuse
from knafka_client.declared import triggers
from knafka_client.state.installation import DEFAULT_DATA
from knafka_jobs.failure_selection import FailureCondition
from knafka_jobs.job_errors import JobError
from knafka_operator.model.cluster import Document, NotAllowed, decode_secret

if TYPE_CHECKING:
    from knafka_cli.dead_letters.archive_operations import ArchiveOperations
    from knafka_jobs.io.table_files import TableFiles

KEY_NAMES: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""Keys of an archive's Secret with the credentials for its store."""
STORE_TIMEOUTS: Final = {"connect_timeout": "5s", "max_retries": "2", "retry_timeout": "15s"}
"""delta-rs's options that soon end a request to a store which can't be reached from here."""


class TablesSource(Protocol):
    """Opens the tables that a command uses."""

    def open(self) -> TableFiles:
        """Open the tables; exits with code 2 if there are none."""

    def replay_id(self, name_or_id: str) -> str:
        """Return the id that a replay has in the tables, for the name or id that the user gave.
        Doesn't check whether the tables have such a replay."""


@dataclass(frozen=True, slots=True)
class LocalTables:
    """Tables in a folder of this machine, or at a URI."""

    tables: str | None
    """Folder or URI; None: the default folder in `data_dir`."""
    data_dir: Path
    """The data folder of a `knafka up`."""

    def open(self) -> TableFiles:
        """Open the tables; exits with code 2 if there are none."""
        place = tables_option(self.data_dir, self.tables)["tables"]
        files = dead_letter_tables.open_tables(place, print_error)
        if files is None:
            raise refuse(f"{NO_TABLES}{place}: knafka dead-letters compact makes them")
        return files

    def replay_id(self, name_or_id: str) -> str:
        """Return `name_or_id`, since replays on this machine have ids only."""
        return name_or_id


@dataclass(frozen=True, slots=True)
class ArchiveTables:
    """Tables of a DeadLetterArchive in a cluster."""

    target: ClusterTarget
    archive: str | None = None
    """Name of the archive; None: the only one in the namespace."""
    endpoint: str | None = None
    """URL of the S3 store as seen from here; None: the archive's."""

    def open(self) -> TableFiles:
        """Open the tables; exits with code 2 if there are none, or if they can't be read from
        here."""
        operations = archive_commands.open_operations(self.target)
        with exit_on_bad_input():
            archive = operations.find_archive(self.archive)
        name = f"DeadLetterArchive {operations.namespace}/{archive['metadata']['name']}"
        storage: Mapping[str, Any] = archive["spec"]["storage"]
        url = _s3_url_of(storage, name)
        try:
            from knafka_jobs.io.table_files import TableFiles
        except ImportError:
            raise refuse(f"to read the tables of an archive, {INSTALL_TABLES}") from None
        files = TableFiles(url, store=self._store_options(operations, storage))
        try:
            if files.has_table("failures") and files.has_table("records"):
                return files
        except JobError as error:
            raise refuse(
                f"the tables of the {name} can't be read from here: {error}. If its store can only "
                "be reached from inside the cluster, forward its port (kubectl port-forward) and "
                "give --endpoint http://localhost:PORT"
            ) from None
        raise refuse(f"the {name} has no tables yet: knafka dead-letters compact makes them")

    def replay_id(self, name_or_id: str) -> str:
        """Return the UID of the DeadLetterReplay with this name, or `name_or_id` itself if there is
        none. Raises `ClusterError`."""
        from knafka_cli.dead_letters.archive_operations import OPERATION_OBJECTS
        from knafka_operator.archives.operation_model import REPLAY

        operations = archive_commands.open_operations(self.target)
        replay = operations.api.get(OPERATION_OBJECTS[REPLAY], operations.namespace, name_or_id)
        return name_or_id if replay is None else str(replay["metadata"]["uid"])

    def _store_options(
        self, operations: ArchiveOperations, storage: Mapping[str, Any]
    ) -> Mapping[str, str]:
        """Return the options with which delta-rs opens an archive's store: its address, and the
        credentials in its Secret. `storage` is the archive's `spec.storage`."""
        from knafka_jobs.io.table_files import s3_options

        endpoint = self.endpoint or storage.get("endpoint")
        region = storage.get("region") or os.environ.get("AWS_REGION")
        store = {**STORE_TIMEOUTS, **s3_options(endpoint, region)}
        if (credentials := storage.get("credentials")) is not None:
            store |= _store_keys(operations, credentials["name"])
        return store


def _s3_url_of(storage: Mapping[str, Any], archive_name: str) -> str:
    """Return the URL of an archive's S3 store; exits with code 2 if the archive's tables aren't in
    such a store. `storage` is the archive's `spec.storage`, and `archive_name` its name in error
    messages."""
    url: str | None = storage.get("url")
    if url is None:
        claim = storage["claim"]["name"]
        raise refuse(
            f"the tables of the {archive_name} are on the PersistentVolumeClaim {claim}, which "
            "only pods can read: copy them with kubectl cp from a pod that mounts it and give "
            "--tables FOLDER to read them; to write to them from here, an archive needs a "
            "bucket (spec.storage.url)"
        )
    if not url.startswith("s3a://"):
        raise refuse(
            f"the tables of the {archive_name} are at {url}, and only s3a:// is read from here: "
            "run a Spark of your own on them (docs/reference/dead-letter-tables.md)"
        )
    return url


def _store_keys(operations: ArchiveOperations, name: str) -> Mapping[str, str]:
    """Return the store's credentials in the Secret `name`, by key (`KEY_NAMES`); empty if the user
    may not read the Secret, but has credentials in the environment, which delta-rs then uses.

    Exits with code 2 if the user has no credentials either, or if there is no such Secret.
    """
    from knafka_client.declared.kubernetes_api import Objects

    try:
        secret: Document | None = operations.api.get(
            Objects("v1", "secrets"), operations.namespace, name
        )
    except NotAllowed as error:
        if KEY_NAMES[0] in os.environ:
            return {}
        raise refuse(
            f"{error}: the keys of the archive's store are in it; with keys of your own, set "
            f"{KEY_NAMES[0]} and {KEY_NAMES[1]}"
        ) from None
    if secret is None:
        raise refuse(f"there is no Secret {operations.namespace}/{name} with the store's keys")
    values = decode_secret(secret)
    return {key: values[key] for key in KEY_NAMES if key in values}


def list_groups(tables: ArchiveTables, trigger: str | None) -> None:
    """Print a table (`GROUP_COLUMNS`) of an archive's groups with unresolved dead letters; a group
    is a set of dead letters that failed alike. `trigger` None: of all Triggers, else only of the
    one with this name (`[NAMESPACE/]NAME`)."""
    conditions = []
    if trigger is not None:
        name = triggers.parse_name(trigger, "Trigger").name
        conditions = [FailureCondition("trigger", "=", name)]
    rows = dead_letter_tables.group_rows(tables.open(), conditions)
    print_table(dead_letter_tables.GROUP_COLUMNS, rows, "no unresolved dead letters are compacted")


def on_tables(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command whose first parameter is a `TablesSource`. In place of this parameter, the
    command line has options that choose tables of this machine or of a cluster."""

    @wraps(command)
    def run_here(
        *arguments: Any, tables: str | None = None, data_dir: Path = DEFAULT_DATA, **options: Any
    ) -> None:
        """Run the command on tables of this machine, or at a URI."""
        command(LocalTables(tables, data_dir), *arguments, **options)

    def run_on_cluster(
        target: TablesTarget, *arguments: Any, tables: str | None = None, **options: Any
    ) -> None:
        """Run the command on the tables of an archive."""
        options.pop("data_dir", None)
        if tables is not None:
            raise refuse("--tables can't be used with a cluster: its archive says where they are")
        source = ArchiveTables(target, target.archive, target.endpoint)
        command(source, *arguments, **options)

    # Typer reads the options of a command from its signature. The first parameter is the
    # `TablesSource`, which no option sets.
    _, *own_parameters = inspect.signature(command, eval_str=True).parameters.values()
    table_parameters = inspect.signature(_local_options, eval_str=True).parameters.values()
    signature = inspect.Signature([*own_parameters, *table_parameters])
    setattr(run_here, "__signature__", signature)  # noqa: B010  # mypy knows no such attribute
    return on_cluster(TablesTarget, run_on_cluster)(run_here)


def _local_options(tables: Tables = None, data_dir: DataDir = DEFAULT_DATA) -> None:
    """Declare the options that choose tables of this machine; only the signature is used."""
