"""Compares our receiver behind Knative's queue-proxy with the same receiver alone.

    past the proxy     kbench -> the function's port, as senders of `knafka.dev/direct`
    through the proxy  kbench -> queue-proxy -> the function's port, as Knative has it
    batches of 100     the same, with 100 events in a request

The proxy is Knative Serving's own, compiled from its module, with the environment that Serving's
reconciler gives it. Not here: activator and gateway, which the test cluster has
(tests/cluster/test_direct.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from bench.receiving import AT_64, AT_256, AT_RATE, FIXED_RATE, load
from bench.results import OURS, Results
from bench.targets import External, Running, receiver
from bench.world import World, listens
from knafka_client.sockets import HOST, free_port
from testcluster.build import build_queue_proxy

PROXY: Final = "proxy"
DIRECT: Final = "direct"
BATCH: Final = 100
BATCHES: Final = f"batches of {BATCH}, 16 connections"


async def proxy_case(world: World, results: Results, externals: Sequence[External]) -> None:
    """Measure the CPU of receiver and proxy together, events a second and latency."""
    seconds = world.sized(5, 1.5)
    async with world.topic() as topic, receiver(world, OURS, topic) as alone:
        async with proxied(world, alone) as behind:
            ways = {DIRECT: alone, PROXY: behind}
            for target in ways.values():
                await load(world, target, seconds=seconds, c=64)
            for _ in range(world.options.runs):
                for name, target in ways.items():
                    for what, options in {
                        AT_64: {"c": 64},
                        AT_256: {"c": 256},
                        AT_RATE: {"c": 32, "rate": FIXED_RATE},
                        BATCHES: {"c": 16, "batch": BATCH},
                    }.items():
                        measured = await load(world, target, seconds=seconds, **options)
                        results.add(what, name, **measured)
    results.at_most(
        "CPU µs an event, batches of 100 through the proxy",
        results.middle(BATCHES, "cpu_us", PROXY),
        12,
    )


@asynccontextmanager
async def proxied(world: World, function: Running) -> AsyncIterator[Running]:
    """Run Knative's proxy in front of a function; the target's processes are those of both."""
    port = free_port()
    own, path = function.url.removeprefix(f"http://{HOST}:").split("/", 1)
    environment = {
        "SERVING_NAMESPACE": "bench",
        "SERVING_SERVICE": "receiver",
        "SERVING_CONFIGURATION": "receiver",
        "SERVING_REVISION": "receiver-00001",
        "SERVING_POD": "receiver-00001",
        "SERVING_POD_IP": HOST,
        "HOST_IP": HOST,
        "QUEUE_SERVING_PORT": str(port),
        "QUEUE_SERVING_TLS_PORT": str(free_port()),
        "USER_PORT": own,
        "CONTAINER_CONCURRENCY": "0",
        "REVISION_TIMEOUT_SECONDS": "70",
        "REVISION_RESPONSE_START_TIMEOUT_SECONDS": "0",
        "REVISION_IDLE_TIMEOUT_SECONDS": "0",
        "SERVING_LOGGING_CONFIG": "",
        "SERVING_LOGGING_LEVEL": "error",
        "SERVING_REQUEST_LOG_TEMPLATE": "",
        "SERVING_ENABLE_REQUEST_LOG": "false",
        "SERVING_REQUEST_METRICS_BACKEND": "prometheus",
        "SERVING_REQUEST_METRICS_REPORTING_PERIOD_SECONDS": "5",
        "TRACING_CONFIG_BACKEND": "none",
        "SYSTEM_NAMESPACE": "knative-serving",
        "METRICS_DOMAIN": "knative.dev/internal/serving",
        "SERVING_READINESS_PROBE": f'{{"tcpSocket":{{"port":{own},"host":"{HOST}"}}}}',
        "ENABLE_HTTP_FULL_DUPLEX": "true",
        "ENABLE_HTTP2_AUTO_DETECTION": "false",
    }
    async with world.process(str(build_queue_proxy()), environment=environment) as process:
        await listens(f"{HOST}:{port}")
        url = f"http://{HOST}:{port}/{path}"
        yield Running(PROXY, [*function.pids, process.pid], url)
