"""The documentation: links lead somewhere, and its lists are what the code has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from knafka_cli.command_line import app

ROOT = Path(__file__).parents[2]
SOURCES = (
    "functions",
    "operator",
    "local",
    "spark_jobs",
    "tools",
    "tests",
    "loadtests",
    "examples",
)
REFERENCE = ROOT / "docs" / "reference"
ROOT_PACKAGES = {
    "knafka_cli",
    "knafka_client",
    "knafka_console",
    "knafka_jobs",
    "knafka_local",
    "knafka_operator",
}
SPEC_ID = re.compile(
    r"\b(?:KN-[A-Z]+-\d+|CE-[HK]\d+|(?:FN|FF|UX|BRK|CHN|DSP)-\d+|BUS-S?\d+|[A-Z]{2}-\d\d)\b"
)
NO_REASONS = {
    *("ConfigMap", "CustomResourceDefinition", "RuntimeDefault"),
    *("PartialObjectMetadata", "PartialObjectMetadataList"),
    *("KafkaChannel", "KafkaChannels", "KafkaSource", "KafkaSink", "EventType"),
    *("ExternalName", "ClusterLocal", "LogAppendTime"),
    *("EventPolicy", "NotIn"),
    # Of a DeadLetterArchive's Job and its pods.
    *("DeadLetterArchive", "DeadLetterReplay", "DeadLetterPurge", "PersistentVolumeClaim"),
    *("ServiceAccount", "RoleBinding"),
    *("ClusterRole", "DisruptionTarget", "FallbackToLogsOnError", "OnRootMismatch"),
    *("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"),
    *("ContainerCreating", "PodInitializing", "PodScheduled", "ReadWriteMany"),
    # Knative's, of a Revision.
    *("ContainerHealthy", "ResourcesAvailable", "ResolvingDigests"),
}
"""Words in the operator's code that look like a condition or a reason and are none."""
OF_BUSES = {"DoesNotExist", "NotConfigured", "NotReady"}
OF_TRIGGERS = {"NotReady", "NotOurs", "Rejected"}
ENDINGS = OF_BUSES | OF_TRIGGERS
"""Ends of reasons: the code puts the kind before them that an object lacks."""
REASONS_BY_KIND = {f"{kind}{each}" for kind in ("Broker", "Channel") for each in OF_BUSES} | {
    f"{kind}{each}" for kind in ("Trigger", "Subscription") for each in OF_TRIGGERS
}


def files(*suffixes: str) -> Iterator[Path]:
    for path in [*ROOT.iterdir(), *(p for s in (*SOURCES, "docs") for p in (ROOT / s).rglob("*"))]:
        if path.suffix in suffixes and path.is_file() and "node_modules" not in path.parts:
            yield path


@cache
def strings_in(folder: str) -> frozenset[str]:
    return frozenset(
        node.value
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def strings(*folders: str) -> frozenset[str]:
    """Every string constant of the code there."""
    return frozenset[str]().union(*map(strings_in, folders))


def names(page: str, pattern: str) -> set[str]:
    """What stands in backticks on a page of docs/reference, as far as it matches wholly."""
    quoted = re.findall(r"`([^`\n]+)`", (REFERENCE / page).read_text())
    return {each for each in quoted if re.fullmatch(pattern, each)}


def anchors(page: Path) -> set[str]:
    """GitHub's, of the headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", sorted(files(".md")), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    text = re.sub(r"(?s)```.*?```", "", page.read_text())
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), link


def test_pages_that_code_names_are_there() -> None:
    named = {
        (path.relative_to(ROOT), name.rstrip("./"))
        for path in files(".py", ".toml", ".yaml", ".go")
        for name in re.findall(r"\bdocs/[\w./-]+", path.read_text())
    }
    # A decision is named by its number.
    missing = [(str(path), name) for path, name in named if not list(ROOT.glob(f"{name}*"))]
    assert missing == []


def test_each_page_is_reached_from_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {
        (index.parent / link).resolve() for link in re.findall(r"\]\(([^)#]+)", index.read_text())
    }
    pages = {path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "decisions"}
    assert pages - {index} - linked == set()


def test_commands_in_docs_name_no_address_of_the_test_cluster() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs" / "how-to").glob("*.md")]
    assert [page.name for page in pages if "198.18." in page.read_text()] == []


def test_settings_are_those_of_the_code() -> None:
    modules = [
        *(ROOT / "functions" / "knafka").rglob("settings.py"),
        *(ROOT / "operator" / "knafka_operator").rglob("settings.py"),
        *(ROOT / "local" / "knafka_console").rglob("settings.py"),
    ]
    read = {name for path in modules for name in re.findall(r"KNAFKA_[A-Z_]+", path.read_text())}
    options = {
        name
        for path in (ROOT / "local").rglob("*.py")
        for name in re.findall(r'envvar="(\w+)"', path.read_text())
    }
    assert read
    assert names("settings.md", r"KNAFKA_[A-Z_]+") == read | options


def test_metrics_are_those_of_the_code() -> None:
    found = strings("functions/knafka", "operator/knafka_operator")
    ours = r"(?:knafka|eventing_kafka|kn_eventing|http_server)_[a-z_]+"
    metrics = {each for each in found if re.fullmatch(ours, each)} - ROOT_PACKAGES
    assert names("metrics.md", ours) == metrics


def test_annotations_are_those_of_the_code() -> None:
    found = strings("functions/knafka", "operator/knafka_operator", "local")
    ours = re.compile(
        r"(?:local\.)?knafka\.dev/(?!v1alpha1)[\w.-]+|(?:kafka\.)?eventing\.knative\.dev/[a-z.-]+"
    )
    text = (REFERENCE / "annotations.md").read_text()
    assert {each for each in found if ours.fullmatch(each) and f"`{each}`" not in text} == set()
    for name in names("annotations.md", r"(?:[a-z]+\.)+dev/[a-z.-]+"):
        prefix, _, key = name.rpartition("/")
        assert name in found or {f"{prefix}/", key} <= found, name


def test_conditions_and_reasons_are_those_of_the_code() -> None:
    found = strings("operator/knafka_operator")
    several_words = {each for each in found if re.fullmatch(r"(?:[A-Z][a-z]+){2,}", each)}
    told = names("conditions.md", r"(?:[A-Z][a-z]+)+")
    assert several_words - NO_REASONS - ENDINGS - told == set()
    assert REASONS_BY_KIND - told == set()
    assert ENDINGS - found == set()
    assert told - found - REASONS_BY_KIND == set()


def test_commands_are_those_of_the_code() -> None:
    def commands(command: Any, path: str) -> Iterator[str]:
        if inner := getattr(command, "commands", None):
            for name, each in inner.items():
                yield from commands(each, f"{path} {name}")
        elif not command.hidden:
            yield path

    known = set(commands(typer.main.get_command(app), "knafka"))
    quoted = re.findall(
        r"`(knafka [a-z][^`]*)`", (REFERENCE / "command-line.md").read_text().replace("\\|", "|")
    )
    shown = {(text, each) for text in quoted for each in known if f"{text} ".startswith(f"{each} ")}
    assert {each for _, each in shown} == known
    assert {text for text, _ in shown} == set(quoted)


def test_ids_of_specifications_are_in_the_index() -> None:
    index = (REFERENCE / "spec-index.md").read_text()
    known = set(re.findall(r"^\| (\S+) \|", index, re.MULTILINE))
    cited = {
        (id_, str(path.relative_to(ROOT)))
        for path in files(".py", ".md", ".yaml", ".go")
        for id_ in SPEC_ID.findall(path.read_text())
    }
    assert {each for each in cited if each[0] not in known} == set()
