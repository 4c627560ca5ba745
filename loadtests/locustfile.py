"""Users who send numbered CloudEvents to a Broker; checks at the end that all have arrived.

    locust -f loadtests/locustfile.py --host http://127.0.0.1:8080/default/default --headless \\
        -u 20 -t 30s --subscriber http://127.0.0.1:8099

Each user has keys of its own and sends a key's events one after the other, each again until the
Broker takes it. The subscriber (`subscriber.py`) counts them. When the run is over, what it lost
and reordered is printed and decides the exit code: 1 for either. Duplicates are printed but are no
fault: delivery is at least once. Shapes: see `shapes.py`. Works with workers too (`--processes`).
"""

from __future__ import annotations

import json
import logging
import random
import time
import uuid
from collections import Counter
from typing import Any, Final, TypeAlias
from urllib.error import URLError
from urllib.request import Request, urlopen

import gevent
import shapes
from arrivals import Summary
from locust import FastHttpUser, events, task
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

log = logging.getLogger("knafka")

TIMEOUT: Final = 10.0
"""Seconds that a request to the subscriber may take."""
PAUSE: Final = 0.5
"""Seconds before a refused event is sent again, and between two requests for the summary."""

Head: TypeAlias = dict[str, str]

accepted: Counter[str] = Counter()
"""Number of events of this process's users that the Broker accepted, by key."""

if shape := shapes.chosen():
    Shape = shape  # locust takes the one class that it finds here


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def add_options(parser: Any) -> None:
    options = parser.add_argument_group("CloudEvents")
    add = options.add_argument
    add("--subscriber", env_var="SUBSCRIBER", default="", help="URL of subscriber.py, to count")
    add("--broker-host", env_var="BROKER_HOST", default="",
        help="the Broker's host name, where --host names an ingress that goes by it")  # fmt: skip
    add("--event-types", env_var="EVENT_TYPES", default="com.example.loadtest",
        help="comma-separated, one is drawn for each event")  # fmt: skip
    add("--event-bytes", env_var="EVENT_BYTES", default="1024",
        help="size of the data, or a range such as 100-65536")  # fmt: skip
    add("--keys", env_var="KEYS", type=int, default=10, help="keys (subjects) of each user")
    add("--structured", env_var="STRUCTURED", type=float, default=0.2,
        help="share of events sent in structured mode, 0 to 1")  # fmt: skip
    add("--batch", env_var="BATCH", type=int, default=0,
        help="events of one key in each request, as a batch (0: one, alone)")  # fmt: skip
    add("--each", env_var="EACH", type=float, default=0.0,
        help="events a second of each user (0: as fast as they are taken)")  # fmt: skip
    add("--events", env_var="EVENTS", type=int, default=0,
        help="end once so many are accepted in each process (0: don't)")  # fmt: skip
    add("--settle", env_var="SETTLE", type=float, default=30.0,
        help="seconds that the last events may take to arrive")  # fmt: skip


class Sender(FastHttpUser):
    """Sends events, binary or structured."""

    def on_start(self) -> None:
        options = self.environment.parsed_options
        assert options is not None
        low, _, high = options.event_bytes.partition("-")
        self._sizes = int(low), int(high or low)
        self._types = options.event_types.split(",")
        self._structured = options.structured
        self._batch = options.batch
        self._most_events = options.events
        self._pause = 1 / options.each if options.each else 0.0
        self._due = time.monotonic()
        self._host = {"host": options.broker_host} if options.broker_host else {}
        name = uuid.uuid4().hex[:12]
        self._numbers: Counter[str] = Counter()
        self._keys = [f"{name}-{number}" for number in range(options.keys)]

    def wait_time(self) -> float:
        """Return the seconds until this user's next event is due; a user that is late catches up at
        most one event."""
        self._due = max(self._due + self._pause, time.monotonic() - self._pause)
        return max(0.0, self._due - time.monotonic())

    @task
    def send(self) -> None:
        """Send one event, or a batch, until it is accepted; the pauses in between are part of no
        figure."""
        key = random.choice(self._keys)
        number = accepted[key]
        request = self._several(key, number) if self._batch else self._event(key, number)
        while not self._post(*request):
            time.sleep(PAUSE)
        is_enough = accepted.total() >= self._most_events
        accepted[key] = number + max(1, self._batch)
        if self._most_events and not is_enough and accepted.total() >= self._most_events:
            self._end()

    def _end(self) -> None:
        """End the run of this process, from another greenlet: ending waits for all users, this one
        included."""
        assert self.environment.runner is not None
        gevent.spawn(self.environment.runner.quit)

    def _several(self, key: str, number: int) -> tuple[str, Head, bytes]:
        """Return a request with a batch of a key's events from `number` on: its name, headers and
        body."""
        numbers = range(number, number + self._batch)
        documents = [_document(*self._parts(key, event_number)) for event_number in numbers]
        headers = {"content-type": "application/cloudevents-batch+json"}
        return f"batch of {self._batch}", headers, b"[" + b",".join(documents) + b"]"

    def _post(self, mode: str, headers: Head, body: Any) -> bool:
        """Send a request; return whether it was accepted. `mode` is its name in locust's
        figures."""
        with self.client.post(
            self.host or "/",
            data=body,
            headers={**headers, **self._host},
            name=mode,
            catch_response=True,
        ) as answer:
            if answer.status_code == 202:
                return True
            answer.failure(f"status {answer.status_code}")
            return False

    def _parts(self, key: str, number: int) -> tuple[Head, bytes]:
        """Return attributes and data of the event with this number."""
        size = random.randint(*self._sizes)
        data = b'{"msg":"' + b"x" * max(0, size - 10) + b'"}'
        attributes = {
            "specversion": "1.0",
            "id": f"{key}-{number}",
            "source": "/loadtest",
            "type": random.choice(self._types),
            "subject": key,
            "sequence": str(number),
        }
        return attributes, data

    def _event(self, key: str, number: int) -> tuple[str, Head, bytes]:
        """Return a request with one event, in binary or structured mode: its name, headers and
        body."""
        attributes, data = self._parts(key, number)
        if random.random() >= self._structured:
            headers = {f"ce-{name}": value for name, value in attributes.items()}
            return "binary", {**headers, "content-type": "application/json"}, data
        headers = {"content-type": "application/cloudevents+json"}
        return "structured", headers, _document(attributes, data)


def _document(attributes: Head, data: bytes) -> bytes:
    """Return an event in structured mode: JSON with the attributes and the data."""
    head = json.dumps({**attributes, "datacontenttype": "application/json"}).encode()
    return head[:-1] + b', "data": ' + data + b"}"


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def begin(environment: Environment, **_: Any) -> None:
    """Forget the counts of the run before, here and in the subscriber."""
    accepted.clear()
    if not isinstance(environment.runner, WorkerRunner):
        _ask(environment, "_reset", {})


@events.test_stop.add_listener  # type: ignore[untyped-decorator]
def send_accepted_counts(environment: Environment, **_: Any) -> None:
    """Send this process's counts of accepted events to the subscriber."""
    if not isinstance(environment.runner, MasterRunner):
        _ask(environment, "_accepted", accepted)


@events.quitting.add_listener  # type: ignore[untyped-decorator]
def judge(environment: Environment, **_: Any) -> None:
    """Wait for the last events, and print the summary; lost or reordered events, or none at all,
    make the exit code 1."""
    options = environment.parsed_options
    if isinstance(environment.runner, WorkerRunner) or options is None or not options.subscriber:
        return
    deadline = time.monotonic() + options.settle
    while (summary := _summary(environment)).lost and time.monotonic() < deadline:
        time.sleep(PAUSE)
    print(summary, flush=True)
    if summary.lost or summary.reordered or not summary.accepted:
        environment.process_exit_code = 1


def _summary(environment: Environment) -> Summary:
    return Summary.of(json.loads(_ask(environment, "_summary")))


def _ask(environment: Environment, what: str, document: object = None) -> bytes:
    """Send a request to the subscriber, a POST if there is a document, and return its answer; empty
    without a subscriber. Raises SystemExit if it can't be reached."""
    options = environment.parsed_options
    if options is None or not options.subscriber:
        return b""
    url = f"{options.subscriber.rstrip('/')}/{what}"
    body = None if document is None else json.dumps(document).encode()
    try:
        with urlopen(Request(url, data=body), timeout=TIMEOUT) as answer:
            content: bytes = answer.read()
            return content
    except URLError as error:
        raise SystemExit(f"error: the subscriber at {url} does not answer: {error}") from error
