"""Fake dispatchers for `idle_triggers`: they answer the operator, and deliver nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from aiohttp import web

from knafka.clients.kafka.kafka_connection import connection_configuration
from knafka.core import drain
from knafka.core.contract import Kafka
from knafka.core.drain import DrainProgress, DrainRequest, Ended, Settled, ShardProgress

APPLIED: Final = 2**40
"""An offset above every record of a contract's topic: the fakes have applied all of them."""
COMMIT_ENDS: Final = """
import json, sys
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
wanted = json.load(sys.stdin)
admin, topic = AdminClient(wanted["connection"]), wanted["topic"]
partitions = admin.list_topics(topic, timeout=30).topics[topic].partitions
asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in partitions}
ends = {each.partition: found.result().offset for each, found in admin.list_offsets(asked).items()}
places = [TopicPartition(topic, number, end) for number, end in ends.items()]
commits = [
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])[group]
    for group in wanted["groups"]
]
for each in commits:
    each.result()
json.dump(ends, sys.stdout)
"""
"""A script that commits the ends of a topic's partitions for each group, and prints the ends as
JSON."""


class Settling:
    """Does what a dispatcher does for a shard, without delivering: it reports, holds its request
    for `hold` seconds, and commits the topic's ends for the shard's groups. Another process
    commits, so that its CPU isn't counted."""

    def __init__(
        self, kafka: Kafka, topic: str, shards: Mapping[str, Sequence[str]], hold: float
    ) -> None:
        """`shards`: each shard's groups; `hold`: seconds."""
        self.hold = hold
        self._kafka = {**connection_configuration(kafka)}
        self._topic = topic
        self._shards = shards

    async def lines(self, shard: str) -> AsyncIterator[ShardProgress]:
        """Yield the answer to a shard's request: its progress at first, and that of its end after
        the commits."""
        groups = self._shards[shard]
        progress = ShardProgress(
            contract=APPLIED, egresses=dict.fromkeys(groups, DrainProgress(partitions=(0,)))
        )
        yield progress
        await asyncio.sleep(self.hold)
        committing = await asyncio.create_subprocess_exec(
            sys.executable, "-c", COMMIT_ENDS, stdin=PIPE, stdout=PIPE
        )
        commit_request = {"connection": self._kafka, "topic": self._topic, "groups": list(groups)}
        ends, _ = await committing.communicate(json.dumps(commit_request).encode())
        settled = Settled(topic=self._topic, offsets=json.loads(ends))
        yield progress.model_copy(update={"ended": Ended.IDLE, "settled": settled})


@contextlib.asynccontextmanager
async def fake_dispatcher(
    settling: Settling | None = None,
) -> AsyncIterator[tuple[str, dict[str, float]]]:
    """Serve a dispatcher whose drains end at once or, with `settling`, once it has committed.
    Yields its address, and when each shard or Egress was first requested (monotonic)."""
    asked_at: dict[str, float] = {}

    async def answer(request: web.Request) -> web.StreamResponse:
        """Answer a request for a drain, and note when its shard or Egress was first requested."""
        drain_request = DrainRequest.model_validate_json(await request.content.readline())
        asked_at.setdefault(str(drain_request.shard or drain_request.egress), time.monotonic())
        if settling is not None:
            response = web.StreamResponse()
            await response.prepare(request)
            async for line in settling.lines(str(drain_request.shard)):
                await response.write(line.model_dump_json(by_alias=True).encode() + b"\n")
            return response
        if drain_request.shard is not None:
            return web.Response(
                text=ShardProgress(contract=APPLIED, ended=Ended.IDLE).model_dump_json()
            )
        return web.Response(text=DrainProgress(ended=Ended.IDLE).model_dump_json())

    app = web.Application()
    app.router.add_post(drain.PATH, answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}", asked_at
    finally:
        await runner.cleanup()
