"""The console's HTTP server: its page, its JSON, and who may ask for them.

    GET  /                                          the page
    GET  /report                                    the last report on dead letters, of `knafka up`
    GET  /report?of={namespace}/{archive}           that of a DeadLetterArchive
    GET  /api/reports                               `Reports`: the archives
    GET  /api/reports/{namespace}/{archive}         the report as JSON
    GET  /api/reports/{namespace}/{archive}/replays `ArchiveReplays`
    POST /api/reports/{namespace}/{archive}/replays `ReplayCreation` -> `ArchiveReplay`
    GET  /api/state                                 `If-None-Match`, `?wait=SECONDS` for a change
    GET  /api/triggers/{namespace}/{name}           declared values, conditions, what one may do
    GET  /api/triggers/{namespace}/{name}/failures
    POST /api/triggers/{namespace}/{name}/pause     and `/resume`
         /api/subscriptions/{namespace}/{name}...   the same of Subscriptions
    POST /api/who                                   a structured CloudEvent -> verdicts
    POST /api/replay                                `ReplayRequest` -> `Replayed`
    POST /api/sign-in, /api/sign-out                where viewers have tokens (`sign_in`)

Another site's page in the same browser can reach a server on loopback. So a request has to name one
of our hosts (or a name that somebody else's DNS gives our address would do; where viewers sign in,
any host is ours, as a session is bound to its name), and none that a page of another origin has
made is answered; one that changes something needs a header that such a page could only send after a
preflight, to which nobody here agrees.

Nothing runs while no page is open. Not here: what is shown (`document`), where it is from
(`source`), and TLS, which is a gateway's.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from knafka.core import documents, json_format
from knafka.core.documents import Model
from knafka.core.errors import InvalidDocument, InvalidEvent, KnafkaError
from knafka_console.model.document import FilterVerdict, ReplayCreation, ReplayRequest, TriggerKind
from knafka_console.model.source import (
    ArchiveName,
    ArchiveReports,
    Forbidden,
    NotFound,
    NotSignedIn,
    Source,
    TriggerName,
)
from knafka_console.web.page import Page, page, problem_page, sign_in_page
from knafka_console.web.sign_in import SignIn, forget, has_token

CHANGE_HEADER: Final = "knafka-console"
"""The header of a request that changes something."""
STATE_POLL_INTERVAL: Final = 1.0
"""Seconds between two looks while a page waits for a change."""
LONGEST_STATE_WAIT: Final = 20.0
"""Seconds that one waits at most: below any proxy's timeout."""
LARGEST_BODY: Final = 2 * 1024 * 1024
"""Bytes of a request's body."""
SERVER_STOP_TIMEOUT: Final = 2.0
"""Seconds for what is being answered when the server ends."""

SourceOf = Callable[[web.Request], Source]
"""The source for the user who sent a request; may raise `Forbidden`."""

_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_KINDS: Final[Mapping[str, TriggerKind]] = {
    "triggers": "Trigger",
    "subscriptions": "Subscription",
}
"""By what paths call them."""
_PAGES: Final = ("/", "/report")
_REPORT_POLICY: Final = "sandbox allow-scripts"
"""A report from a file has a policy and scripts of its own; this one keeps it from being of our
origin. One that was rendered here has our scripts, and holds data alone that are others'."""


class Verdicts(Model):
    """Which Triggers would get an event."""

    verdicts: tuple[FilterVerdict, ...]


class ActionDone(Model):
    """What was done, in a sentence."""

    done: str


class ProblemDocument(Model):
    """What is wrong, in a sentence."""

    error: str


class ConsoleServer:
    """Serves until it is closed."""

    def __init__(self, runner: web.AppRunner) -> None:
        self._runner = runner

    @classmethod
    async def start(
        cls, listener: socket.socket, hosts: Collection[str], source_of: SourceOf
    ) -> ConsoleServer:
        """Serve on `listener` for requests to one of `hosts` (`127.0.0.1:8090`)."""
        return await cls._start(listener, application(hosts, source_of))

    @classmethod
    async def start_signed_in(cls, listener: socket.socket, sign_in: SignIn) -> ConsoleServer:
        """Start a server for viewers who sign in with tokens, under any host name."""
        return await cls._start(listener, application(None, sign_in.source, sign_in))

    @classmethod
    async def _start(cls, listener: socket.socket, app: web.Application) -> ConsoleServer:
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=SERVER_STOP_TIMEOUT)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        return cls(runner)

    async def close(self) -> None:
        await self._runner.cleanup()


def application(
    hosts: Collection[str] | None, source_of: SourceOf, sign_in: SignIn | None = None
) -> web.Application:
    """Everything behind one address; `hosts` None: any, as for viewers who sign in."""
    handlers = _Handlers(source_of)
    app = web.Application(middlewares=[_guarded(hosts)], client_max_size=LARGEST_BODY)
    if sign_in is not None:
        app.add_routes(sign_in.routes())
    trigger = f"/api/{{kind:{'|'.join(_KINDS)}}}/{{namespace}}/{{name}}"
    archive = "/api/reports/{namespace}/{name}"
    app.add_routes(
        [
            web.get("/", handlers.page),
            web.get("/report", handlers.report),
            web.get("/api/reports", handlers.reports),
            web.get(archive, handlers.report_json),
            web.get(f"{archive}/replays", handlers.archive_replays),
            web.post(f"{archive}/replays", handlers.replay_of_archive),
            web.get("/api/state", handlers.state),
            web.get(trigger, handlers.details),
            web.get(f"{trigger}/failures", handlers.failures),
            web.post(f"{trigger}/{{action:pause|resume}}", handlers.pause),
            web.post("/api/who", handlers.who),
            web.post("/api/replay", handlers.replay),
        ]
    )
    app.on_shutdown.append(handlers.close)
    return app


def refusal(
    hosts: Collection[str] | None, method: str, path: str, headers: Mapping[str, str]
) -> str:
    """Why a request isn't answered; empty: it is. Names of `headers` as HTTP compares them."""
    host = headers.get("Host", "").lower()
    if hosts is None:
        hosts = [host]
    if not host or host not in hosts:
        return "this address is served under its own name only"
    origin = headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc.lower() not in hosts:
        return "another site's page has asked for this"
    site = headers.get("Sec-Fetch-Site", "none")
    is_link = method == "GET" and not path.startswith("/api/")
    if site not in ("same-origin", "none") and not is_link:
        return "another site's page has asked for this"
    if method not in ("GET", "HEAD") and CHANGE_HEADER not in headers:
        return f"a request that changes something needs the header {CHANGE_HEADER}"
    return ""


def _guarded(hosts: Collection[str] | None) -> Middleware:
    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if why := refusal(hosts, request.method, request.path, request.headers):
            response: web.StreamResponse = _answer(ProblemDocument(error=why), HTTPStatus.FORBIDDEN)
        else:
            response = await _answered(request, handler)
        response.headers.update(_HEADERS)
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    return guarded


async def _answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors as the sentence that they are: as JSON, or as a page where one was asked for."""
    try:
        return await handler(request)
    except NotSignedIn as error:
        answer = _problem(request, str(error), HTTPStatus.UNAUTHORIZED)
        answer.headers["WWW-Authenticate"] = "Bearer"
        # A browser that follows another site's link shows us no cookies: they stay.
        if has_token(request):
            forget(answer)
        return answer
    except KnafkaError as error:
        return _problem(request, str(error), _status_of(error))
    except web.HTTPException as error:
        return _problem(request, error.reason, HTTPStatus(error.status))


def _status_of(error: KnafkaError) -> HTTPStatus:
    match error:
        case InvalidEvent() | InvalidDocument():
            return HTTPStatus.BAD_REQUEST
        case NotFound():
            return HTTPStatus.NOT_FOUND
        case Forbidden():
            return HTTPStatus.FORBIDDEN
        case _:
            return HTTPStatus.CONFLICT


def _problem(request: web.Request, sentence: str, status: HTTPStatus) -> web.Response:
    if request.path not in _PAGES:
        return _answer(ProblemDocument(error=sentence), status)
    is_sign_in = status is HTTPStatus.UNAUTHORIZED
    return _page(sign_in_page() if is_sign_in else problem_page(sentence), status)


class _Handlers:
    def __init__(self, source_of: SourceOf) -> None:
        self._source_of = source_of
        self._closing = asyncio.Event()

    async def close(self, _: web.Application) -> None:
        """End what waits for a change."""
        self._closing.set()

    async def page(self, request: web.Request) -> web.Response:
        self._source_of(request)  # without a token there is the page that asks for one
        return _page(page())

    async def report(self, request: web.Request) -> web.Response:
        if "of" in request.query:
            namespace, _, name = request.query["of"].partition("/")
            made = await self._reports(request).page(ArchiveName(namespace, name))
            return _page(Page(*made))
        html = await self._source_of(request).report()
        if html is None:
            raise NotFound("there is no report yet: knafka dead-letters report makes one")
        policy = {"Content-Security-Policy": _REPORT_POLICY}
        return web.Response(body=html, content_type="text/html", charset="utf-8", headers=policy)

    def _reports(self, request: web.Request) -> ArchiveReports:
        reports = self._source_of(request).reports
        if reports is None:
            raise NotFound("DeadLetterArchives are a cluster's: knafka console shows them")
        return reports

    async def reports(self, request: web.Request) -> web.Response:
        return _answer(await self._reports(request).list())

    async def report_json(self, request: web.Request) -> web.Response:
        body = await self._reports(request).json(_archive(request))
        return web.Response(body=body, content_type="application/json", charset="utf-8")

    async def archive_replays(self, request: web.Request) -> web.Response:
        return _answer(await self._reports(request).replays(_archive(request)))

    async def replay_of_archive(self, request: web.Request) -> web.Response:
        reports = self._reports(request)
        asked = documents.parse_json(ReplayCreation, await request.text())
        return _answer(await reports.replay(_archive(request), asked), HTTPStatus.CREATED)

    async def state(self, request: web.Request) -> web.Response:
        """At once, or once it differs from what the page has, `wait` seconds later at most."""
        source = self._source_of(request)
        known = request.headers.get("If-None-Match")
        loop = asyncio.get_running_loop()
        until = loop.time() + _seconds(request.query.get("wait", "0"))
        while True:
            body = (await source.state()).model_dump_json(by_alias=True).encode()
            tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
            if tag != known:
                headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
                return web.Response(
                    body=body, content_type="application/json", charset="utf-8", headers=headers
                )
            left = until - loop.time()
            gone = request.transport is None or request.transport.is_closing()
            if left <= 0 or gone or self._closing.is_set():
                return web.Response(status=HTTPStatus.NOT_MODIFIED, headers={"ETag": tag})
            try:
                async with asyncio.timeout(min(left, STATE_POLL_INTERVAL)):
                    await self._closing.wait()
            except TimeoutError:
                pass

    async def details(self, request: web.Request) -> web.Response:
        return _answer(await self._source_of(request).details(_trigger(request)))

    async def failures(self, request: web.Request) -> web.Response:
        return _answer(await self._source_of(request).failures(_trigger(request)))

    async def pause(self, request: web.Request) -> web.Response:
        paused = request.match_info["action"] == "pause"
        done = await self._source_of(request).pause(_trigger(request), paused=paused)
        return _answer(ActionDone(done=done))

    async def who(self, request: web.Request) -> web.Response:
        source = self._source_of(request)
        event = json_format.read(await request.read())
        return _answer(Verdicts(verdicts=tuple(await source.verdicts(event))))

    async def replay(self, request: web.Request) -> web.Response:
        source = self._source_of(request)
        asked = documents.parse_json(ReplayRequest, await request.text())
        trigger = TriggerName(asked.namespace, asked.name, asked.kind)
        return _answer(await source.replay(trigger, asked.events, dry_run=asked.dry_run))


def _archive(request: web.Request) -> ArchiveName:
    return ArchiveName(request.match_info["namespace"], request.match_info["name"])


def _trigger(request: web.Request) -> TriggerName:
    names = request.match_info
    return TriggerName(names["namespace"], names["name"], _KINDS[names["kind"]])


def _seconds(text: str) -> float:
    try:
        asked = float(text)
    except ValueError:
        raise InvalidDocument("wait", f"want a number of seconds, got {text!r}") from None
    return min(max(asked, 0.0), LONGEST_STATE_WAIT) if asked == asked else 0.0


def _page(made: Page, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    headers = {"Content-Security-Policy": made.policy}
    return web.Response(text=made.html, status=status, content_type="text/html", headers=headers)


def _answer(document: Model, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    return web.Response(
        text=document.model_dump_json(by_alias=True), status=status, content_type="application/json"
    )
