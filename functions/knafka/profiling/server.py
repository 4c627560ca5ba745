"""Serves profiles over HTTP at http://127.0.0.1:8008/debug/pprof/ (DSP-14).

The server runs in threads of its own, so that a process whose event loop hangs can be profiled,
too. It listens on the loopback address only, where `kubectl port-forward` ends: a profile reveals
much about a process, and there is no authentication.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import parse_qs, urlsplit

from knafka.profiling import cpu, heap, threads
from knafka.profiling.format import Profile, encode

PORT: Final = 8008
"""Port of the server, unless it is taken."""
ADDRESS: Final = "127.0.0.1"
PREFIX: Final = "/debug/pprof/"
"""Beginning of all paths; those of Go's profiling server begin so, too."""
MAX_SECONDS: Final = 600.0
"""Longest duration of a profile, in seconds."""

INDEX: Final = f"""\
Profiles of this process, for `go tool pprof URL` or speedscope:

{PREFIX}profile?seconds=30   CPU time, and wall-clock time, which includes waiting
{PREFIX}heap?seconds=30      what Python allocates meanwhile and still holds
{PREFIX}threads              how many threads are where
{PREFIX}threads?debug=1      every thread and task, to be read
"""
"""Text of the response at `PREFIX`."""
DEFAULT_PROFILE_SECONDS: Final = 30.0
"""Default duration of a profile, in seconds."""

_log = logging.getLogger(__name__)


def start(loop: asyncio.AbstractEventLoop | None = None, port: int = PORT) -> ThreadingHTTPServer:
    """Start a server of profiles, which runs until the process ends, and return it.

    `loop`: the event loop whose tasks are shown; None: there is none. If `port` is taken (many
    functions on one machine), another one is used.
    """
    try:
        server = _ProfileServer(port, loop)
    except OSError:
        server = _ProfileServer(0, loop)
    threading.Thread(target=server.serve_forever, name="profiling", daemon=True).start()
    # A warning, as profiling is exceptional, and its address must be visible at any log level.
    _log.warning("profiling is on: http://%s:%d%s", *server.server_address[:2], PREFIX)
    return server


class _ProfileServer(ThreadingHTTPServer):
    """The server of profiles."""

    daemon_threads = True
    # Otherwise two processes would share the port, and answer by turns.
    allow_reuse_port = False

    def __init__(self, port: int, loop: asyncio.AbstractEventLoop | None) -> None:
        """Listen at `port`, or at any free port if it is 0. Raises `OSError` if the port is
        taken."""
        super().__init__((ADDRESS, port), _Handler)
        self.loop = loop
        """The event loop whose tasks are shown; None: there is none."""
        self.profiling = threading.Lock()
        """Held while a profile is being taken."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Log the error of a connection at the level debug; the base class would print it. Mostly,
        the client hung up."""
        _log.debug("a profile could not be sent", exc_info=True)


class _RefusedProfile(Exception):
    """Raised for a request that is refused; `status` is that of the response."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        """`reason` becomes the response's body."""
        super().__init__(reason)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    """Answers requests for profiles."""

    server: _ProfileServer

    def do_GET(self) -> None:
        """Answer a GET request with a profile, or with the status and reason for which it is
        refused."""
        try:
            content_type, body = self._answer()
        except _RefusedProfile as refused:
            self._send(refused.status, "text/plain; charset=utf-8", f"{refused}\n".encode())
        else:
            self._send(HTTPStatus.OK, content_type, body)

    def _answer(self) -> tuple[str, bytes]:
        """Return content type and body of the response to a GET. Raises `_RefusedProfile` with 404
        for an unknown path, 400 for an invalid duration, and 409 while another profile is taken."""
        url = urlsplit(self.path)
        parameters = {name: values[-1] for name, values in parse_qs(url.query).items()}
        plain = "text/plain; charset=utf-8"
        path = f"{url.path}/"  # so that `PREFIX` without its last slash is the index, too
        profile_name = path.removeprefix(PREFIX).strip("/") if path.startswith(PREFIX) else None
        match profile_name:
            case "":
                return plain, INDEX.encode()
            case "profile":
                return _pprof_file(
                    self._profile_exclusively(
                        lambda seconds: cpu.profile(seconds, self.server.loop), parameters
                    )
                )
            case "heap":
                return _pprof_file(self._profile_exclusively(heap.profile, parameters))
            case "threads" if parameters.get("debug", "0") != "0":
                return plain, threads.describe_threads_and_tasks(self.server.loop).encode(
                    "utf-8", "replace"
                )
            case "threads":
                return _pprof_file(threads.thread_profile())
        raise _RefusedProfile(HTTPStatus.NOT_FOUND, f"want one of these. {INDEX}")

    def _profile_exclusively(
        self, profile: Callable[[float], Profile], parameters: dict[str, str]
    ) -> Profile:
        """Take and return a profile, by calling `profile` with the seconds that the URL's
        `parameters` ask for. Raises `_RefusedProfile` for an invalid duration, or while another
        profile is being taken, as the two would measure each other."""
        seconds = _requested_seconds(parameters)
        if not self.server.profiling.acquire(blocking=False):
            raise _RefusedProfile(HTTPStatus.CONFLICT, "another profile is being taken: ask again")
        try:
            return profile(seconds)
        finally:
            self.server.profiling.release()

    def _send(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        """Send a whole response."""
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        """Log a request at the level debug, and not to stderr as the base class does."""
        _log.debug(format, *args)


def _requested_seconds(parameters: dict[str, str]) -> float:
    """Return the duration in seconds that the URL's parameters ask for, or the default if they name
    none. Raises `_RefusedProfile` unless it is a number above 0 and at most `MAX_SECONDS`."""
    text = parameters.get("seconds", str(DEFAULT_PROFILE_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan  # which is in no range, so it is refused below
    if not 0 < seconds <= MAX_SECONDS:
        reason = f"seconds: invalid value: {text:.80}: want a number up to {MAX_SECONDS:.0f}"
        raise _RefusedProfile(HTTPStatus.BAD_REQUEST, reason)
    return seconds


def _pprof_file(profile: Profile) -> tuple[str, bytes]:
    """Return content type and body of the response that holds a profile as pprof's file."""
    return "application/octet-stream", encode(profile)
