"""Manifests: what is read, what is said of broken files, and what stays when they break."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Never

import pytest

from knafka_cli.checks import checking
from knafka_client.declared.manifests import DeclaredObjects, Manifests, NoManifests, ObjectIdentity
from knafka_operator.model.resources import Trigger

BROKER = """\
apiVersion: eventing.knative.dev/v1
kind: Broker
metadata: {name: shop}
"""
TRIGGER = """\
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata: {name: orders}
spec:
  broker: shop
  subscriber: {uri: "http://127.0.0.1:1/"}
  delivery: {retry: 3}
"""
BROKEN = TRIGGER.replace("retry: 3", "retry: -1")
THE_BROKER = ObjectIdentity("Broker", "default", "shop")
THE_TRIGGER = ObjectIdentity("Trigger", "default", "orders")


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)


def problems(declared: DeclaredObjects) -> list[str]:
    return list(map(str, declared.problems))


def test_every_document_of_every_file_in_a_folder_is_read(tmp_path: Path) -> None:
    write(tmp_path, a=f"{BROKER}---\n---\n{TRIGGER}", b=BROKER.replace("shop", "other"))
    (tmp_path / "events.ndjson").write_text("{}")
    (tmp_path / "inner").mkdir()
    write(tmp_path / "inner", c=BROKER.replace("shop", "deeper"))

    declared = Manifests([tmp_path]).read()

    assert {str(each) for each in declared.resources} == {
        "Broker default/shop",
        "Trigger default/orders",
        "Broker default/other",
    }
    assert declared.problems == ()


@pytest.mark.conformance("KN-DLV-06")
def test_a_problem_names_the_file_the_document_and_the_field(tmp_path: Path) -> None:
    """KN-DLV-06: rejected with the field path."""
    write(tmp_path, shop=f"{BROKER}---\n{BROKEN}")

    (problem,) = problems(Manifests([tmp_path]).read())

    assert problem.startswith(f"{tmp_path}/shop.yaml, document 2: Trigger default/orders: ")
    assert "spec.delivery.retry" in problem


def test_a_broken_object_stays_as_it_last_was(tmp_path: Path) -> None:
    write(tmp_path, shop=f"{BROKER}---\n{TRIGGER}")
    manifests = Manifests([tmp_path])
    before = manifests.read()

    write(tmp_path, shop=f"{BROKER}---\n{BROKEN}")
    for _ in range(2):
        declared = manifests.read()
        assert declared.resources == before.resources
        assert len(declared.problems) == 1


@pytest.mark.parametrize("rest", ["   - [", "[" * 3_000], ids=["unfinished", "nested too deeply"])
def test_a_file_that_is_no_yaml_stays_as_it_last_was(tmp_path: Path, rest: str) -> None:
    write(tmp_path, shop=f"{BROKER}---\n{TRIGGER}")
    manifests = Manifests([tmp_path])
    before = manifests.read()

    write(tmp_path, shop=f"{BROKER}---\n{TRIGGER}{rest}")

    declared = manifests.read()
    assert declared.resources == before.resources
    assert "shop.yaml: can't be read" in problems(declared)[0]


def test_an_object_or_a_file_that_is_gone_is_gone(tmp_path: Path) -> None:
    write(tmp_path, shop=f"{BROKER}---\n{TRIGGER}", other=BROKER.replace("shop", "other"))
    manifests = Manifests([tmp_path])
    manifests.read()

    write(tmp_path, shop=BROKER)
    (tmp_path / "other.yaml").unlink()

    assert set(manifests.read().resources) == {THE_BROKER}


def test_an_object_that_was_never_good_is_not_there(tmp_path: Path) -> None:
    write(tmp_path, shop=f"{BROKER}---\n{BROKEN}")
    assert set(Manifests([tmp_path]).read().resources) == {THE_BROKER}


def test_the_same_object_twice_is_a_problem_and_the_first_counts(tmp_path: Path) -> None:
    write(tmp_path, a=TRIGGER, b=TRIGGER.replace("retry: 3", "retry: 4"))

    declared = Manifests([tmp_path]).read()

    assert declared.resources[THE_TRIGGER][1].file == tmp_path / "a.yaml"
    assert "is declared in" in problems(declared)[0]


def test_twice_in_one_file_is_a_problem_too(tmp_path: Path) -> None:
    write(tmp_path, a=f"{BROKER}---\n{BROKER}")
    assert "is declared in this file already" in problems(Manifests([tmp_path]).read())[0]


def test_a_list_is_its_items(tmp_path: Path) -> None:
    items = "\n".join(f"  {line}" for line in BROKER.splitlines())
    write(tmp_path, shop=f"apiVersion: v1\nkind: List\nitems:\n- {items.lstrip()}\n")
    assert set(Manifests([tmp_path]).read().resources) == {THE_BROKER}


def test_other_kinds_are_told_and_left_out(tmp_path: Path) -> None:
    write(tmp_path, shop="apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n")

    declared = Manifests([tmp_path]).read()

    assert not declared.resources
    assert "Deployment default/web: kind: does not run here" in problems(declared)[0]


@pytest.mark.parametrize("text", ["just text", "- 1\n- 2", "kind: Broker", "42"])
def test_what_is_no_object_is_a_problem_and_no_crash(tmp_path: Path, text: str) -> None:
    write(tmp_path, shop=text)
    assert len(problems(Manifests([tmp_path]).read())) == 1


def test_what_looks_like_a_date_is_text_as_the_api_server_has_it(tmp_path: Path) -> None:
    write(tmp_path, c="apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: 2026-01-02}")
    assert Manifests([tmp_path]).read().problems == ()


def test_a_path_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(NoManifests, match="doesn't exist"):
        Manifests([tmp_path / "nothing.yaml"])


def test_a_folder_that_can_not_be_read_now_keeps_its_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, shop=f"{BROKER}---\n{TRIGGER}")
    manifests = Manifests([tmp_path])
    before = manifests.read()

    def refuse(path: Path, *_: object, **__: object) -> Never:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as denied:
        for name in ("iterdir", "stat", "read_text"):  # nothing is denied to root
            denied.setattr(Path, name, refuse)
        declared = manifests.read()
    assert declared.resources == before.resources
    assert [each.place.file for each in declared.problems] == [tmp_path, tmp_path / "shop.yaml"]


def test_a_path_too_long_for_the_system_is_refused_like_one_that_is_not_there() -> None:
    with pytest.raises(NoManifests, match="doesn't exist"):
        Manifests([Path("a" * 300)])


@pytest.mark.parametrize(
    "scalar",
    [
        "0x_",
        "0b_",
        "9" * 4_301,
        "0x" + "f" * 4_000,
        ":".join(["59"] * 400) + ".5",
        '!!int ""',
        "!!int x",
        "!!bool maybe",
        "!!timestamp x",
    ],
    ids=lambda scalar: scalar[:20],
)
def test_a_scalar_that_has_no_value_is_no_yaml_and_the_file_stays_as_it_last_was(
    tmp_path: Path, scalar: str
) -> None:
    write(tmp_path, shop=f"{BROKER}---\n{TRIGGER}")
    manifests = Manifests([tmp_path])
    before = manifests.read()

    write(tmp_path, shop=f"{BROKER}---\n{TRIGGER.replace('retry: 3', f'retry: {scalar}')}")

    declared = manifests.read()
    assert declared.resources == before.resources
    (problem,) = problems(declared)
    assert "shop.yaml: can't be read: found a value that is no " in problem
    assert "line 11, column 21" in problem
    (finding,) = checking.check([tmp_path]).findings
    assert "found a value that is no " in finding.text


def test_another_products_object_of_the_same_name_does_not_hold_up_edits(tmp_path: Path) -> None:
    other = "apiVersion: example.com/v1\nkind: Trigger\nmetadata: {name: orders}\n"
    for texts in ([other, TRIGGER], [TRIGGER, other]):
        write(tmp_path, shop="---\n".join(texts))
        manifests = Manifests([tmp_path])
        manifests.read()

        write(tmp_path, shop="---\n".join(texts).replace("retry: 3", "retry: 4"))

        declared = manifests.read()
        (trigger,) = declared.of_type(Trigger)
        assert trigger.spec.delivery.retry == 4
        assert "kind: does not run here" in problems(declared)[0]


@pytest.mark.parametrize(
    ("written", "mistyped"),
    [
        ("{name: orders}", "{nam: orders}"),
        ("kind: Trigger", "knd: Trigger"),
        ("eventing.knative.dev", "eventing.knative.dve"),
    ],
)
def test_an_object_without_a_kind_or_a_name_leaves_all_as_they_last_were(
    tmp_path: Path, written: str, mistyped: str
) -> None:
    write(tmp_path, shop=f"{BROKER}---\n{TRIGGER}")
    manifests = Manifests([tmp_path])
    before = manifests.read()

    write(tmp_path, shop=f"{BROKER}---\n{TRIGGER.replace(written, mistyped)}")

    declared = manifests.read()
    assert declared.resources == before.resources
    assert len(declared.problems) == 1


@pytest.mark.parametrize("first", ["", None], ids=["empty", "missing"])
async def test_a_file_that_was_empty_or_missing_and_is_back_invalid_stays_as_it_last_was(
    tmp_path: Path, first: str | None
) -> None:
    """`helm template > shop.yaml` empties the file before it writes, and may then write an error;
    a Broker that is missing is deleted with its events."""
    file = tmp_path / "shop.yaml"
    write(tmp_path, shop=f"{BROKER}---\n{TRIGGER}")
    manifests = Manifests([tmp_path])
    before = manifests.read()

    file.unlink() if first is None else file.write_text(first)
    reading = asyncio.create_task(manifests.read_settled(0.01))
    await asyncio.sleep(0)  # it has read once now
    file.write_text(f"{BROKER}---\n{TRIGGER}   - [")

    assert (await reading).resources == before.resources
    file.write_text(BROKER)
    assert set((await manifests.read_settled(0)).resources) == {THE_BROKER}


async def test_an_object_is_gone_only_if_two_readings_miss_it(tmp_path: Path) -> None:
    """A folder is written anew file by file, as by `git checkout`."""
    other = BROKER.replace("shop", "other")
    write(tmp_path, a=BROKER, b=other)
    manifests = Manifests([tmp_path])
    before = manifests.read()

    (tmp_path / "a.yaml").unlink()
    reading = asyncio.create_task(manifests.read_settled(0))
    await asyncio.sleep(0)
    write(tmp_path, a=BROKER)
    (tmp_path / "b.yaml").unlink()
    await asyncio.sleep(0)
    write(tmp_path, b=other)

    assert (await reading).resources == before.resources


CHANNEL = """\
apiVersion: messaging.knative.dev/v1beta1
kind: KafkaChannel
metadata: {name: orders}
spec: {numPartitions: 3}
"""
SUBSCRIPTION = """\
apiVersion: messaging.knative.dev/v1
kind: Subscription
metadata: {name: audit}
spec:
  channel: {apiVersion: messaging.knative.dev/v1, kind: KafkaChannel, name: orders}
  subscriber: {uri: "http://127.0.0.1:1/"}
"""


def test_channels_of_both_versions_and_subscriptions_are_read(tmp_path: Path) -> None:
    """KN-CHN-10."""
    other = CHANNEL.replace("v1beta1", "v1").replace("orders", "other")
    write(tmp_path, shop=f"{CHANNEL}---\n{SUBSCRIPTION}---\n{other}")
    declared = Manifests([tmp_path]).read()
    assert {str(each) for each in declared.resources} == {
        "KafkaChannel default/orders",
        "KafkaChannel default/other",
        "Subscription default/audit",
    }
    assert declared.problems == ()


def test_a_broken_channel_names_the_field_and_other_versions_are_left_out(tmp_path: Path) -> None:
    alpha = CHANNEL.replace("v1beta1", "v1alpha1").replace("orders", "old")
    write(tmp_path, shop=f"{CHANNEL.replace('3', '-3')}---\n{alpha}")
    first, second = problems(Manifests([tmp_path]).read())
    assert "KafkaChannel default/orders: " in first
    assert "spec.numPartitions" in first
    assert "kind: does not run here" in second
