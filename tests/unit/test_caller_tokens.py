"""Only its operator may have a function drain or say what it serves (issue 38, decision 0038)."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from support.dispatchers import SERVICE, Running
from support.drains import ScriptedSubscriber, World, accept, response, until
from support.loopback import HOST, LoopbackServer
from support.memory.log import MemoryLog, MemoryWriter
from support.scaling import egress

from knafka.contract_topic import Contract
from knafka.core.documents import dump
from knafka.core.drain import DrainRequest, Ended
from knafka.core.errors import InvalidDocument
from knafka.core.tokens.caller_tokens import (
    CALLERS,
    MAX_HEADER_BYTES,
    MAX_VERIFIERS,
    Callers,
    bearer_of,
    token_of,
    verifier_of,
)
from knafka.draining.lease import RENEWAL_PATIENCE
from knafka.ports.subscriber import Response
from knafka.receiver.answers import Answer
from knafka.receiver.ingest import CONTRACT, METRICS_PATH, IngestHandler
from knafka.receiver.observing import ReceiverObservers
from knafka.settings import SERVICE_URL
from knafka_operator.installation.function_tokens import FunctionTokens
from knafka_operator.kube_api.memory_cluster import MemoryCluster
from knafka_operator.model.resources import CORE
from knafka_operator.receivers.receivers import PodPositions
from knafka_operator.scale.drains import DrainRefused, HttpDrains

OLD, NEW = b"o" * 64, b"n" * 64
URL = "http://mail-kn-dispatcher.shop.svc.cluster.local"
TOKEN = token_of(NEW, URL)
KNOWS = verifier_of(TOKEN)
BOTH = FunctionTokens((NEW, OLD))
Headers = Sequence[tuple[bytes, bytes]]


def bearer(token: str, scheme: str = "Bearer") -> list[tuple[bytes, bytes]]:
    return [(b"content-type", b"a/b"), (b"Authorization", f"{scheme} {token}".encode())]


def test_a_token_opens_one_function() -> None:
    callers = Callers.parse(KNOWS)
    assert callers.accepts(TOKEN)
    assert not callers.accepts(token_of(NEW, URL.replace("shop", "other")))
    assert not callers.accepts(token_of(OLD, URL))
    assert TOKEN not in KNOWS


def test_during_a_rotation_a_function_accepts_both() -> None:
    callers = Callers.parse(BOTH.verifiers(URL))
    assert [callers.accepts(each) for each in BOTH.bearers(URL)] == [True, True]
    assert BOTH.bearers(URL)[0] == TOKEN, "the newest first"


def test_without_verifiers_everybody_is_answered() -> None:
    assert Callers.parse("").accepts("")
    assert FunctionTokens().verifiers(URL) == ""
    assert not Callers.parse(KNOWS).accepts("")


def test_each_verifier_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare)
    callers = Callers.parse(BOTH.verifiers(URL))
    assert callers.accepts(TOKEN)
    assert not callers.accepts("another")
    assert len(compared) == 4, "a match ends nothing early"


@pytest.mark.parametrize("text", ["x", KNOWS[1:], KNOWS.upper(), ",".join([KNOWS] * 17)])
def test_what_is_no_verifier_ends_the_start_of_a_function(text: str) -> None:
    with pytest.raises(InvalidDocument, match=rf"^KNAFKA_CALLERS: .*up to {MAX_VERIFIERS} SHA-256"):
        Callers.parse(text)


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        (bearer("abc"), "abc"),
        (bearer("abc", "bearer"), "abc"),
        (bearer(" abc "), "abc"),
        ([], ""),
        (bearer("abc", "Basic"), ""),
        ([(b"authorization", b"Bearer")], ""),
        (bearer("abc") * 2, ""),
        (bearer("a" * MAX_HEADER_BYTES), ""),
        (bearer("a" * 1_000_000), ""),
        ([(b"authorization", b"Bearer \xff\x00")], "\xff\x00"),
    ],
)
def test_a_token_is_read_from_one_short_header(headers: Headers, token: str) -> None:
    assert bearer_of(headers) == token
    assert not Callers.parse(KNOWS).accepts(token)


# Functions


@pytest.fixture
async def dispatcher() -> AsyncIterator[Running]:
    running = Running(World(accept))
    await running.start(**{CALLERS: KNOWS})
    yield running
    await running.dispatcher.stop()


@pytest.mark.looptime
@pytest.mark.parametrize(
    "headers", [(), bearer("wrong-token-of-somebody"), bearer(KNOWS), bearer(TOKEN) * 2]
)
async def test_a_drain_that_somebody_else_asks_for_is_none(
    dispatcher: Running, headers: Headers, caplog: pytest.LogCaptureFixture
) -> None:
    """It took anybody's call."""
    caplog.set_level(logging.DEBUG)
    dispatcher.headers = headers
    refused = await dispatcher.answer("POST", "/drain", b'{"idle": 1}')
    assert refused.status == 401
    assert dispatcher.opened == 0
    assert b"wrong" not in refused.body
    assert "wrong-token" not in caplog.text


@pytest.mark.looptime
async def test_a_refused_request_is_not_read(dispatcher: Running) -> None:
    endless = dispatcher.ask("POST", "/drain", b"x" * 100, b"")
    await endless.task
    assert endless.status == 401


@pytest.mark.looptime
async def test_its_operator_has_a_dispatcher_drain(dispatcher: Running) -> None:
    dispatcher.headers = bearer(TOKEN)
    answered = await dispatcher.answer("POST", "/drain", b'{"idle": 1}')
    assert answered.status == 200
    assert answered.lines[-1].ended is Ended.IDLE
    assert TOKEN.encode() not in answered.body


@pytest.mark.looptime
@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/health/readiness"])
async def test_probes_and_metrics_of_a_dispatcher_are_anybodys(
    dispatcher: Running, path: str
) -> None:
    assert (await dispatcher.answer("GET", path)).status == 200


@pytest.mark.looptime
async def test_a_dispatcher_asks_its_own_service_with_the_token_it_was_asked_with() -> None:
    """It has none of its own, and goes on while the operator is away."""
    asked: list[bytes] = []

    class OwnService(ScriptedSubscriber):
        async def post(self, target: Any, head: bytes, body: bytes, timeout: float) -> Response:
            if not target.url.startswith(SERVICE):
                return await super().post(target, head, body, timeout)
            assert TOKEN.encode() not in body
            asked.append(head)
            await asyncio.sleep(timeout)
            return response(504)

    world = World(accept)
    world.subscriber = OwnService(accept)
    running = Running(world)
    await running.start(**{CALLERS: KNOWS, SERVICE_URL: SERVICE})
    body = b'{"idle": 60, "budget": 1, "bearer": "given"}'
    running.headers = bearer(TOKEN)
    first = await running.answer("POST", "/drain", body)
    assert first.lines[-1].ended is Ended.BUDGET
    await asyncio.sleep(RENEWAL_PATIENCE + 1)
    assert f"authorization: Bearer {TOKEN}\r\n".encode() in asked[0], "and not what a body says"
    await running.dispatcher.stop()


def test_a_token_is_in_no_document_of_a_request() -> None:
    request = DrainRequest(bearer=TOKEN)
    assert "bearer" not in dump(request)
    assert TOKEN not in repr(request)


@pytest.mark.parametrize(
    ("headers", "status"), [((), 401), (bearer("wrong"), 401), (bearer(TOKEN), 200)]
)
async def test_what_a_receiver_serves_is_told_its_operator_only(
    headers: Headers, status: int
) -> None:
    log = MemoryLog()
    writers = [MemoryWriter(log)]
    handler = IngestHandler(
        (), (), contract=Contract(), observers=ReceiverObservers(callers=Callers.parse(KNOWS))
    )
    handler.writers = list(writers)
    answered: list[Answer] = []
    handler.handle(b"GET", CONTRACT, headers, b"", answered.append)
    assert answered[0].status == status
    assert (b'"position"' in answered[0].body) is (status == 200)
    handler.handle(b"GET", METRICS_PATH, headers, b"", answered.append)
    await until(lambda: len(answered) == 2)
    assert answered[1].status == 200


# The operator


class Function:
    """Knows one token, over HTTP; `told` is what it answers then."""

    def __init__(self, knows: Callable[[], str], told: bytes) -> None:
        self.knows = knows
        self.told = told
        self.seen: list[str] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:] if line)
        given = next(
            (line.split()[-1] for line in head.splitlines() if line.lower().startswith("auth")), ""
        )
        assert ("authorization" in lines) is bool(given)
        self.seen.append(given)
        status, body = ("200 OK", self.told) if given == self.knows() else ("401 No", b"no\n")
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()


async def drained(drains: HttpDrains) -> list[Any]:
    return [each async for each in drains.hold("id", egress(), DrainRequest(), asyncio.Event())]


@pytest.mark.parametrize(("key", "asked"), [(NEW, 1), (OLD, 2)])
async def test_a_function_that_has_not_rolled_is_asked_with_the_key_it_knows(
    key: bytes, asked: int
) -> None:
    url = ""
    line = json.dumps({"ended": "idle"}).encode() + b"\n"
    function = Function(lambda: token_of(key, url), line)
    async with LoopbackServer(function.handle) as server:
        url = f"http://{HOST}:{server.port}"
        drains = HttpDrains({"id": f"{url}/"}, tokens=BOTH)
        assert [each.ended for each in await drained(drains)] == [Ended.IDLE]
        assert len(function.seen) == asked
        await drains.close()


async def test_a_function_that_knows_no_key_is_an_error_that_shows_no_token() -> None:
    function = Function(lambda: "another", b"")
    async with LoopbackServer(function.handle) as server:
        url = f"http://{HOST}:{server.port}"
        drains = HttpDrains({"id": url}, tokens=BOTH)
        with pytest.raises(DrainRefused, match="answered 401") as caught:
            await drained(drains)
        assert function.seen == BOTH.bearers(url)
        assert not any(each in str(caught.value) for each in function.seen)
        await drains.close()


async def test_a_receivers_pod_is_asked_with_the_token_of_its_service() -> None:
    def bearers(name: str, namespace: str) -> Sequence[str]:
        assert (name, namespace) == ("receiver", "shop")
        return BOTH.bearers(URL)

    function = Function(lambda: token_of(OLD, URL), b'{"position": 7}')
    cluster = MemoryCluster()
    labels = {"serving.knative.dev/service": "receiver"}
    cluster.objects[CORE, "Pod", "shop", "pod"] = {
        **{"apiVersion": CORE, "kind": "Pod"},
        "metadata": {"namespace": "shop", "name": "pod", "labels": labels},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "podIP": HOST},
    }
    async with LoopbackServer(function.handle) as server:
        asking = PodPositions(cluster, port=server.port, bearers=bearers)
        assert await asking("shop", "receiver") == {"pod": 7}
        function.knows = lambda: "another"
        assert await asking("shop", "receiver") == {"pod": None}
