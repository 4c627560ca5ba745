"""DeadLetterArchives as declared: where and when one Broker's dead letters are archived (issue 18).
Unknown fields are refused, as in `model.resources`; parse with `knafka.core.documents.parse`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from knafka.core.documents import Duration, problem
from knafka.core.errors import InvalidDocument
from knafka.core.sensor.resets import Reset
from knafka_operator.model.resources import Declared, NonEmpty, Resource

ARCHIVE: Final = "DeadLetterArchive"
ARCHIVE_LABEL: Final = "knafka.dev/archive"
"""Label of the Jobs, pods and accounts made for an archive; its value is the archive's UID."""
RUN_ANNOTATION: Final = "knafka.dev/run"
"""Annotation of a DeadLetterArchive: a changed value starts a run with a report at once."""

SCHEMES: Final = ("s3a", "abfss", "gs")
"""URL schemes of the supported object stores."""
MAX_EXECUTORS: Final = 50
"""Most Spark executors that an archive may declare."""
MAX_ARCHIVE_NAME: Final = 52
"""Most characters of an archive's name: Jobs' names add the run number, and pods' names add
more."""

MAX_DAYS: Final = 365_000
"""Most days that a report may cover, and that failures may be kept; the jobs take no more."""

_match_url = re.compile(
    r"(?P<scheme>[a-z0-9]+)://[A-Za-z0-9.@_-]+(?P<path>(?:/[A-Za-z0-9._=-]+)*)/?"
).fullmatch
_match_path_part = re.compile(r"[A-Za-z0-9._=-]+").fullmatch
_match_quantity = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:m|[kMGTPE]i?)?").fullmatch


def _normalize_url(text: str) -> str:
    """Return the URL of a bucket and path without trailing slashes. Raises a validation error
    unless the URL has one of `SCHEMES` and no part `..`."""
    matched = _match_url(text)
    if matched is None or matched["scheme"] not in SCHEMES or ".." in matched["path"].split("/"):
        schemes = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise problem(f"invalid value: {text:.200}: want one of {schemes} with a bucket and a path")
    return text.rstrip("/")


def _normalize_path(text: str) -> str:
    """Return the path of a folder in a volume, without slashes at the ends. Raises a validation
    error if a part between slashes is empty, `.`, `..` or has an illegal character."""
    parts = text.strip("/").split("/")
    if any(_match_path_part(part) is None or part in (".", "..") for part in parts):
        raise problem(f"invalid value: {text:.200}: want a folder below the claim, such as orders")
    return "/".join(parts)


def _check_positive(seconds: float) -> float:
    """Return the seconds. Raises a validation error unless they are more than 0."""
    if seconds <= 0:
        raise problem("invalid value: want a duration that is longer than 0")
    return seconds


PositiveDuration = Annotated[Duration, AfterValidator(_check_positive)]
"""A duration of more than 0 seconds."""


def _check_retention(seconds: float) -> float:
    """Return the seconds. Raises a validation error if they are more than `MAX_DAYS`."""
    if seconds > MAX_DAYS * 86_400:
        raise problem(f"invalid value: want at most P{MAX_DAYS}D; without it, all are kept")
    return seconds


RetentionDuration = Annotated[PositiveDuration, AfterValidator(_check_retention)]
"""How long failures are kept."""


class Claim(Declared):
    """The PersistentVolumeClaim, in the archive's namespace, that holds the tables."""

    name: NonEmpty
    path: Annotated[str, AfterValidator(_normalize_path)] = "dead-letters"
    """Folder of the tables in the volume, without slashes at the ends."""


class Credentials(Declared):
    """A Secret of the archive's namespace, whose keys are the names of environment variables."""

    name: NonEmpty


class Storage(Declared):
    """Where an archive's tables are: in a PersistentVolumeClaim, or at a URL of an object store.
    `endpoint`, `region` and `credentials` are for object stores only."""

    claim: Claim | None = None
    """The volume with the tables; None: they are at `url`."""
    url: Annotated[str, AfterValidator(_normalize_url)] | None = None
    """URL of the folder of the tables, such as `s3a://bucket/path`; None: they are in `claim`."""
    endpoint: str = ""
    """URL of an S3-compatible store that isn't AWS's; empty: AWS."""
    region: str = ""
    """The store's region; empty: AWS finds it, other stores get us-east-1."""
    credentials: Credentials | None = None
    """The Secret with the store's keys; None: the pod's own identity is used."""

    @model_validator(mode="after")
    def _check_storage(self) -> Self:
        """Check that the storage names either a claim or a URL, and has only fields that fit it.
        Raises a validation error."""
        if (self.claim is None) == (self.url is None):
            count_text = "none" if self.claim is None else "both"
            raise problem(f"expected exactly one, got {count_text}", "claim", "url")
        if self.claim is not None:
            for name in ("endpoint", "region", "credentials"):
                if getattr(self, name):
                    raise problem("a claim needs none", name)
        if self.endpoint and not re.fullmatch(r"https?://[^\s/?#@]+/?", self.endpoint):
            requirement = "want http:// or https://, a host and maybe a port"
            raise problem(f"invalid value: {self.endpoint:.200}: {requirement}", "endpoint")
        if self.region and not re.fullmatch(r"[A-Za-z0-9_-]{1,50}", self.region):
            requirement = "want a name such as eu-central-1"
            raise problem(f"invalid value: {self.region:.200}: {requirement}", "region")
        return self


class Compaction(Declared):
    """When waiting dead letters start a Job: by their number or by their age."""

    number: Annotated[int, Field(ge=1)] = 10_000
    """This many waiting dead letters start a Job."""
    age: PositiveDuration = 3_600.0
    """Seconds after which waiting dead letters start a Job, counted from when the operator first
    saw one waiting."""
    keep: Duration = 86_400.0
    """Seconds for which a dead letter stays in its topic after the tables have it."""


class Reporting(Declared):
    """When reports are made, and what they cover."""

    schedule: str
    """When reports are due: a cron expression of five fields."""
    time_zone: str = "UTC"
    """The zone in which the schedule is read, such as `Europe/Berlin`."""
    days: Annotated[int, Field(ge=1, le=MAX_DAYS)] = 30
    """Number of days that the report's timeline covers."""
    announce: bool = True
    """Whether an event about each report is sent to the Broker."""

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        """Check that the schedule is a cron expression and the time zone exists. Raises a
        validation error."""
        try:
            # The constructor parses both; Sensors' schedules have the same format.
            Reset(self.schedule, self.time_zone)
        except InvalidDocument as error:
            field = "schedule" if error.path == "cron" else "timeZone"
            raise problem(error.problem, field) from None
        return self


class Retention(Declared):
    """Seconds for which the tables keep failures; None: for ever."""

    resolved: RetentionDuration | None = None
    """Of failures that a replay has resolved, since it sent them."""
    unresolved: RetentionDuration | None = None
    """Of other failures, since their last dead letter was stored."""

    @model_validator(mode="after")
    def _check_retention_order(self) -> Self:
        """Check that resolved failures aren't kept longer than unresolved ones, if both retentions
        are declared. Raises a validation error."""
        resolved, unresolved = self.resolved, self.unresolved
        if resolved is not None and unresolved is not None and resolved > unresolved:
            raise problem("is longer than that of unresolved failures", "resolved")
        return self


Quantity = str | int | float
"""An amount of a resource as Kubernetes writes it, such as `500m` or `2Gi`."""


class Resources(Declared):
    """Requests and limits of the Job's container and of each executor's."""

    requests: dict[str, Quantity] = {"cpu": "500m"}  # noqa: RUF012  # pydantic copies it
    limits: dict[str, Quantity] = {"memory": "2Gi"}  # noqa: RUF012

    @field_validator("requests", "limits")
    @classmethod
    def _check_quantities(cls, amounts: dict[str, Any]) -> dict[str, Any]:
        """Check that each amount is a Kubernetes quantity; returns the amounts unchanged. Raises a
        validation error."""
        for name, amount in amounts.items():
            if _match_quantity(str(amount)) is None:
                requirement = "want a quantity, such as 500m or 2Gi"
                raise problem(f"invalid value: {amount!s:.80}: {requirement}", name)
        return amounts

    @model_validator(mode="after")
    def _require_memory_limit(self) -> Self:
        """Check that a memory limit is declared. Raises a validation error."""
        if "memory" not in self.limits:
            raise problem("missing field(s): memory: Spark's heap is a share of it", "limits")
        return self


class ArchiveSpec(Declared):
    """The spec of a DeadLetterArchive."""

    broker: NonEmpty = "default"
    """The Broker, of the archive's namespace, whose dead letters are archived."""
    storage: Storage
    compaction: Compaction = Compaction()
    report: Reporting | None = None
    """When reports are made; None: none is made on a schedule."""
    retention: Retention = Retention()
    executors: Annotated[int, Field(ge=0, le=MAX_EXECUTORS)] = 0
    """Number of Spark executors; 0: the Job's own pod does all the work."""
    resources: Resources = Resources()
    timeout: PositiveDuration = 21_600.0
    """Seconds after which a Job is ended and counts as failed."""


class DeadLetterArchive(Resource):
    """A DeadLetterArchive, as declared."""

    spec: ArchiveSpec

    @model_validator(mode="after")
    def _check_name_length(self) -> Self:
        """Check that the name leaves room for a Job's run number. Raises a validation error."""
        if len(self.metadata.name) > MAX_ARCHIVE_NAME:
            raise problem(f"is longer than {MAX_ARCHIVE_NAME} characters", "metadata.name")
        return self
