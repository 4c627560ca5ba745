"""Observability: counters in plain integers, shown as Prometheus text.

A hot path adds to an attribute or a dict, nothing else; names and labels are put together when
somebody asks. There is no registry that everything shares: each function owns its counts.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

Labels = Mapping[str, str]

REPEAT_INTERVAL: Final = 10.0
"""Seconds between two log lines that differ in their numbers only."""

_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family and its samples."""

    name: str
    help: str
    samples: Iterable[tuple[Labels, float]]
    kind: Literal["counter", "gauge"] = "counter"


def prometheus_text(metrics: Iterable[Metric]) -> bytes:
    """The text exposition format, version 0.0.4."""
    lines: list[str] = []
    for metric in metrics:
        explained = metric.help.replace("\\", r"\\").replace("\n", r"\n")
        lines.append(f"# HELP {metric.name} {explained}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for labels, value in metric.samples:
            inner = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            lines.append(f"{metric.name}{{{inner}}} {value}")
    return ("\n".join(lines) + "\n").encode()


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class RateLimitedFilter(logging.Filter):
    """Lets one line of a kind through every `REPEAT_INTERVAL` seconds: while Kafka is away, the
    same line would come hundreds of times a second.

    Of a kind are lines that differ in their numbers only; `by_wording`, also those that differ in
    what is filled in: what comes with events is never the same twice.
    """

    def __init__(self, *, by_wording: bool = False) -> None:
        super().__init__()
        self._by_wording = by_wording
        self._said: dict[tuple[int, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        said = str(record.msg) if self._by_wording else _NUMBERS.sub("", record.getMessage())
        kind = record.levelno, said
        if record.created - self._said.get(kind, 0.0) < REPEAT_INTERVAL:
            return False
        if len(self._said) > 100:
            self._said.clear()
        self._said[kind] = record.created
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object a line; a record about an event has `trace_id` and `span_id` in `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("trace_id", "span_id"):
            if value := getattr(record, name, None):
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_to_stderr(level: str, form: Literal["json", "text"] = "text") -> None:
    """One line per log record, on stderr, for the whole process."""
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(JsonFormatter())
    else:
        text = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
        handler.setFormatter(logging.Formatter(text))
    logging.basicConfig(handlers=[handler], level=level.upper())
