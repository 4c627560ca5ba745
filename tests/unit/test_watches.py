"""What a watch tells of, through everything an API server does to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import kubernetes
import pytest
from support.api_server import DEEP, ApiServer, api_server
from support.waiting import stretched

from knafka_operator.kube_api import cluster as cluster_module
from knafka_operator.kube_api import watches
from knafka_operator.kube_api.cluster import ApiCluster, WatchSelection
from knafka_operator.kube_api.watches import Watch
from knafka_operator.model.cluster import Document
from knafka_operator.model.resources import CORE, EVENTING, SERVING

CONFIG_MAPS = WatchSelection(CORE, "ConfigMap", metadata_only=True)

Served = tuple[ApiServer, kubernetes.client.ApiClient]


class Heard:
    """What there is by what was told."""

    def __init__(self) -> None:
        self.there: dict[str, Document] = {}
        self.gone: list[Document] = []
        self.synced: list[bool] = []

    def on_objects(
        self, of: WatchSelection, changed: Sequence[Document], gone: Sequence[Document]
    ) -> None:
        self.there.update((each["metadata"]["name"], each) for each in changed)
        for each in gone:
            del self.there[each["metadata"]["name"]]
            self.gone.append(each)

    def set_synced(self, of: WatchSelection, synced: bool) -> None:
        self.synced.append(synced)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(stretched(10)):
            while not holds():  # noqa: ASYNC110  # told by other threads
                await asyncio.sleep(0.01)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(watches, "FIRST_WATCH_PAUSE", 0.01)
    with api_server() as served:
        yield served


@asynccontextmanager
async def watching(served: Served, of: WatchSelection = CONFIG_MAPS) -> AsyncIterator[Heard]:
    api, heard = ApiCluster(served[1]), Heard()
    watch = Watch(api, of, heard)
    yield heard
    watch.close()
    await asyncio.to_thread(watch._thread.join, 10)
    assert not watch._thread.is_alive()
    api.close()


async def test_an_object_deeper_than_python_decodes_hides_no_other_one(served: Served) -> None:
    """The API server stores 10,000 levels where a schema is open, as in a Trigger's filters."""
    server, _ = served
    triggers = WatchSelection(EVENTING, "Trigger")
    server.put(EVENTING, "Trigger", "shop", "good", spec={"broker": "default"})
    server.put(EVENTING, "Trigger", "shop", "listed", spec={"filters": [DEEP], "broker": "a"})
    async with watching(served, triggers) as heard:
        await heard.until(lambda: heard.synced == [True])
        assert heard.there.keys() == {"good", "listed"}
        assert heard.there["listed"]["spec"]["broker"] == "a"
        server.put(EVENTING, "Trigger", "shop", "followed", spec={"filters": [DEEP]})
        server.put(EVENTING, "Trigger", "shop", "better")
        await heard.until(lambda: {"followed", "better"} <= heard.there.keys())
        assert heard.synced == [True]


async def test_what_is_there_and_what_changes_is_told(served: Served) -> None:
    server, _ = served
    server.put(CORE, "ConfigMap", "shop", "before")
    async with watching(served) as heard:
        await heard.until(lambda: heard.synced == [True])
        assert heard.there.keys() == {"before"}
        assert heard.there["before"]["kind"] == "ConfigMap"
        server.put(CORE, "ConfigMap", "shop", "later")
        await heard.until(lambda: "later" in heard.there)
        version = heard.there["later"]["metadata"]["resourceVersion"]
        server.put(CORE, "ConfigMap", "shop", "later", data={"a": "b"})
        await heard.until(lambda: heard.there["later"]["metadata"]["resourceVersion"] != version)
        server.remove(CORE, "ConfigMap", "shop", "before")
        await heard.until(lambda: heard.there.keys() == {"later"})


async def test_a_long_list_comes_in_pages(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "PAGE_SIZE", 3)
    for number in range(10):
        served[0].put(CORE, "ConfigMap", "shop", f"c{number}")
    async with watching(served) as heard:
        await heard.until(lambda: heard.synced == [True])
        assert len(heard.there) == 10


async def test_a_watch_that_is_cut_off_goes_on_and_misses_nothing(served: Served) -> None:
    server, _ = served
    async with watching(served) as heard:
        await heard.until(lambda: bool(server.watched))
        for number in range(5):
            server.cut_off()
            server.put(CORE, "ConfigMap", "shop", f"c{number}")
        await heard.until(lambda: len(heard.there) == 5)


async def test_no_change_is_reported_twice_when_a_connection_breaks(served: Served) -> None:
    """A namespace's deletion of minutes ago, reported again, would end what is in the new one."""
    server, _ = served
    reported: list[str] = []
    async with watching(served) as heard:
        on_objects = heard.on_objects

        def record(
            of: WatchSelection, changed: Sequence[Document], gone: Sequence[Document]
        ) -> None:
            reported.extend(
                document["metadata"]["resourceVersion"] for document in (*changed, *gone)
            )
            on_objects(of, changed, gone)

        heard.on_objects = record  # type: ignore[method-assign]
        await heard.until(lambda: bool(server.watched))
        for number in range(3):
            server.put(CORE, "ConfigMap", "shop", "a", data={"number": str(number)})
        server.remove(CORE, "ConfigMap", "shop", "a")
        server.put(CORE, "ConfigMap", "shop", "a", data={"number": "new"})
        await heard.until(lambda: len(reported) == 5)
        server.cut_off()
        server.put(CORE, "ConfigMap", "shop", "last")
        await heard.until(lambda: "last" in heard.there)
        assert len(reported) == len(set(reported)) == 6


async def test_an_object_of_a_list_that_failed_is_reported_gone_once_it_is(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _ = served
    monkeypatch.setattr(cluster_module, "PAGE_SIZE", 2)
    for name in "abcd":
        server.put(CORE, "ConfigMap", "shop", name)
    list_page, pages = ApiCluster.list_page, []

    def fail_at_the_second(
        api: ApiCluster, selection: WatchSelection, after: str | None
    ) -> Document:
        pages.append(after)
        if len(pages) == 2:
            server.remove(CORE, "ConfigMap", "shop", "a")
            raise ConnectionResetError
        return list_page(api, selection, after)

    monkeypatch.setattr(ApiCluster, "list_page", fail_at_the_second)
    async with watching(served) as heard:
        await heard.until(lambda: heard.synced == [True])
        assert heard.there.keys() == {"b", "c", "d"}


async def test_a_watch_that_was_refused_once_is_in_sync_when_it_may_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API server that has just started has no roles yet."""
    server, _ = served
    monkeypatch.setattr(watches, "REFUSED_PAUSE", 0.01)
    async with watching(served) as heard:
        await heard.until(lambda: bool(server.watched))
        server.refused["/api/v1/configmaps"] = 403
        server.cut_off()
        await heard.until(lambda: heard.synced[-1:] == [False])
        del server.refused["/api/v1/configmaps"]
        await heard.until(lambda: heard.synced[-1])


async def test_what_went_while_nobody_followed_is_told_as_gone(served: Served) -> None:
    """The API server has forgotten what happened (410), so everything is listed again."""
    server, _ = served
    for name in ("stays", "goes"):
        server.put(CORE, "ConfigMap", "shop", name)
    async with watching(served) as heard:
        await heard.until(lambda: bool(server.watched))
        server.refused["/api/v1/configmaps"] = 500
        server.cut_off()
        server.remove(CORE, "ConfigMap", "shop", "goes")
        server.put(CORE, "ConfigMap", "shop", "comes")
        server.forget_history()
        del server.refused["/api/v1/configmaps"]
        await heard.until(lambda: heard.there.keys() == {"stays", "comes"})
        assert [each["metadata"]["name"] for each in heard.gone] == ["goes"]
        assert heard.gone[0]["metadata"]["uid"]


async def test_an_object_recreated_while_nobody_followed_is_reported_gone_first(
    served: Served,
) -> None:
    """Else the operator would keep what it remembers about the deleted one for the new one."""
    server, _ = served
    server.put(CORE, "ConfigMap", "shop", "same")
    async with watching(served) as heard:
        await heard.until(lambda: bool(server.watched))
        first = heard.there["same"]["metadata"]["uid"]
        server.refused["/api/v1/configmaps"] = 500
        server.cut_off()
        server.remove(CORE, "ConfigMap", "shop", "same")
        server.put(CORE, "ConfigMap", "shop", "same")
        server.forget_history()
        del server.refused["/api/v1/configmaps"]
        await heard.until(
            lambda: "same" in heard.there and heard.there["same"]["metadata"]["uid"] != first
        )
        assert [each["metadata"]["uid"] for each in heard.gone] == [first]


async def test_who_must_not_watch_is_told_so_and_asks_again_later(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "REFUSED_PAUSE", 0.05)
    server, _ = served
    server.refused["/api/v1/configmaps"] = 403
    async with watching(served) as heard:
        await heard.until(lambda: heard.synced[:1] == [False])
        del server.refused["/api/v1/configmaps"]
        await heard.until(lambda: heard.synced[-1:] == [True])


@pytest.mark.parametrize(
    ("labels", "told"),
    [("role", {"ours"}), ("!role", {"theirs"}), ("role=a", {"ours"}), ("role=b", set())],
)
async def test_the_api_server_filters(served: Served, labels: str, told: set[str]) -> None:
    """Issue 14: every Pod and every Service of the cluster was watched."""
    server, _ = served
    of = WatchSelection(SERVING, "Service", labels=labels)
    server.put(SERVING, "Service", "shop", "ours", metadata={"labels": {"role": "a"}})
    server.put(SERVING, "Service", "shop", "theirs")
    async with watching(served, of) as heard:
        await heard.until(lambda: bool(server.watched and heard.synced))
        assert heard.there.keys() == told
        assert server.watched[0][1]["labelSelector"] == labels
        for document in server.objects.values():
            assert of.matches(document) == (document["metadata"]["name"] in told)


async def test_what_nobody_reads_is_not_kept(served: Served) -> None:
    fields: Any = [{"manager": "x"}]
    served[0].put(CORE, "ConfigMap", "shop", "a", metadata={"managedFields": fields})
    async with watching(served) as heard:
        await heard.until(lambda: "a" in heard.there)
        assert "managedFields" not in heard.there["a"]["metadata"]
