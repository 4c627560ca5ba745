"""The console's HTTP server: serves the page and JSON, and refuses requests of other sites.

    GET  /                                          the page
    GET  /report                                    the last report on dead letters, of `knafka up`
    GET  /report?of={namespace}/{archive}           the last report of a DeadLetterArchive
    GET  /api/reports                               `Reports`: the archives
    GET  /api/reports/{namespace}/{archive}         the report as JSON
    GET  /api/reports/{namespace}/{archive}/replays `ArchiveReplays`
    POST /api/reports/{namespace}/{archive}/replays `ReplayCreation` -> `ArchiveReplay`
    GET  /api/state                                 `If-None-Match`, `?wait=SECONDS` for a change
    GET  /api/triggers/{namespace}/{name}           `TriggerDetails`
    GET  /api/triggers/{namespace}/{name}/failures
    POST /api/triggers/{namespace}/{name}/pause     and `/resume`
         /api/subscriptions/{namespace}/{name}...   the same for Subscriptions
    POST /api/who                                   a structured CloudEvent -> `Verdicts`
    POST /api/replay                                `ReplayRequest` -> `ReplayResult`
    POST /api/sign-in, /api/sign-out                where viewers have tokens (`sign_in`)

Another site's page in the same browser can reach a server on loopback. So three things are checked:

1. The Host header is one of ours: another site could point a DNS name of its own to our address
   (DNS rebinding). Where viewers sign in, any host is accepted, since cookies are bound to a name.
2. The request does not come from a page of another origin.
3. A request that changes something has a header that another site could only send after a CORS
   preflight, which this server never answers.

Nothing runs while no page is open. Not here: what is shown (`document`, `source`), and TLS, which a
gateway adds.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import socket
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from knafka.core.documents import Model
from knafka.core.errors import InvalidDocument, InvalidEvent, KnafkaError
from knafka.core.events import json_format
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
from knafka_console.web.bodies import read_document
from knafka_console.web.page import Page, console_page, problem_page, sign_in_page
from knafka_console.web.sign_in import SignIn, delete_cookies, has_token

CHANGE_HEADER: Final = "knafka-console"
"""The header that a request must have if it changes something."""
STATE_POLL_INTERVAL: Final = 1.0
"""Seconds between two reads of the state while a page waits for a change."""
LONGEST_STATE_WAIT: Final = 20.0
"""Seconds that a request waits for a change at most: less than the timeout of any proxy."""
LARGEST_BODY: Final = 2 * 1024 * 1024
"""Largest size of a request's body, in bytes."""
SERVER_STOP_TIMEOUT: Final = 2.0
"""Seconds that running requests get to end when the server stops."""

SourceOf = Callable[[web.Request], Source]
"""Returns the source of the viewer who sent a request; may raise `Forbidden` and `NotSignedIn`."""

_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Security headers of every answer."""
_KINDS_BY_PATH: Final[Mapping[str, TriggerKind]] = {
    "triggers": "Trigger",
    "subscriptions": "Subscription",
}
"""Kinds by their name in paths."""
_PAGE_PATHS: Final = ("/", "/report")
"""Paths that a browser opens as a page."""
_REPORT_POLICY: Final = "sandbox allow-scripts"
"""Policy of a report from a file, which has scripts of its own: the sandbox keeps it from acting
with our origin. A report that is rendered here has our scripts only."""


class Verdicts(Model):
    """For each Trigger, whether it would get an event."""

    verdicts: tuple[FilterVerdict, ...]


class ActionDone(Model):
    """A sentence about what was done."""

    done: str


class ProblemDocument(Model):
    """A sentence about what is wrong."""

    error: str


class ConsoleServer:
    """A running HTTP server of the console."""

    def __init__(self, runner: web.AppRunner) -> None:
        self._runner = runner

    @classmethod
    async def start(
        cls, listener: socket.socket, hosts: Collection[str], source_of: SourceOf
    ) -> ConsoleServer:
        """Serve on `listener` requests whose Host is one of `hosts` (`127.0.0.1:8090`)."""
        return await cls._start(listener, application(hosts, source_of))

    @classmethod
    async def start_signed_in(cls, listener: socket.socket, sign_in: SignIn) -> ConsoleServer:
        """Serve viewers who sign in with tokens, under any host name."""
        return await cls._start(listener, application(None, sign_in.source_of_request, sign_in))

    @classmethod
    async def _start(cls, listener: socket.socket, app: web.Application) -> ConsoleServer:
        """Serve an application on `listener`."""
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=SERVER_STOP_TIMEOUT)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        return cls(runner)

    async def close(self) -> None:
        """Stop serving."""
        await self._runner.cleanup()


def application(
    hosts: Collection[str] | None, source_of: SourceOf, sign_in: SignIn | None = None
) -> web.Application:
    """Return a console's web application. `hosts` are the accepted Host headers; None: any.
    `sign_in` adds the routes to sign in and out; None: there are none."""
    handlers = _Handlers(source_of)
    app = web.Application(middlewares=[_guard_middleware(hosts)], client_max_size=LARGEST_BODY)
    if sign_in is not None:
        app.add_routes(sign_in.routes())
    trigger = f"/api/{{kind:{'|'.join(_KINDS_BY_PATH)}}}/{{namespace}}/{{name}}"
    archive = "/api/reports/{namespace}/{name}"
    app.add_routes(
        [
            web.get("/", handlers.page),
            web.get("/report", handlers.report),
            web.get("/api/reports", handlers.reports),
            web.get(archive, handlers.report_json),
            web.get(f"{archive}/replays", handlers.archive_replays),
            web.post(f"{archive}/replays", handlers.create_archive_replay),
            web.get("/api/state", handlers.state),
            web.get(trigger, handlers.details),
            web.get(f"{trigger}/failures", handlers.failures),
            web.post(f"{trigger}/{{action:pause|resume}}", handlers.pause),
            web.post("/api/who", handlers.verdicts),
            web.post("/api/replay", handlers.replay),
        ]
    )
    app.on_shutdown.append(handlers.close)
    return app


def refusal_reason(
    hosts: Collection[str] | None, method: str, path: str, headers: Mapping[str, str]
) -> str:
    """Return why one of the module's three checks refuses a request; empty if none does.

    `hosts` are the accepted Host headers (None: any). `headers` must find names in any case.
    """
    host = headers.get("Host", "").lower()
    if hosts is None:
        hosts = [host]  # any, but an Origin must name the same host
    if not host or host not in hosts:  # check 1
        return "this address is served under its own name only"
    origin = headers.get("Origin")
    if origin is not None and origin.partition("://")[2].lower() not in hosts:  # check 2
        return "another site's page has asked for this"
    fetch_site = headers.get("Sec-Fetch-Site", "none")  # "none": typed by the user, or no browser
    is_link = method == "GET" and not path.startswith("/api/")  # other sites may link to a page
    if fetch_site not in ("same-origin", "none") and not is_link:  # check 2
        return "another site's page has asked for this"
    if method not in ("GET", "HEAD") and CHANGE_HEADER not in headers:  # check 3
        return f"a request that changes something needs the header {CHANGE_HEADER}"
    return ""


def _guard_middleware(hosts: Collection[str] | None) -> Middleware:
    """Return a middleware that refuses requests of other sites, and adds the security headers."""

    @web.middleware
    async def answer_guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request by its handler, or 403 if it is refused."""
        if problem := refusal_reason(hosts, request.method, request.path, request.headers):
            response: web.StreamResponse = _json_answer(
                ProblemDocument(error=problem), HTTPStatus.FORBIDDEN
            )
        else:
            response = await _answer_or_problem(request, handler)
        response.headers.update(_HEADERS)
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    return answer_guarded


async def _answer_or_problem(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Return the handler's answer, or an answer that says which error it raised."""
    try:
        return await handler(request)
    except NotSignedIn as error:
        answer = _problem_answer(request, str(error), HTTPStatus.UNAUTHORIZED)
        answer.headers["WWW-Authenticate"] = "Bearer"
        # Another site's link comes without the cookies (SameSite=Strict): then keep them.
        if has_token(request):
            delete_cookies(answer)
        return answer
    except KnafkaError as error:
        return _problem_answer(request, str(error), _http_status(error))
    except web.HTTPException as error:
        return _problem_answer(request, error.reason, HTTPStatus(error.status))


def _http_status(error: KnafkaError) -> HTTPStatus:
    """Return the HTTP status code for an error; 409 (Conflict) if no other code fits."""
    match error:
        case InvalidEvent() | InvalidDocument():
            return HTTPStatus.BAD_REQUEST
        case NotFound():
            return HTTPStatus.NOT_FOUND
        case Forbidden():
            return HTTPStatus.FORBIDDEN
        case _:
            return HTTPStatus.CONFLICT


def _problem_answer(request: web.Request, sentence: str, status: HTTPStatus) -> web.Response:
    """Return an answer with a sentence about what is wrong: JSON, or a page if a page was
    requested."""
    if request.path not in _PAGE_PATHS:
        return _json_answer(ProblemDocument(error=sentence), status)
    is_sign_in = status is HTTPStatus.UNAUTHORIZED
    return _page_answer(sign_in_page() if is_sign_in else problem_page(sentence), status)


class _Handlers:
    """The handlers of all routes."""

    def __init__(self, source_of: SourceOf) -> None:
        self._source_of = source_of
        self._closing = asyncio.Event()

    async def close(self, _: web.Application) -> None:
        """End requests that wait for a change, since the server stops."""
        self._closing.set()

    async def page(self, request: web.Request) -> web.Response:
        """Return the console's page."""
        self._source_of(request)  # without a token it raises, and the sign-in page is shown
        return _page_answer(console_page())

    async def report(self, request: web.Request) -> web.Response:
        """Return a page: the last report of `knafka up`, or with `?of=` that of an archive."""
        if "of" in request.query:
            namespace, _, name = request.query["of"].partition("/")
            report_page = await self._archive_reports(request).page(ArchiveName(namespace, name))
            return _page_answer(Page(*report_page))
        html = await self._source_of(request).report()
        if html is None:
            raise NotFound("there is no report yet: knafka dead-letters report makes one")
        policy = {"Content-Security-Policy": _REPORT_POLICY}
        return web.Response(body=html, content_type="text/html", charset="utf-8", headers=policy)

    def _archive_reports(self, request: web.Request) -> ArchiveReports:
        """Return the reports of the viewer's source. Raises `NotFound` if it has no archives."""
        reports = self._source_of(request).reports
        if reports is None:
            raise NotFound("DeadLetterArchives exist in clusters only: knafka console shows them")
        return reports

    async def reports(self, request: web.Request) -> web.Response:
        """Return all archives that the viewer may list."""
        return _json_answer(await self._archive_reports(request).list())

    async def report_json(self, request: web.Request) -> web.Response:
        """Return the last report of an archive, as JSON."""
        body = await self._archive_reports(request).json(_archive_name(request))
        return web.Response(body=body, content_type="application/json", charset="utf-8")

    async def archive_replays(self, request: web.Request) -> web.Response:
        """Return the DeadLetterReplays of an archive, and whether the viewer may create one."""
        return _json_answer(await self._archive_reports(request).replays(_archive_name(request)))

    async def create_archive_replay(self, request: web.Request) -> web.Response:
        """Create a DeadLetterReplay for one group of an archive's report, and return it."""
        reports = self._archive_reports(request)
        creation = await read_document(ReplayCreation, request)
        return _json_answer(
            await reports.create_replay(_archive_name(request), creation), HTTPStatus.CREATED
        )

    async def state(self, request: web.Request) -> web.Response:
        """Return the state once its tag isn't the one in `If-None-Match`, which the page has; 304
        if that takes longer than `?wait=` seconds."""
        source = self._source_of(request)
        known_tag = request.headers.get("If-None-Match")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _wait_seconds(request.query.get("wait", "0"))
        while True:
            body = (await source.state()).model_dump_json(by_alias=True).encode()
            tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
            if tag != known_tag:
                headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
                return web.Response(
                    body=body, content_type="application/json", charset="utf-8", headers=headers
                )
            remaining = deadline - loop.time()
            is_closed = request.transport is None or request.transport.is_closing()
            if remaining <= 0 or is_closed or self._closing.is_set():
                return web.Response(status=HTTPStatus.NOT_MODIFIED, headers={"ETag": tag})
            try:
                async with asyncio.timeout(min(remaining, STATE_POLL_INTERVAL)):
                    await self._closing.wait()
            except TimeoutError:
                pass  # the server goes on, so read the state again

    async def details(self, request: web.Request) -> web.Response:
        """Return the details of a Trigger or Subscription."""
        return _json_answer(await self._source_of(request).details(_trigger_name(request)))

    async def failures(self, request: web.Request) -> web.Response:
        """Return the latest dead letters of a Trigger or Subscription."""
        return _json_answer(await self._source_of(request).failures(_trigger_name(request)))

    async def pause(self, request: web.Request) -> web.Response:
        """Pause or resume a Trigger or Subscription, as the path says."""
        paused = request.match_info["action"] == "pause"
        done = await self._source_of(request).pause(_trigger_name(request), paused=paused)
        return _json_answer(ActionDone(done=done))

    async def verdicts(self, request: web.Request) -> web.Response:
        """Return for each Trigger whether it would get the event in the request's body."""
        source = self._source_of(request)
        event = json_format.read(await request.read())
        return _json_answer(Verdicts(verdicts=tuple(await source.verdicts(event))))

    async def replay(self, request: web.Request) -> web.Response:
        """Send dead letters of a Trigger again, or only return which would be sent."""
        source = self._source_of(request)
        replay_request = await read_document(ReplayRequest, request)
        trigger = TriggerName(replay_request.namespace, replay_request.name, replay_request.kind)
        return _json_answer(
            await source.replay(trigger, replay_request.events, dry_run=replay_request.dry_run)
        )


def _archive_name(request: web.Request) -> ArchiveName:
    """Return the archive that a request's path names."""
    return ArchiveName(request.match_info["namespace"], request.match_info["name"])


def _trigger_name(request: web.Request) -> TriggerName:
    """Return the Trigger or Subscription that a request's path names."""
    names = request.match_info
    return TriggerName(names["namespace"], names["name"], _KINDS_BY_PATH[names["kind"]])


def _wait_seconds(text: str) -> float:
    """Return the seconds of `?wait=`, from 0 (also for NaN) to `LONGEST_STATE_WAIT`. Raises
    `InvalidDocument` if it is no number."""
    try:
        seconds = float(text)
    except ValueError:
        raise InvalidDocument("wait", f"must be a number of seconds, not {text!r}") from None
    return 0.0 if math.isnan(seconds) else min(max(seconds, 0.0), LONGEST_STATE_WAIT)


def _page_answer(page: Page, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    """Return an answer with a page and its Content-Security-Policy."""
    headers = {"Content-Security-Policy": page.policy}
    return web.Response(text=page.html, status=status, content_type="text/html", headers=headers)


def _json_answer(document: Model, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    """Return an answer with a document as JSON."""
    return web.Response(
        text=document.model_dump_json(by_alias=True), status=status, content_type="application/json"
    )
