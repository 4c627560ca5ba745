"""Reports of DeadLetterArchives at the console: who sees which, and who has failures sent again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from support.api_server import ApiServer, Rights
from support.console_cluster import console_cluster, put_archives, report_in
from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryLog
from support.reports import sample_groups, sample_report

from knafka.core.errors import LogError
from knafka.core.names import report_key, reports_topic
from knafka_client.declared.declared_source import KafkaNotReached
from knafka_client.declared.kubernetes_api import KubernetesApi
from knafka_client.sockets import HOST, listen, port_of
from knafka_console.function import client_with_token
from knafka_console.model.document import ArchiveReplays, ReplayCreation, ReplaySelect
from knafka_console.model.source import (
    ArchiveName,
    ArchiveReports,
    Forbidden,
    NotFound,
    NotSignedIn,
)
from knafka_console.sources.cluster_console import ClusterConsole
from knafka_console.sources.cluster_kafka import ClusterKafka
from knafka_console.sources.figures import Figures
from knafka_console.sources.reports import REPORT_GROUP_LABEL, ConsoleScope, ReportTopics
from knafka_console.web.server import CHANGE_HEADER, ConsoleServer
from knafka_console.web.sign_in import SignIn, Viewer
from knafka_jobs.report.report_document import Report
from knafka_operator.model.sensors import KNAFKA

KEPT = ArchiveName("shop", "kept")
GROUP = "0123456789ab"
ASKED = ReplayCreation(
    request="0a1b2c3d4e",
    group=GROUP,
    select=ReplaySelect(trigger="mail", reason="status", code=503),
)


@pytest.fixture
def cluster() -> Iterator[tuple[ApiServer, Any]]:
    with console_cluster() as (server, client):
        client.configuration.api_key = {"authorization": "Bearer function"}
        put_archives(server)
        server.users = {
            "function": lambda asked: asked["namespace"] == "knafka",
            "ada": rights("shop", "get archives/report", "create replays"),
            "bob": rights("shop", "get archives/report"),
            "eve": rights("shop"),
            "joe": rights("bank", "get archives/report", "create replays"),
        }
        yield server, client


def rights(namespace: str, *more: str) -> Rights:
    """To look in one namespace, and to do more there."""

    def allowed(asked: Mapping[str, str]) -> bool:
        if asked["namespace"] != namespace:
            return False
        parts = filter(None, [asked["resource"], asked.get("subresource", "")])
        said = f"{asked['verb']} {'/'.join(parts)}".replace("deadletter", "")
        looks = asked["verb"] in ("get", "list") and not asked.get("subresource")
        return (looks and asked["resource"] != "secrets") or said in more

    return allowed


@pytest.fixture
def memory() -> MemoryLog:
    return MemoryLog()


class NoFigures:
    async def current(self) -> Figures:
        return Figures()


def console_of(
    client: Any,
    memory: MemoryLog,
    token: str,
    *namespaces: str,
    topics: ReportTopics | None = None,
    **scope: Any,
) -> ClusterConsole:
    viewer = client_with_token(client, token)
    return ClusterConsole(
        KubernetesApi(viewer),
        NoFigures(),
        ClusterKafka(viewer, "knafka", system=client),
        ConsoleScope("dev", namespaces, **{"reads_kafka_with_own_account": True, **scope}),
        topics=topics or ReportTopics(lambda _: MemoryAdmin(memory)),
    )


def reports_of(client: Any, memory: MemoryLog, token: str, *namespaces: str) -> ArchiveReports:
    return console_of(client, memory, token, *namespaces or ("shop",)).reports


async def test_archives_are_listed_with_their_last_reports(
    cluster: tuple[ApiServer, Any], memory: MemoryLog
) -> None:
    found = await reports_of(cluster[1], memory, "eve").list()
    kept, new = found.archives
    assert (kept.namespace, kept.name, kept.broker, kept.unresolved) == ("shop", "kept", "main", 7)
    assert (new.name, new.made, new.waiting) == ("new", "", 5)
    assert found.problems == ()


async def test_the_last_report_of_an_archive_is_found_among_those_of_its_broker(
    cluster: tuple[ApiServer, Any], memory: MemoryLog
) -> None:
    for number in range(3):
        report_in(memory, KEPT, sample_report().model_copy(update={"id": f"r{number}"}))
    for _ in range(400):  # one archive may report each minute, and another each month
        report_in(memory, ArchiveName("shop", "other"), sample_report())
    found = await reports_of(cluster[1], memory, "ada").json(KEPT)
    assert Report.model_validate_json(found).id == "r2"
    with pytest.raises(NotFound, match="shop/new has no report yet"):
        await reports_of(cluster[1], memory, "ada").json(ArchiveName("shop", "new"))


async def test_what_a_report_holds_needs_a_right_of_its_own(
    cluster: tuple[ApiServer, Any], memory: MemoryLog
) -> None:
    """Who may see an archive needn't see what failed events carry."""
    report_in(memory, KEPT, sample_report())
    with pytest.raises(Forbidden, match="you may not get deadletterarchives/report in shop"):
        await reports_of(cluster[1], memory, "eve").json(KEPT)
    assert await reports_of(cluster[1], memory, "bob").json(KEPT)
    with pytest.raises(NotSignedIn):
        await reports_of(cluster[1], memory, "nobody").json(KEPT)


async def test_who_reads_kafka_by_own_rights_needs_no_other(
    cluster: tuple[ApiServer, Any], memory: MemoryLog
) -> None:
    """`knafka console`: its Secret is read as the viewer, or not at all."""
    report_in(memory, KEPT, sample_report())
    console = console_of(cluster[1], memory, "eve", "shop", reads_kafka_with_own_account=False)
    assert await console.reports.json(KEPT)


async def test_a_viewer_of_another_namespace_sees_nothing_of_it(
    cluster: tuple[ApiServer, Any], memory: MemoryLog
) -> None:
    report_in(memory, KEPT, sample_report())
    joe = reports_of(cluster[1], memory, "joe", "bank", "shop")
    found = await joe.list()
    assert [each.namespace for each in found.archives] == ["bank"]
    assert len(found.problems) == 1
    assert await joe.replays(KEPT) == ArchiveReplays(may=False)
    for step in (joe.json(KEPT), joe.page(KEPT), joe.create_replay(KEPT, ASKED)):
        with pytest.raises(Forbidden):
            await step
    with pytest.raises(NotFound):  # of the same name, and none of shop's
        await joe.json(ArchiveName("bank", "kept"))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (ArchiveName("shop", "nobody"), "there is no DeadLetterArchive shop/nobody"),
        (ArchiveName("shop", "../x"), "there is no DeadLetterArchive"),
        (ArchiveName("..", "kept"), "there is no DeadLetterArchive"),
        (ArchiveName("shop", "unscheduled"), "set spec.report.schedule"),
        (ArchiveName("shop", "unserved"), "could not be put into Kafka: no ACL"),
        (ArchiveName("shop", "brokerless"), "there is no Broker shop/gone"),
    ],
)
async def test_without_a_report_it_is_said_why_and_what_to_do(
    cluster: tuple[ApiServer, Any], memory: MemoryLog, name: ArchiveName, why: str
) -> None:
    for each, more in (
        ("unscheduled", {"spec": {"broker": "main"}}),
        ("unserved", {"spec": {"broker": "main"}, "status": {"report": {"notServed": "no ACL"}}}),
        ("brokerless", {"spec": {"broker": "gone"}}),
    ):
        cluster[0].put(KNAFKA, "DeadLetterArchive", "shop", each, **more)
    with pytest.raises(NotFound, match=why):
        await reports_of(cluster[1], memory, "ada").json(name)


async def test_a_kafka_that_is_away_is_not_an_archive_without_a_report(
    cluster: tuple[ApiServer, Any], memory: MemoryLog
) -> None:
    def away(_: object) -> MemoryAdmin:
        raise LogError("no answer")

    console = console_of(
        cluster[1], memory, "ada", "shop", topics=ReportTopics(away), unreached_hint="look at Kafka"
    )
    with pytest.raises(KafkaNotReached, match="no answer: look at Kafka"):
        await console.reports.json(KEPT)


async def test_a_cluster_without_archives_says_so(
    cluster: tuple[ApiServer, Any], memory: MemoryLog
) -> None:
    cluster[0].refused[f"/apis/{KNAFKA}/namespaces/shop/deadletterarchives"] = 404
    with pytest.raises(NotFound, match="their CRD is not installed"):
        await reports_of(cluster[1], memory, "ada").list()


async def test_a_record_that_is_no_report_is_a_sentence(
    cluster: tuple[ApiServer, Any], memory: MemoryLog
) -> None:
    topic = reports_topic("shop", "main")
    memory.create(topic)
    memory.store(topic, report_key(*KEPT), b"{}", [])
    with pytest.raises(NotFound, match="can't be read here"):
        await reports_of(cluster[1], memory, "ada").page(KEPT)


async def test_a_button_creates_a_replay_with_the_viewers_own_rights(
    cluster: tuple[ApiServer, Any], memory: MemoryLog
) -> None:
    server, client = cluster
    ada, bob = (reports_of(client, memory, name) for name in ("ada", "bob"))
    assert (await ada.replays(KEPT)).may
    assert not (await bob.replays(KEPT)).may
    with pytest.raises(Forbidden, match="can't create deadletterreplays"):
        await bob.create_replay(KEPT, ASKED)

    made = await ada.create_replay(KEPT, ASKED)
    assert made == await ada.create_replay(KEPT, ASKED), "asked twice over, it is one"
    stored = server.found(KNAFKA, "DeadLetterReplay", "shop", made.name)
    assert stored is not None
    select = {"trigger": "mail", "reason": "status", "code": 503}
    assert stored["spec"] == {"archive": "kept", "select": select}
    assert stored["metadata"]["labels"] == {REPORT_GROUP_LABEL: GROUP}

    status = {"phase": "Succeeded", "sent": 3, "message": "done"}
    server.put(KNAFKA, "DeadLetterReplay", "shop", made.name, spec=stored["spec"], status=status,
               metadata=stored["metadata"])  # fmt: skip
    server.put(KNAFKA, "DeadLetterReplay", "shop", "others", spec={"archive": "other"})
    (told,) = (await bob.replays(KEPT)).all
    assert (told.group, told.phase, told.sent, told.message) == (GROUP, "Succeeded", 3, "done")
    assert told.selected is None


async def test_the_name_of_a_replay_fits_however_long_the_archives_is(
    cluster: tuple[ApiServer, Any], memory: MemoryLog
) -> None:
    ada = reports_of(cluster[1], memory, "ada")
    made = await ada.create_replay(ArchiveName("shop", "a" * 52), ASKED)
    assert made.name == f"{'a' * 41}-0a1b2c3d4e"


@asynccontextmanager
async def browser(client: Any, memory: MemoryLog) -> AsyncIterator[aiohttp.ClientSession]:
    """Somebody who asks the function."""

    def source(viewer: Viewer) -> ClusterConsole:
        return console_of(client, memory, viewer.token, *viewer.namespaces)

    with listen() as listener:
        console = await ConsoleServer.start_signed_in(listener, SignIn(source, plain_http=True))
        try:
            async with aiohttp.ClientSession(f"http://{HOST}:{port_of(listener)}") as session:
                yield session
        finally:
            await console.close()


AS_ADA = {"Authorization": "Bearer ada"}
PAGE = "/report?of=shop/kept"
REPLAYS = "/api/reports/shop/kept/replays"


async def test_the_report_is_a_page_that_runs_our_scripts_alone(
    cluster: tuple[ApiServer, Any], memory: MemoryLog
) -> None:
    report_in(memory, KEPT, sample_report(*sample_groups(3)))
    async with browser(cluster[1], memory) as session:
        async with session.get(PAGE, headers=AS_ADA) as response:
            text, policy = await response.text(), response.headers["Content-Security-Policy"]
        assert response.status == 200
        assert "Failed events by Trigger and reason" in text
        for each in ("default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'"):
            assert each in policy
        assert "unsafe" not in policy
        async with session.get("/api/reports/shop/kept", headers=AS_ADA) as response:
            assert Report.model_validate(await response.json()).groups


async def test_who_opens_a_link_gets_a_page_whatever_is_wrong(
    cluster: tuple[ApiServer, Any], memory: MemoryLog
) -> None:
    async with browser(cluster[1], memory) as session:
        for token, status, said in (
            ("", 401, "sign-in"),
            ("nobody", 401, "sign-in"),
            ("eve", 403, "you may not get deadletterarchives/report in shop"),
            ("joe", 403, "deadletterarchives"),
            ("ada", 404, "has no report yet"),
        ):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            async with session.get(PAGE, headers=headers) as response:
                assert (response.status, response.content_type) == (status, "text/html")
                assert said in await response.text()
        async with session.get("/report?of=<img>/x", headers=AS_ADA) as response:
            assert "<img>" not in await response.text()


async def test_another_sites_link_ends_nobodys_session(
    cluster: tuple[ApiServer, Any], memory: MemoryLog
) -> None:
    """A browser keeps our cookies from it, which is no reason to take them for none."""
    async with browser(cluster[1], memory) as session:
        async with session.get(PAGE, headers={"Sec-Fetch-Site": "cross-site"}) as response:
            assert response.status == 401
            assert response.cookies == {}
        async with session.get(PAGE, headers={"Cookie": "knafka-token=nobody"}) as response:
            assert "knafka-token" in response.cookies, "one that is no good goes"


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({}, ASKED.model_dump_json(by_alias=True), 403),
        (
            {CHANGE_HEADER: "1", "Origin": "https://evil.test"},
            ASKED.model_dump_json(by_alias=True),
            403,
        ),
        ({CHANGE_HEADER: "1"}, "{}", 400),
        ({CHANGE_HEADER: "1"}, '{"request":"../../x","group":"0123456789ab","select":{}}', 400),
        ({CHANGE_HEADER: "1"}, ASKED.model_dump_json(by_alias=True, exclude_none=True), 201),
    ],
)
async def test_a_replay_needs_what_every_change_needs(
    cluster: tuple[ApiServer, Any],
    memory: MemoryLog,
    headers: dict[str, str],
    body: str,
    status: int,
) -> None:
    async with browser(cluster[1], memory) as session:
        async with session.post(REPLAYS, data=body, headers={**AS_ADA, **headers}) as response:
            assert response.status == status
        there = [each for each in cluster[0].objects if "/deadletterreplays/" in each]
        assert bool(there) is (status == 201)


def test_a_report_is_shown_without_spark() -> None:
    """The operator's image has none: what reports are made with stays out of the console."""
    probe = "import sys, knafka_jobs.report.report_page; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert not {"pyspark", "delta", "py4j"} & {x.partition(".")[0] for x in ran.stdout.split()}
