"""What a replica tells the kubelet and Prometheus of itself."""

from __future__ import annotations

import aiohttp
import pytest
from support.operator_world import running_operator

from knafka_client.sockets import free_port
from knafka_operator.runtime.metrics import MetricsServer


async def test_a_replica_is_ready_once_its_webhooks_answer_whether_it_leads_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leads = ready = False
    port = free_port()
    async with running_operator(monkeypatch) as world:
        server = await MetricsServer.start(world.operator, lambda: leads, lambda: ready, [port])

        async def ask(path: str) -> tuple[int, str]:
            url = f"http://127.0.0.1:{port}{path}"
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                return answer.status, await answer.text()

        assert (await ask("/healthz"))[0] == 200
        assert (await ask("/readyz"))[0] == 503
        ready = True
        assert (await ask("/readyz"))[0] == 200
        assert "knafka_operator_leader 0.0" in (await ask("/metrics"))[1]
        leads = True
        assert "knafka_operator_leader 1.0" in (await ask("/metrics"))[1]
        await server.close()
