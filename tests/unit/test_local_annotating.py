"""`knafka trigger pause|resume`: one annotation in a file, and nothing else of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from knafka_cli.command_line import app
from knafka_client.declared.annotating import NotAnnotated, annotate, with_annotation
from knafka_client.declared.manifests import ObjectIdentity

WHO = ObjectIdentity("Trigger", "default", "orders")
KEY = "knafka.dev/paused"
TRIGGER = """\
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata:
  # who gets what
  name: orders
spec:
  broker: shop  # the only one
  subscriber: {uri: "http://127.0.0.1:9/"}
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "kind: Trigger\nmetadata:\n  # why\n  name: orders\n",
            "kind: Trigger\nmetadata:\n  # why\n  annotations:\n"
            '    knafka.dev/paused: "true"\n  name: orders\n',
        ),
        (
            "kind: Broker\nmetadata: {name: orders}\n---\nkind: Trigger\nmetadata: {name: orders}",
            "kind: Broker\nmetadata: {name: orders}\n---\nkind: Trigger\n"
            'metadata: {"annotations": {"knafka.dev/paused": "true"}, name: orders}',
        ),
        (
            "kind: Trigger\nmetadata:\n    name: orders\n    annotations:\n        a: b  # why\n",
            "kind: Trigger\nmetadata:\n    name: orders\n    annotations:\n"
            '        knafka.dev/paused: "true"\n        a: b  # why\n',
        ),
        (
            "kind: Trigger\nmetadata:\n  name: orders\n  annotations: {a: b}\n",
            "kind: Trigger\nmetadata:\n  name: orders\n"
            '  annotations: {"knafka.dev/paused": "true", a: b}\n',
        ),
        (
            "kind: Trigger\nmetadata:\n  name: orders\n  annotations:\n"
            "    knafka.dev/paused: 'false'  # for now\n",
            "kind: Trigger\nmetadata:\n  name: orders\n  annotations:\n"
            '    knafka.dev/paused: "true"  # for now\n',
        ),
        (
            "kind: Trigger\nmetadata:\n  annotations:\n  name: orders\n",
            "kind: Trigger\nmetadata:\n"
            '  annotations: {"knafka.dev/paused": "true"}\n  name: orders\n',
        ),
        (
            "kind: Trigger\nmetadata:\n  annotations: {}\n  name: orders\n",
            "kind: Trigger\nmetadata:\n"
            '  annotations: {"knafka.dev/paused": "true"}\n  name: orders\n',
        ),
        (
            '{"kind": "List", "items": [{"kind": "Trigger", "metadata": {"name": "orders"}}]}',
            '{"kind": "List", "items": [{"kind": "Trigger", "metadata": '
            '{"annotations": {"knafka.dev/paused": "true"}, "name": "orders"}}]}',
        ),
    ],
)
def test_only_the_annotation_changes(before: str, after: str) -> None:
    assert with_annotation(before, WHO, KEY, "true") == after
    assert with_annotation(after, WHO, KEY, "true") == after


@pytest.mark.parametrize(
    "text",
    [
        "kind: Trigger\nmetadata: {name: other}\n",
        # The annotations are another object's, too.
        "kind: Broker\nmetadata: {name: a, annotations: &shared {a: b}}\n---\n"
        "kind: Trigger\nmetadata: {name: orders, annotations: {a: b}}\n---\n"
        "kind: List\nitems:\n"
        "- {kind: Broker, metadata: &same {name: orders}}\n- {kind: Trigger, metadata: *same}\n",
        "kind: [\n",
        "kind: Trigger\nmetadata: {name: orders}\nspec: {retry: 0x_}\n",
        "[" * 3_000,
    ],
    ids=["not there", "shared", "broken", "a value that is none", "nested too deeply"],
)
def test_what_can_not_be_changed_alone_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(text)
    with pytest.raises(NotAnnotated, match=r"shop\.yaml"):
        annotate(file, WHO, KEY, "true")
    assert file.read_text() == text
    assert list(tmp_path.iterdir()) == [file]


def test_two_who_annotate_objects_of_one_file_at_once_both_succeed(tmp_path: Path) -> None:
    file, whos = tmp_path / "shop.yaml", [WHO._replace(name=f"t{number}") for number in range(30)]
    file.write_text("---\n".join(TRIGGER.replace("orders", who.name) for who in whos))
    with ThreadPoolExecutor(len(whos)) as pool:
        list(pool.map(partial(annotate, file, key=KEY, value="true"), whos))
    assert file.read_text().count(f'{KEY}: "true"') == len(whos)
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_keeps_its_line_breaks(tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    file.write_bytes(TRIGGER.replace("\n", "\r\n").encode())
    annotate(file, WHO, KEY, "true")
    assert file.read_bytes().count(b"\n") == TRIGGER.count("\n") + 2
    assert file.read_bytes().count(b"\r\n") == TRIGGER.count("\n") + 2


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_bytes(TRIGGER.replace("only", "\xe9").encode("latin-1"))
    for file, reason in (("shop.yaml", "it is not UTF-8"), ("gone.yaml", "No such file")):
        with pytest.raises(NotAnnotated, match=rf"{file} can't be .*{reason}"):
            annotate(tmp_path / file, WHO, KEY, "true")


def knafka(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(each) for each in words])
    return result.exit_code, result.output


def test_a_trigger_is_paused_and_goes_on_by_its_file(tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(TRIGGER)
    assert knafka("trigger", "resume", "orders", "-f", tmp_path) == (
        0,
        "default/orders goes on already\n",
    )
    for _ in range(2):
        code, said = knafka("trigger", "pause", "orders", "-f", tmp_path)
        assert (code, said.startswith("default/orders is paused")) == (0, True)
    paused = TRIGGER.replace(
        "  # who gets what\n", f'  # who gets what\n  annotations:\n    {KEY}: "true"\n'
    )
    assert file.read_text() == paused
    _, listed = knafka("trigger", "list", "-f", tmp_path)
    assert [line.split()[-1] for line in listed.splitlines()] == ["STATE", "paused"]
    code, said = knafka("trigger", "resume", "orders", "-f", tmp_path)
    assert said == f"default/orders goes on: written into {file}\n"
    assert file.read_text() == paused.replace('"true"', '"false"')
    _, listed = knafka("trigger", "list", "-f", tmp_path)
    assert "STATE" not in listed


def test_a_trigger_that_nobody_declares_can_not_be_paused(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(TRIGGER)
    code, said = knafka("trigger", "pause", "others", "-f", tmp_path)
    assert code == 2
    assert "there is default/orders" in said
