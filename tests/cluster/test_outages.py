"""Every event that was answered 202 is in the topic, however often Kafka was away (KN-BRK-07).

Open-loop load, as an outage doesn't slow real senders down: requests wait, Knative starts more
receivers, and those meet Kafka in the moment in which it comes back. `KNAFKA_OUTAGES` is how many
there are (`make chaos`: 20), half of them kills, half freezes, each of another length.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter

import pytest
from support.gate import only_chaos
from support.installation import Installation
from support.mortal_kafka import MortalKafka
from support.steady_load import RATE, Load

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin

OUTAGES = int(os.environ.get("KNAFKA_OUTAGES", "2"))
LONGEST = 45.0 if OUTAGES > 2 else 12.0  # seconds of the longest outage: beyond every timeout
BETWEEN = 15.0  # seconds of the longest time between two


@only_chaos
@pytest.mark.timeout(120 + OUTAGES * 120)
@pytest.mark.usefixtures("mortal_kafka", "brokers_go")  # in this order: Kafka outlives them
def test_what_was_accepted_is_stored_however_often_kafka_was_away(
    installed: Installation, namespace: str, mortal_kafka: MortalKafka
) -> None:
    servers = mortal_kafka.server.bootstrap_servers
    address = installed.broker(namespace, partitions=10, data={"bootstrap.servers": servers})
    topic = installed.status("broker", "default", namespace)["annotations"]["default.topic"]
    chances = random.Random(OUTAGES)
    most = 0
    with Load(address) as load:
        for outage in range(OUTAGES):
            time.sleep(chances.uniform(BETWEEN / 3, BETWEEN))  # of good times: the load's, no wait
            lasts = LONGEST * (outage + 1) / OUTAGES
            freezes = outage % 2 == 1
            _away(mortal_kafka, lasts, freezes)
            pods = len(installed.cluster.pods(namespace, "default-kn-receiver"))
            most = max(most, pods)
            print(
                f"outage {outage + 1} of {OUTAGES}: {'frozen' if freezes else 'killed'} for "
                f"{lasts:.0f} s, {pods} receivers, {len(load.accepted)} accepted so far"
            )
        # The last of them is over when events are accepted again.
        before = len(load.accepted)
        installed.cluster.wait_for(lambda: len(load.accepted) > before + RATE, 120, "202 again")
    stored = asyncio.run(_stored(servers, topic))
    twice = sum(count - 1 for count in stored.values())
    print(
        f"{len(load.statuses)} sent, answered {dict(Counter(load.statuses.values()))}, "
        f"{len(stored)} stored, {twice} twice, at most {most} receivers seen"
    )
    assert load.accepted
    assert load.accepted - stored.keys() == set()


def _away(kafka: MortalKafka, seconds: float, freezes: bool) -> None:
    if not freezes:
        kafka.kill()
        time.sleep(seconds)
        kafka.start()
        return
    assert kafka.server.pid is not None
    os.kill(kafka.server.pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(kafka.server.pid, signal.SIGCONT)


async def _stored(servers: str, topic: str) -> Counter[str]:
    """How often each event lies in the topic, by id."""
    admin = KafkaAdmin({"bootstrap.servers": servers})
    records = await admin.read_last(topic, 1_000_000)
    await admin.close()
    return Counter((record.value() or b"").decode() for record in records)
