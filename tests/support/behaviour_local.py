"""The world of `behaviour` on this machine: one `knafka up` for all tests, each with a file.

What a test has left there goes on, as another user's would.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
import pytest
from confluent_kafka.admin import AdminClient
from support.behaviour import conditions_of, send
from support.kafka import names_in
from support.listener import Listener
from support.up import Up

from knafka_client.sockets import free_port
from knafka_client.state import snapshot_file
from knafka_client.state.installation import Installation, NotRunning
from knafka_client.state.snapshot import BrokerRow, Snapshot, TriggerRow
from knafka_local.kafka.kafka_distribution import KafkaDistribution
from knafka_operator.model.conditions import Condition
from knafka_operator.model.resources import PAUSED_ANNOTATION

T = TypeVar("T")

NO_SNAPSHOT: Final = Snapshot("")


class LocalMachine:
    """A `knafka up` on a folder of files, with a Kafka of its own."""

    def __init__(self, directory: Path) -> None:
        self.files = directory / "files"
        self.files.mkdir()
        self._data = directory / "data"
        self._kafka_port = str(free_port())
        self.bootstrap_servers = f"127.0.0.1:{self._kafka_port}"
        self.up = self._start()

    def restart(self) -> None:
        assert self.up.stop() == 0
        self.up = self._start()

    def snapshot(self) -> Snapshot:
        """How everything stands, a second ago at most."""
        with suppress(NotRunning):
            return snapshot_file.read_snapshot(Installation(self._data))
        return NO_SNAPSHOT

    def _start(self) -> Up:
        return Up(self.files, self._data, "--kafka-port", self._kafka_port)


class LocalWorld:
    """See `behaviour.World`; `apply` writes a file, which `knafka up` notices."""

    def __init__(self, machine: LocalMachine, listener: Listener) -> None:
        self.namespace = f"behaviour-{uuid.uuid4().hex[:6]}"
        self._machine = machine
        self._listener = listener
        self._documents: dict[tuple[str, str], dict[str, Any]] = {}
        self._generations: Counter[tuple[str, str]] = Counter()

    def apply(self, *documents: Mapping[str, Any]) -> None:
        for each in documents:
            metadata = {**each["metadata"], "namespace": self.namespace}
            key = each["kind"], metadata["name"]
            before = self._documents.get(key, {})
            self._documents[key] = {**each, "metadata": metadata}
            self._generations[key] += each.get("spec") != before.get("spec")
        self._write()

    def pause(self, trigger: str, *, paused: bool = True) -> None:
        command = "pause" if paused else "resume"
        answer = self._machine.up.knafka("trigger", command, f"{self.namespace}/{trigger}")
        assert answer.returncode == 0, answer.stderr
        metadata = self._documents["Trigger", trigger]["metadata"]
        metadata["annotations"] = {
            **metadata["annotations"],
            PAUSED_ANNOTATION: str(paused).lower(),
        }

    def delete(self, kind: str, name: str) -> None:
        del self._documents[kind, name], self._generations[kind, name]
        self._write()
        self.until(lambda: self._row(kind, name) is None, lambda: f"{kind} {name} is still there")

    def refusal(self, *documents: Mapping[str, Any]) -> str:
        """What `knafka check` says."""
        file = self._machine.files.parent / "checked.yaml"
        file.write_text("\n---\n".join(map(json.dumps, documents)))
        answer = self._machine.up.command("check", "--partial", str(file))
        return answer.stdout + answer.stderr if answer.returncode else ""

    def conditions(self, kind: str, name: str) -> list[Condition]:
        row = self._row(kind, name)
        return [] if row is None else conditions_of(map(asdict, row.conditions))

    def observes_newest(self, kind: str, name: str) -> bool:
        row = self._row(kind, name)
        return row is not None and row.observed_generation == self._generations[kind, name]

    def until(self, holds: Callable[[], T], what: Callable[[], str]) -> T:
        found: list[T] = []

        def is_so() -> bool:
            found[:] = [holds()]
            return bool(found[0])

        try:
            self._machine.up.until(is_so, "what is expected")
        except AssertionError as error:
            pytest.fail(f"{what()}\n{error}")
        return found[0]

    def subscriber(self, name: str) -> dict[str, Any]:
        return self._listener.sink(self._path(name))

    def arrived(self, name: str) -> list[str]:
        return [each.id for each in self._listener.at(self._path(name))]

    def send(self, broker: str, *ids: str, type_: str = "made") -> None:
        row = self._row("Broker", broker)
        assert isinstance(row, BrokerRow)
        send(httpx.post, row.url, *ids, type_=type_)

    def kafka_is_away(self) -> AbstractContextManager[Mapping[str, str]]:
        raise NotImplementedError("all Brokers of this machine have the same Kafka")

    def kept_in_kafka(self) -> set[str]:
        admin = AdminClient({"bootstrap.servers": self._machine.bootstrap_servers})
        return {each for each in names_in(admin) if self.namespace in each}

    def restart(self) -> None:
        self._machine.restart()
        self._generations = Counter(dict.fromkeys(self._generations, 1))

    def _path(self, subscriber: str) -> str:
        return f"/{self.namespace}/{subscriber}"

    def _rows(self) -> list[BrokerRow | TriggerRow]:
        now = self._machine.snapshot()
        mine = f"{self.namespace}/"
        rows: list[BrokerRow | TriggerRow] = [*now.brokers, *now.triggers]
        return [each for each in rows if each.name.startswith(mine)]

    def _row(self, kind: str, name: str) -> BrokerRow | TriggerRow | None:
        of = BrokerRow if kind == "Broker" else TriggerRow
        wanted = f"{self.namespace}/{name}"
        found = (each for each in self._rows() if isinstance(each, of) and each.name == wanted)
        return next(found, None)

    def _write(self) -> None:
        """An editor's way: the file is there as a whole, or not at all."""
        file = self._machine.files / f"{self.namespace}.yaml"
        unfinished = file.with_suffix(".new")
        unfinished.write_text("\n---\n".join(map(json.dumps, self._documents.values())))
        unfinished.replace(file)


@pytest.fixture(scope="session")
def local_world(
    kafka_distribution: KafkaDistribution, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], AbstractContextManager[LocalWorld]]]:
    """Makes worlds in one `knafka up`."""
    if sys.platform != "linux":
        pytest.skip("finds processes by /proc")
    machine = LocalMachine(tmp_path_factory.mktemp("behaviour"))
    listener = Listener("127.0.0.1")

    @contextmanager
    def entered() -> Iterator[LocalWorld]:
        yield LocalWorld(machine, listener)

    try:
        yield entered
    finally:
        try:
            machine.up.stop()
        finally:
            machine.up.process.kill()
            listener.close()
