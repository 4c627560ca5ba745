"""Numbered events sent to a Broker on the cluster, one after another: `summary` of the subscriber
tells which came out of order within their key."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from support.installation import Installation


class Sender(threading.Thread):
    """Sends numbered events, one after another, and keeps what was accepted."""

    def __init__(self, installed: Installation, address: str) -> None:
        super().__init__(daemon=True)
        self._installed = installed
        self._address = address
        self._over = threading.Event()
        self.accepted: list[str] = []

    def run(self) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            key = f"k{number % 10}"
            answer = self._installed.send(
                self._address,
                str(number),
                data=json.dumps({"n": number}).encode(),
                partitionkey=key,
            )
            if answer.status_code == 202:
                self.accepted.append(str(number))
            self._over.wait(0.005)

    def finish(self) -> None:
        self._over.set()
        self.join()


@contextmanager
def sending(installed: Installation, address: str) -> Iterator[Sender]:
    sender = Sender(installed, address)
    sender.start()
    try:
        yield sender
    finally:
        sender.finish()
