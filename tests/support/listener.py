"""A subscriber in the test's own process, which pods reach: it keeps every byte it was sent.

It answers as it is told for a path or for one event there, and 202 otherwise. The subscribers of
tools/testcluster/subscribers live in pods, as real ones do; this one is for what those don't show.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from support.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Answer:
    """A response; the headers and the body are the test's."""

    status: int = 202
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    after: float = 0.0
    """Seconds that it takes."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request; header names are lower-cased."""

    path: str
    version: str
    headers: dict[str, str]
    body: bytes
    at: float
    """Seconds, on the monotonic clock."""

    @property
    def id(self) -> str:
        return self.headers.get("ce-id", "")


class _Server(ThreadingHTTPServer):
    request_queue_size = 256
    """Connections at once: of five, the usual number, many actions at once break some."""


class Listener:
    """Serves on a free port of `host` until it is closed."""

    def __init__(self, host: str) -> None:
        self.arrivals: list[Arrival] = []
        self._answers: dict[tuple[str, str], list[Answer]] = {}
        listener = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", "0")))
                headers = {name.lower(): value for name, value in self.headers.items()}
                arrival = Arrival(self.path, self.request_version, headers, body, time.monotonic())
                listener.arrivals.append(arrival)
                answer = listener._next(arrival)
                time.sleep(answer.after)
                try:
                    self.send_response_only(answer.status)
                    for name, value in answer.headers.items():
                        self.send_header(name, value)
                    self.send_header("content-length", str(len(answer.body)))
                    self.end_headers()
                    self.wfile.write(answer.body)
                except ConnectionError:
                    pass  # it did not wait for an answer that late

            def log_message(self, format: str, *_: Any) -> None:  # noqa: A002  # its name there
                pass

        self._server = _Server((host, 0), Handler)
        self._server.daemon_threads = True
        self._url = f"http://{host}:{self._server.server_port}"
        serve, often = self._server.serve_forever, {"poll_interval": 0.02}  # how long `close` waits
        threading.Thread(target=serve, kwargs=often, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def url(self, path: str = "/") -> str:
        return self._url + path

    def sink(self, path: str) -> dict[str, Any]:
        """As a Trigger's `subscriber` or a `deadLetterSink`."""
        return {"uri": self.url(path)}

    def answer(self, path: str, *answers: Answer, id_: str = "") -> None:
        """What comes to a path is answered, or one event there; one by one, and the last stays."""
        self._answers[path, id_] = list(answers)

    def at(self, path: str, id_: str | None = None) -> list[Arrival]:
        """What came to a path, in the order of arrival; all of it or one event's."""
        return [
            each for each in list(self.arrivals)
            if each.path == path and id_ in (None, each.id)
        ]  # fmt: skip

    def wait_for(
        self, cluster: Cluster, path: str, id_: str | None, count: int = 1, within: float = 120.0
    ) -> list[Arrival]:
        """`at`, once that much has come."""
        what = f"{count} of {id_ or 'any event'} at {path}"
        cluster.wait_for(lambda: len(self.at(path, id_)) >= count, within, what)
        return self.at(path, id_)

    def _next(self, arrival: Arrival) -> Answer:
        for id_ in (arrival.id, ""):
            if answers := self._answers.get((arrival.path, id_)):
                return answers.pop(0) if len(answers) > 1 else answers[0]
        return Answer()
