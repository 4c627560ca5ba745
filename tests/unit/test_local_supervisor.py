"""The supervisor: what `knafka up` tells other commands."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Never
from unittest.mock import create_autospec

import pytest

from knafka.core.contract import Kafka
from knafka_client.state import installation
from knafka_local.cluster.local_knative import LocalKnative
from knafka_local.supervisor import Supervisor, UpOptions
from knafka_local.view import View


def test_a_full_disk_does_not_end_a_knafka_up_and_the_state_is_written_once_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = Supervisor(UpOptions((), tmp_path), create_autospec(View))
    knative = create_autospec(LocalKnative, instance=True)
    knative.configure_mock(channels_url="", ingresses=(), egresses=(), sensor_places=())
    supervisor._knative = knative
    supervisor._kafka = Kafka(bootstrap_servers="k:1")

    def refuse(*_: object) -> Never:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(installation, "replace_file", refuse)
        supervisor.snapshot()
    assert list(tmp_path.iterdir()) == []
    supervisor.snapshot()
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]
