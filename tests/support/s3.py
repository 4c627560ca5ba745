"""A real S3 for the tests: versitygw, which keeps objects as files below a folder.

`make s3-gateway` compiles it: see `go_programs`. Registered by `pytest_plugins` in
tests/conftest.py. One that pods of the test cluster reach: `support.archiving`.
"""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from support.go_programs import obtain, obtain_or_skip

from knafka_client.sockets import free_port

SOURCE: Final = Path(__file__).with_name("s3_gateway")
TARGET: Final = "s3-gateway"
PACKAGE: Final = "github.com/versity/versitygw/cmd/versitygw"
WITHIN: Final = 30.0


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket of a running gateway."""

    name: str
    endpoint: str
    folder: Path
    """Whose files are its objects."""
    environment: dict[str, str]
    """By which clients find the gateway, and are let in."""

    @property
    def url(self) -> str:
        return f"s3a://{self.name}"


@pytest.fixture(scope="session")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    """One of the test run's own gateway."""
    with gateway(tmp_path_factory.mktemp("s3")) as found:
        yield found


@contextmanager
def gateway(folder: Path, host: str = "127.0.0.1") -> Iterator[Bucket]:
    """A bucket of a gateway that runs meanwhile, with its files in this folder."""
    program = obtain_or_skip(SOURCE, TARGET, PACKAGE)
    port = free_port()
    # No two have a name, as Hadoop keeps a client for each.
    name = f"test-{uuid.uuid4().hex[:8]}"
    store = folder / "store" / name
    for each in (store, folder / "metadata"):
        each.mkdir(parents=True)
    keys = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": uuid.uuid4().hex}
    endpoint = f"http://{host}:{port}"
    # Beside the objects: not every file system has extended attributes.
    command = [str(program), "--port", f"{host}:{port}", "--quiet"]
    command += ["posix", "--sidecar", str(folder / "metadata"), str(folder / "store")]
    roots = {name.replace("AWS", "ROOT"): value for name, value in keys.items()}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **roots}, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        _until_up(process, endpoint, folder / "log")
        where = {"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1"}
        yield Bucket(name, endpoint, store, {**keys, **where})
    finally:
        process.terminate()
        process.wait()


def _until_up(process: subprocess.Popen[bytes], endpoint: str, log: Path) -> None:
    deadline = time.monotonic() + WITHIN
    while True:
        try:
            urllib.request.urlopen(endpoint, timeout=5).close()
        except urllib.error.HTTPError as refused:
            refused.close()
            return  # nobody is let in without keys
        except OSError:
            assert process.poll() is None, f"the S3 gateway ended: {log.read_text()}"
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        else:
            return


if __name__ == "__main__":
    print(obtain(SOURCE, TARGET, PACKAGE))
