"""Users who send numbered CloudEvents to a Broker; checks at the end that all have arrived.

    locust -f loadtests/locustfile.py --host http://127.0.0.1:8080/default/default --headless \\
        -u 20 -t 30s --subscriber http://127.0.0.1:8099

Each user has keys of its own. It sends a key's events one after the other, and each again until the
Broker accepts it. The subscriber (`subscriber.py`) counts them. The end of the run prints how many
events were lost or came out of order; any makes the exit code 1. Duplicates are printed but are no
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

SUBSCRIBER_TIMEOUT: Final = 10.0
"""Seconds that a request to the subscriber may take."""
RETRY_PAUSE: Final = 0.5
"""Seconds before a refused event is sent again, and between two requests for the summary."""

Fields: TypeAlias = dict[str, str]
"""HTTP headers, or an event's attributes, by name."""
PreparedRequest: TypeAlias = tuple[str, Fields, bytes]
"""Name of a request in locust's figures, its headers and its body."""

accepted: Counter[str] = Counter()
"""Number of events of this process's users that the Broker accepted, by key."""

if shape := shapes.chosen():
    Shape = shape  # locust takes the one class that it finds here


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def add_options(parser: Any) -> None:
    """Add the options of this load test to locust's command line."""
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
    """A user who sends events, in binary or structured mode."""

    def on_start(self) -> None:
        """Read the options, and draw the names of this user's keys."""
        options = self.environment.parsed_options
        assert options is not None
        low, _, high = options.event_bytes.partition("-")
        self._sizes = int(low), int(high or low)
        self._types = options.event_types.split(",")
        self._structured = options.structured
        self._batch = options.batch
        self._most_events = options.events
        self._event_interval = 1 / options.each if options.each else 0.0
        """Seconds from one event to the next."""
        self._due = time.monotonic()
        self._host = {"host": options.broker_host} if options.broker_host else {}
        name = uuid.uuid4().hex[:12]
        self._keys = [f"{name}-{number}" for number in range(options.keys)]

    def wait_time(self) -> float:
        """Return the seconds until this user's next event is due; a user that is late catches up at
        most one event."""
        interval = self._event_interval
        self._due = max(self._due + interval, time.monotonic() - interval)
        return max(0.0, self._due - time.monotonic())

    @task
    def send(self) -> None:
        """Send a key's next event, or batch, until it is accepted; locust's figures leave out the
        pauses in between.

        Ends the run with the event that reaches `--events`.
        """
        key = random.choice(self._keys)
        number = accepted[key]
        request = (
            self._batch_request(key, number) if self._batch else self._event_request(key, number)
        )
        while not self._post(*request):
            time.sleep(RETRY_PAUSE)
        was_enough = accepted.total() >= self._most_events
        accepted[key] = number + max(1, self._batch)
        if self._most_events and not was_enough and accepted.total() >= self._most_events:
            self._end()

    def _end(self) -> None:
        """End the run of this process, from another greenlet: ending waits for all users, this one
        included."""
        assert self.environment.runner is not None
        gevent.spawn(self.environment.runner.quit)

    def _batch_request(self, key: str, number: int) -> PreparedRequest:
        """Return a request with a batch of a key's events from `number` on."""
        numbers = range(number, number + self._batch)
        documents = [_event_json(*self._new_event(key, event_number)) for event_number in numbers]
        headers = {"content-type": "application/cloudevents-batch+json"}
        return f"batch of {self._batch}", headers, b"[" + b",".join(documents) + b"]"

    def _post(self, name: str, headers: Fields, body: Any) -> bool:
        """Send a `PreparedRequest`; return whether it was accepted."""
        with self.client.post(
            self.host or "/",
            data=body,
            headers={**headers, **self._host},
            name=name,
            catch_response=True,
        ) as answer:
            if answer.status_code == 202:
                return True
            answer.failure(f"status {answer.status_code}")
            return False

    def _new_event(self, key: str, number: int) -> tuple[Fields, bytes]:
        """Return attributes and data (JSON) of the key's event with this number; type and size are
        drawn."""
        size = random.randint(*self._sizes)
        start, end = b'{"msg":"', b'"}'
        data = start + b"x" * max(0, size - len(start + end)) + end
        attributes = {
            "specversion": "1.0",
            "id": f"{key}-{number}",
            "source": "/loadtest",
            "type": random.choice(self._types),
            "subject": key,
            "sequence": str(number),
        }
        return attributes, data

    def _event_request(self, key: str, number: int) -> PreparedRequest:
        """Return a request with one event, in structured mode for the share `--structured` of
        events, else in binary mode."""
        attributes, data = self._new_event(key, number)
        if random.random() >= self._structured:
            headers = {f"ce-{name}": value for name, value in attributes.items()}
            return "binary", {**headers, "content-type": "application/json"}, data
        headers = {"content-type": "application/cloudevents+json"}
        return "structured", headers, _event_json(attributes, data)


def _event_json(attributes: Fields, data: bytes) -> bytes:
    """Return an event in the JSON format of CloudEvents; `data` is JSON, too."""
    document = json.dumps({**attributes, "datacontenttype": "application/json"}).encode()
    return document.removesuffix(b"}") + b', "data": ' + data + b"}"


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
        time.sleep(RETRY_PAUSE)
    print(summary, flush=True)
    if summary.lost or summary.reordered or not summary.accepted:
        environment.process_exit_code = 1


def _summary(environment: Environment) -> Summary:
    """Return the subscriber's counts until now."""
    return Summary.of(json.loads(_ask(environment, "_summary")))


def _ask(environment: Environment, path: str, document: object = None) -> bytes:
    """Send a request to `path` at the subscriber, a POST if there is a document, and return the
    body of its answer; empty if no subscriber is named. Raises `SystemExit` if it can't be
    reached."""
    options = environment.parsed_options
    if options is None or not options.subscriber:
        return b""
    url = f"{options.subscriber.rstrip('/')}/{path}"
    body = None if document is None else json.dumps(document).encode()
    try:
        with urlopen(Request(url, data=body), timeout=SUBSCRIBER_TIMEOUT) as answer:
            content: bytes = answer.read()
            return content
    except URLError as error:
        raise SystemExit(f"error: the subscriber at {url} does not answer: {error}") from error
