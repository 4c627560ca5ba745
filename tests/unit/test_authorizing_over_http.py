"""A token on the wire: once, where it belongs, and not where an answer points to (issue 38)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.memory.account_tokens import MemoryTokens
from support.scripted import Arrival, ScriptedServer, raw

from knafka.clients.http.http_subscriber import HttpSubscriber
from knafka.core.contract import Egress, Kafka, Sink
from knafka.core.errors import InvalidDocument
from knafka.core.tokens.sink_tokens import Account
from knafka.dispatcher import connecting
from knafka.dispatcher.engine.sending.authorizing import AuthorizedSubscriber, SinkTokens
from knafka.dispatcher.function import make_sink_tokens
from knafka.ports.subscriber import Target

MAIL = Account("shop", "mail")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_token_follows_no_redirection(status: int) -> None:
    async with ScriptedServer() as elsewhere:

        async def redirect(arrival: Arrival) -> bytes:
            return raw(status, location=elsewhere.url)

        async with ScriptedServer(redirect) as server:
            plain = HttpSubscriber()
            posts = AuthorizedSubscriber(plain, SinkTokens(MemoryTokens(MAIL)), MAIL)
            try:
                target = Target.parse(server.url, audience="orders")
                answer = await posts.post(target, b"ce-id: 1\r\n", b"data", 5)
                other = await posts.post(Target.parse(elsewhere.url), b"ce-id: 2\r\n", b"", 5)
            finally:
                await posts.close()
        assert (answer.status, other.status) == (status, 200)
        assert [each.headers["authorization"] for each in server.arrivals] == [
            "Bearer shop.mail.orders.1"
        ]
        (arrival,) = elsewhere.arrivals
        assert (arrival.id, "authorization" in arrival.headers) == ("2", False)


def egress(audience: str | None) -> Egress:
    return Egress(
        namespace="shop", broker="default", trigger="mail", topic="t", group="g",
        dead_letter_topic="d", kafka=Kafka(bootstrap_servers="k:1"),
        subscriber=Sink(url="http://there/"), service_account="mail",
        dead_letter_sink=Sink(url="http://dead/", audience=audience),
    )  # fmt: skip


async def test_requests_are_as_cheap_as_ever_where_nobody_wants_a_token() -> None:
    assert isinstance(connecting.open_subscriber(egress(None), None, None), HttpSubscriber)
    assert isinstance(connecting.open_subscriber(egress("dead"), None, None), AuthorizedSubscriber)


@pytest.mark.slow
def test_a_dispatcher_that_shows_no_tokens_imports_nothing_for_it() -> None:
    """What a start imports is most of what a cold start takes."""
    code = (
        "import sys, knafka.dispatcher.function as function\n"
        "from pathlib import Path\n"
        "folder = Path('/var/run')\n"
        "assert function.make_sink_tokens(None, folder) is None\n"
        "wanted = {'knafka.dispatcher.engine.sending.authorizing',"
        " 'knafka.clients.kubernetes.api_server', 'jwt'}\n"
        "assert not wanted & sys.modules.keys()\n"
        "assert function.make_sink_tokens('https://kubernetes.default.svc', folder) is not None\n"
        "assert 'jwt' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_tokens_come_by_tls_only() -> None:
    with pytest.raises(InvalidDocument, match=r"KNAFKA_OIDC_URL.*want https"):
        make_sink_tokens("http://kubernetes.default.svc", Path("/var/run"))
