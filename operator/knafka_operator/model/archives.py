"""DeadLetterArchives as declared: where one Broker's dead letters are kept, and when (issue 18).

As strict as `resources`; `parse` one with `knafka.core.documents.parse`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from knafka.core.documents import Duration, problem
from knafka.core.errors import InvalidDocument
from knafka.core.sensor.resets import Reset
from knafka_operator.model.resources import Declared, Given, Resource

ARCHIVE: Final = "DeadLetterArchive"
OF_ARCHIVE: Final = "knafka.dev/archive"
"""Label of what is made for one: its UID."""
RUN: Final = "knafka.dev/run"
"""On a DeadLetterArchive: another value has it run now, with a report."""

SCHEMES: Final = ("s3a", "abfss", "gs")
MAX_EXECUTORS: Final = 50
MAX_ARCHIVE_NAME: Final = 52
"""Characters: a Job's name adds the number of its run, and a pod's adds more."""

_URL = re.compile(r"([a-z0-9]+)://([A-Za-z0-9.@_-]+)((?:/[A-Za-z0-9._=-]+)*)/?").fullmatch
_PART = re.compile(r"[A-Za-z0-9._=-]+").fullmatch
_QUANTITY = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:m|[kMGTPE]i?)?").fullmatch


def _url(text: str) -> str:
    found = _URL(text)
    if found is None or found[1] not in SCHEMES or ".." in found[3].split("/"):
        wanted = ", ".join(f"{each}://" for each in SCHEMES)
        raise problem(f"invalid value: {text:.200}: want one of {wanted} with a bucket and a path")
    return text.rstrip("/")


def _path(text: str) -> str:
    parts = text.strip("/").split("/")
    if any(_PART(each) is None or each in (".", "..") for each in parts):
        raise problem(f"invalid value: {text:.200}: want a folder below the claim, such as orders")
    return "/".join(parts)


def _more_than_nothing(seconds: float) -> float:
    if seconds <= 0:
        raise problem("invalid value: want a duration that is longer than 0")
    return seconds


Positive = Annotated[Duration, AfterValidator(_more_than_nothing)]


class Claim(Declared):
    """A PersistentVolumeClaim of the archive's namespace."""

    name: Given
    path: Annotated[str, AfterValidator(_path)] = "dead-letters"


class Credentials(Declared):
    """A Secret of the archive's namespace, whose keys are the names of environment variables."""

    name: Given


class Storage(Declared):
    claim: Claim | None = None
    url: Annotated[str, AfterValidator(_url)] | None = None
    endpoint: str = ""
    """Of an S3 that isn't AWS's."""
    region: str = ""
    """Of an S3; empty: AWS finds it, elsewhere us-east-1."""
    credentials: Credentials | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.claim is None) == (self.url is None):
            found = "none" if self.claim is None else "both"
            raise problem(f"expected exactly one, got {found}", "claim", "url")
        for name in ("endpoint", "region", "credentials"):
            if self.claim is not None and getattr(self, name):
                raise problem("a claim needs none", name)
        if self.endpoint and not re.fullmatch(r"https?://[^\s/?#@]+/?", self.endpoint):
            wanted = "want http:// or https://, a host and maybe a port"
            raise problem(f"invalid value: {self.endpoint:.200}: {wanted}", "endpoint")
        if self.region and not re.fullmatch(r"[A-Za-z0-9_-]{1,50}", self.region):
            wanted = "want a name such as eu-central-1"
            raise problem(f"invalid value: {self.region:.200}: {wanted}", "region")
        return self


class Compaction(Declared):
    """When waiting dead letters start a Job: whichever is first."""

    number: Annotated[int, Field(ge=1)] = 10_000
    age: Positive = 3_600.0
    """Seconds since the first of those that wait was seen."""
    keep: Duration = 86_400.0
    """Seconds for which a dead letter stays in its topic though the tables have it."""


class Reporting(Declared):
    schedule: str
    """A cron expression of five fields."""
    time_zone: str = "UTC"
    days: Annotated[int, Field(ge=1)] = 30
    """How far back the timeline goes."""
    announce: bool = True
    """Whether the Broker gets an event that tells of it."""

    @model_validator(mode="after")
    def _is_a_schedule(self) -> Self:
        try:
            Reset(self.schedule, self.time_zone)
        except InvalidDocument as error:
            field = "schedule" if error.path == "cron" else "timeZone"
            raise problem(error.problem, field) from None
        return self


class Retention(Declared):
    """How long failures are kept, by their last attempt; None: for ever."""

    resolved: Positive | None = None
    unresolved: Positive | None = None

    @model_validator(mode="after")
    def _unresolved_is_longer(self) -> Self:
        if self.unresolved is not None and (self.resolved or 0) > self.unresolved:
            raise problem("is longer than that of unresolved failures", "resolved")
        return self


Quantity = str | int | float
"""Of a resource, as Kubernetes writes it."""


class Resources(Declared):
    """Of the Job's container, and of each executor's."""

    requests: dict[str, Quantity] = {"cpu": "500m"}  # noqa: RUF012  # pydantic copies it
    limits: dict[str, Quantity] = {"memory": "2Gi"}  # noqa: RUF012

    @field_validator("requests", "limits")
    @classmethod
    def _are_quantities(cls, amounts: dict[str, Any]) -> dict[str, Any]:
        for name, amount in amounts.items():
            if _QUANTITY(str(amount)) is None:
                wanted = "want a quantity, such as 500m or 2Gi"
                raise problem(f"invalid value: {amount!s:.80}: {wanted}", name)
        return amounts

    @model_validator(mode="after")
    def _has_a_limit(self) -> Self:
        if "memory" not in self.limits:
            raise problem("missing field(s): memory: Spark's heap is a share of it", "limits")
        return self


class ArchiveSpec(Declared):
    broker: Given = "default"
    """A Broker of the archive's namespace."""
    storage: Storage
    compaction: Compaction = Compaction()
    report: Reporting | None = None
    retention: Retention = Retention()
    executors: Annotated[int, Field(ge=0, le=MAX_EXECUTORS)] = 0
    """0: all in the Job's own pod."""
    resources: Resources = Resources()
    timeout: Positive = 21_600.0
    """Seconds after which a Job is ended, and counts as failed."""


class DeadLetterArchive(Resource):
    spec: ArchiveSpec

    @model_validator(mode="after")
    def _name_fits(self) -> Self:
        if len(self.metadata.name) > MAX_ARCHIVE_NAME:
            raise problem(f"is longer than {MAX_ARCHIVE_NAME} characters", "metadata.name")
        return self
