"""Writes docs/reference/spec-index.md: what each specification id asks for, in one line.

    python tools/spec_index.py FOLDER      FOLDER holds the project's digest of the specifications

The digest (Markdown, one rule a line: `- KN-BRK-01 M text`) isn't part of this repository; the page
is. tests/unit/test_docs.py checks that every id that is cited anywhere is on the page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference" / "spec-index.md"
LONGEST: Final = 240  # characters of a line; what is cut ends with an ellipsis


@dataclass(frozen=True, slots=True)
class Source:
    """The document that ids with one prefix come from."""

    prefix: str
    title: str
    place: str


SOURCES: Final = (
    Source("KN-BRK", "Broker", "knative/specs, specs/eventing/control-plane.md and overview.md"),
    Source("KN-TRG", "Trigger", "knative/specs, specs/eventing/control-plane.md"),
    Source("KN-CHN", "Channel", "knative/specs, specs/eventing/control-plane.md"),
    Source("KN-SUB", "Subscription", "knative/specs, specs/eventing/control-plane.md"),
    Source("KN-DST", "Destinations", "knative/specs, specs/eventing/control-plane.md"),
    Source("KN-CON", "Conditions", "knative/specs, specs/eventing/overview.md"),
    Source("KN-DLV", "Delivery", "knative/specs, specs/eventing/control-plane.md, DeliverySpec"),
    Source("KN-DP", "Data plane", "knative/specs, specs/eventing/data-plane.md"),
    Source("CE-H", "CloudEvents over HTTP", "cloudevents/spec, bindings/http-protocol-binding.md"),
    Source("CE-K", "CloudEvents in Kafka", "cloudevents/spec, bindings/kafka-protocol-binding.md"),
    Source("FN", "Knative func", "knative/func and its Python runtime, func-python"),
    Source("FF", "functions-framework", "GoogleCloudPlatform/functions-framework-python"),
    Source("UX", "Functions, as users expect them", "the project's own list"),
    Source("BRK", "Kafka-native Broker", "the Kafka-native Broker proposal of knative/eventing"),
    Source("CHN", "KafkaChannel", "the Knative-Kafka README of eventing-kafka"),
    Source(
        "BUS", "Kafka EventBus", "argoproj/argo-events, pull request 2502 and its merged source"
    ),
    Source("DSP", "Dispatcher", "the Dispatcher README of eventing-kafka"),
)

HEAD: Final = """\
# Spec index

What each id that code, tests and docs cite asks for, shortened, and where it comes from. Written by
`python tools/spec_index.py FOLDER` from the project's digest of these documents: don't edit it.

**M** must, **S** should, **y** may. EKB is eventing-kafka-broker (the Java Broker), Go the other
upstream implementation, rekt Knative's own conformance tests, DLS a dead-letter sink. The lines say
what upstream asks and does; what Knafka does is in [conformance.md](../conformance.md) and
[delivery.md](delivery.md).
"""

_ID: Final = r"(?:KN-[A-Z]+-\d+|CE-[HK]\d+|(?:FN|FF|UX|BRK|CHN|DSP)-\d+|BUS-S?\d+)"
_RULE: Final = re.compile(rf"(?:^- |(?<=[.;)`] ))({_ID}) (.*?)(?=(?<=[.;)`]) {_ID} |$)")
_LEVEL: Final = re.compile(r"[MSy] ")


def rules(text: str) -> Iterator[tuple[str, str]]:
    """Yield each id of a digest, with the text of its rule."""
    for line in text.splitlines():
        if line.startswith("- "):
            for match in _RULE.finditer(line):
                yield match[1], match[2]


def shortened(text: str) -> str:
    """Return the first sentences of a rule that fit into `LONGEST` characters, as text for a
    table's cell."""
    text = (
        re.sub(r"\[note\] ?| — see F-\d+", "", text).replace("**", "").replace("|", r"\|").strip()
    )
    if len(text) <= LONGEST:
        return text
    cut = text[:LONGEST]
    end = max(cut.rfind(". "), cut.rfind("; "), cut.rfind(": "))
    if end < LONGEST // 3:
        end = cut.rfind(" ")
    cut = cut[:end].rstrip(",;: ")
    return cut + ("`" if cut.count("`") % 2 else "") + " …"


def page(rules_by_id: dict[str, str]) -> str:
    """Return the whole page; `rules_by_id` has the text of each rule, by id."""
    parts = [HEAD]
    for source in SOURCES:
        of_source = [
            (id_, text)
            for id_, text in rules_by_id.items()
            if re.fullmatch(rf"{source.prefix}-?S?\d+", id_)
        ]
        if not of_source:
            continue
        parts += [f"\n## {source.title} ({source.prefix})\n\nFrom {source.place}.\n"]
        parts += ["\n| id | level | asks |\n| - | - | - |\n"]
        for id_, text in of_source:
            level = text[0] if _LEVEL.match(text) else ""
            parts.append(f"| {id_} | {level} | {shortened(text[2:] if level else text)} |\n")
    return "".join(parts)


def main(folder: Path) -> None:
    """Write the page from the digests (`*.md`) in a folder; the first text of an id counts."""
    rules_by_id: dict[str, str] = {}
    for file in sorted(folder.glob("*.md")):
        for id_, text in rules(file.read_text()):
            rules_by_id.setdefault(id_, text)
    PAGE.write_text(page(rules_by_id))
    print(f"{PAGE}: {len(rules_by_id)} ids")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
