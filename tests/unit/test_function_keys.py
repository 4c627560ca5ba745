"""The keys of functions' tokens: made once, rotated without a refused drain (issue 38)."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping

import pytest
from support.operator_world import OperatorWorld, running_operator
from support.sharing import SERVICE, SHARED, SHOP, declare
from support.waiting import until

from knafka.core.tokens.caller_tokens import CALLERS, MAX_VERIFIERS, Callers
from knafka_operator.functions import rolls, services
from knafka_operator.installation.settings import Settings
from knafka_operator.kube_api.memory_cluster import MemoryCluster
from knafka_operator.model.cluster import ClusterError, decode_secret
from knafka_operator.model.identity import Key
from knafka_operator.model.resources import CORE, SERVING
from knafka_operator.runtime.function_keys import KEYS_SECRET, FunctionKeys

OLD, NEW = "o" * 64, "n" * 64


def installed() -> Settings:
    return Settings(namespace="knafka", image="knafka")


def put(cluster: MemoryCluster, values: Mapping[str, str]) -> None:
    data = {name: base64.b64encode(text.encode()).decode() for name, text in values.items()}
    metadata = {"name": KEYS_SECRET, "namespace": "knafka"}
    cluster.put(
        {"apiVersion": CORE, "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}
    )


def stored(cluster: MemoryCluster) -> Mapping[str, str]:
    return decode_secret(cluster.objects[CORE, "Secret", "knafka", KEYS_SECRET])


async def test_a_key_is_made_once_for_all_replicas() -> None:
    cluster, settings = MemoryCluster(), [installed() for _ in range(3)]
    await asyncio.gather(*(FunctionKeys(each, cluster).start() for each in settings))
    (key,) = stored(cluster).values()
    assert len(key) == 64
    assert {each.tokens.keys for each in settings} == {(key.encode(),)}


async def test_the_last_name_has_the_newest_key() -> None:
    cluster, settings = MemoryCluster(), installed()
    put(cluster, {"2026-01-01": OLD, "2026-07-01": NEW})
    await FunctionKeys(settings, cluster).start()
    assert settings.tokens.keys == (NEW.encode(), OLD.encode())


async def test_a_key_that_could_be_guessed_is_none(caplog: pytest.LogCaptureFixture) -> None:
    cluster, settings = MemoryCluster(), installed()
    put(cluster, {"1": OLD, "2": "letmein"})
    await FunctionKeys(settings, cluster).start()
    assert settings.tokens.keys == (OLD.encode(),)
    assert "2 is too short to be a key: want 32 characters" in caplog.text
    assert "letmein" not in caplog.text


async def test_keys_that_are_none_leave_room_for_those_that_are() -> None:
    """Else functions would lose the key that their callers have, and get one that none has."""
    cluster, settings = MemoryCluster(), installed()
    short = {f"2026-07-{day:02}": "letmein" for day in range(1, MAX_VERIFIERS + 1)}
    put(cluster, {"2026-01-01": OLD, **short})
    await FunctionKeys(settings, cluster).start()
    assert settings.tokens.keys == (OLD.encode(),)


async def test_as_many_keys_count_as_a_function_takes_and_the_newest_do() -> None:
    cluster, settings = MemoryCluster(), installed()
    keys = {f"{number:02}": f"{number:064}" for number in range(MAX_VERIFIERS + 1)}
    put(cluster, keys)
    await FunctionKeys(settings, cluster).start()
    newest_first = [keys[name].encode() for name in sorted(keys, reverse=True)]
    assert settings.tokens.keys == tuple(newest_first[:MAX_VERIFIERS])


async def test_a_secret_without_a_key_gets_one() -> None:
    """Functions would answer everybody."""
    cluster, settings = MemoryCluster(), installed()
    put(cluster, {"1": ""})
    await FunctionKeys(settings, cluster).start()
    assert len(settings.tokens.keys) == 1


@pytest.mark.looptime
async def test_nothing_is_done_without_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, settings = MemoryCluster(), installed()
    cluster.refuse("get", "Secret", error=ClusterError("away"))
    starting = asyncio.create_task(FunctionKeys(settings, cluster).start())
    await asyncio.sleep(10)
    assert not starting.done()
    cluster.permit()
    await starting
    assert settings.tokens.keys


def verifiers(world: OperatorWorld, service: str) -> list[bytes]:
    """What the environment of a function says."""
    document = world.cluster.objects[SERVING, "Service", SHOP, service]
    container = document["spec"]["template"]["spec"]["containers"][0]
    return list(Callers.parse(services.environment_of(container).get(CALLERS, "")).verifiers)


class Followed:
    def __init__(self, world: OperatorWorld, settings: Settings) -> None:
        self.world, self.settings = world, settings
        self.enqueued: list[Key] = []
        self.keys = FunctionKeys(settings, world.cluster)

    def heard(self) -> None:
        self.keys.on_secret({"metadata": {"namespace": "knafka", "name": KEYS_SECRET}})


@pytest.fixture
async def followed() -> AsyncIterator[Followed]:
    async with running_operator() as world:
        await world.restart()
        settings = world.operator.settings
        it = Followed(world, settings)
        put(world.cluster, {"1": OLD})
        await it.keys.start()
        world.declare_broker(SHOP)
        await world.reconcile_broker(SHOP)
        world.declare_trigger(SHOP, "mail")
        await world.reconcile_trigger(SHOP, "mail")
        task = asyncio.create_task(it.keys.follow(world.operator, it.enqueued.append))
        yield it
        task.cancel()
        await asyncio.wait({task})


async def test_every_function_knows_its_operator_by_a_token_of_its_own(followed: Followed) -> None:
    world = followed.world
    await declare(world, SHARED)
    found = [verifiers(world, each) for each in ("mail-kn-dispatcher", SERVICE)]
    found.append(verifiers(world, "default-kn-receiver"))
    assert [len(each) for each in found] == [1, 1, 1]
    assert len({each[0] for each in found}) == 3
    (bearer,) = followed.settings.tokens.bearers(world.operator.states.urls[f"{SHOP}/mail"])
    assert Callers(found[0]).accepts(bearer), "the scaler calls it at the same URL"


async def test_a_rotation_has_all_functions_roll_in_turn_and_accept_both(
    followed: Followed,
) -> None:
    world, before = followed.world, verifiers(followed.world, "mail-kn-dispatcher")
    was = world.cluster.objects[SERVING, "Service", SHOP, "mail-kn-dispatcher"]
    put(world.cluster, {"1": OLD, "2": NEW})
    followed.heard()
    await until(lambda: followed.enqueued)
    assert sorted(followed.enqueued) == [("Broker", SHOP, "default"), ("Trigger", SHOP, "mail")]
    await world.reconcile_trigger(SHOP, "mail")
    now = world.cluster.objects[SERVING, "Service", SHOP, "mail-kn-dispatcher"]
    both = verifiers(world, "mail-kn-dispatcher")
    assert len(both) == 2
    assert both[1:] == before
    assert not rolls.is_edited(was, now), "it waits for a turn, as for what nobody has edited"
    assert not rolls.is_up_to_date(was, now)


async def test_a_secret_that_goes_comes_back_as_it_was(followed: Followed) -> None:
    """Functions that sleep would be woken by nobody until they had rolled."""
    cluster = followed.world.cluster
    await cluster.delete(CORE, "Secret", "knafka", KEYS_SECRET)
    followed.heard()
    await until(lambda: (CORE, "Secret", "knafka", KEYS_SECRET) in cluster.objects)
    assert stored(cluster) == {"1": OLD}
    assert followed.enqueued == []


async def test_other_secrets_are_none_of_its_business(followed: Followed) -> None:
    requests = followed.world.cluster.requests["get"]
    followed.keys.on_secret({"metadata": {"namespace": "shop", "name": KEYS_SECRET}})
    await asyncio.sleep(0)
    assert followed.world.cluster.requests["get"] == requests
