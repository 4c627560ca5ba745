"""Signing in: whose token a request carries, and the routes by which a browser gets a session.

    Authorization: Bearer TOKEN    from an authenticating proxy, or a program; comes first
    cookie knafka-token            from the sign-in form: HttpOnly, SameSite=Strict, for the session

    POST /api/sign-in              `SignInForm` -> the cookies, once the source has taken the token
    POST /api/sign-out

The token is nowhere else: in no address, no page, no log, and no memory but that of a request and
what is cached for it. Both routes need what every change needs (`server.refusal`), so no other
site signs anybody in or out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple

from aiohttp import web

from knafka.core import documents
from knafka.core.documents import Model
from knafka.core.errors import InvalidDocument
from knafka_console.model.source import Forbidden, NotSignedIn, Source

TOKEN_COOKIE: Final = "knafka-token"
NAMESPACES_COOKIE: Final = "knafka-namespaces"
"""Cookie: those that the viewer has named, with dots between them, which no name has."""
SESSION_COOKIE: Final = "knafka-session"
"""Cookie for the page's script, which can't see the token: there is something to sign out of."""
LONGEST_TOKEN: Final = 3_800
"""Characters of a token: a browser keeps cookies of 4,096 bytes with their names."""
NEEDS_TLS: Final = (
    "a token over plain HTTP can be read on its way: open this page by https (or set "
    "KNAFKA_CONSOLE_PLAIN_HTTP=true where nobody listens)"
)
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]+").fullmatch
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?").fullmatch


class Viewer(NamedTuple):
    """The token of a viewer, and the namespaces that the viewer sees."""

    token: str
    namespaces: tuple[str, ...] = ()
    """None: all."""

    def __repr__(self) -> str:
        return f"Viewer(namespaces={self.namespaces!r})"


def has_token(request: web.Request) -> bool:
    """Whether a request came with a token, valid or not."""
    return viewer(request.headers, request.cookies) is not None


class SignInForm(Model):
    """The fields of the sign-in form."""

    token: str
    namespaces: str = ""
    """With spaces or commas between them."""


def viewer(headers: Mapping[str, str], cookies: Mapping[str, str]) -> Viewer | None:
    """The viewer of a request, by its headers and cookies; None: it has no token."""
    scheme, _, given = headers.get("Authorization", "").partition(" ")
    token = given.strip() if scheme.lower() == "bearer" else cookies.get(TOKEN_COOKIE, "")
    if not token or _TOKEN(token) is None:
        return None
    named = cookies.get(NAMESPACES_COOKIE, "").split(".")
    return Viewer(token, tuple(namespace for namespace in named if _NAMESPACE(namespace)))


class SignIn:
    """Sources of those who are signed in."""

    def __init__(self, source_of: Callable[[Viewer], Source], *, plain_http: bool = False) -> None:
        """`plain_http`: whether a token may be typed into a page that came without TLS."""
        self._source_of = source_of
        self._plain_http = plain_http

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/api/sign-in", self._sign_in),
            web.post("/api/sign-out", self._sign_out),
        ]

    def source(self, request: web.Request) -> Source:
        """The source of the viewer who made a request. Raises `NotSignedIn`."""
        signed_in = viewer(request.headers, request.cookies)
        if signed_in is None:
            raise NotSignedIn("sign in first")
        return self._source_of(signed_in)

    async def _sign_in(self, request: web.Request) -> web.Response:
        is_secure = _is_secure(request)
        if not is_secure and not self._plain_http:
            raise Forbidden(NEEDS_TLS)
        asked = documents.parse_json(SignInForm, await request.text())
        signed_in = _viewer_of(asked)
        await self._source_of(signed_in).state()  # raises if the cluster refuses
        response = web.Response(status=HTTPStatus.NO_CONTENT)
        for name, value, hidden in (
            (TOKEN_COOKIE, signed_in.token, True),
            (NAMESPACES_COOKIE, ".".join(signed_in.namespaces), True),
            (SESSION_COOKIE, "1", False),
        ):
            response.set_cookie(
                name, value, path="/", httponly=hidden, samesite="Strict", secure=is_secure
            )
        return response

    async def _sign_out(self, _: web.Request) -> web.Response:
        response = web.Response(status=HTTPStatus.NO_CONTENT)
        forget(response)
        return response


def forget(response: web.StreamResponse) -> None:
    """Delete the session's cookies in the browser."""
    for name in (TOKEN_COOKIE, NAMESPACES_COOKIE, SESSION_COOKIE):
        response.del_cookie(name, path="/", samesite="Strict")


def _viewer_of(asked: SignInForm) -> Viewer:
    token = asked.token.strip()
    if _TOKEN(token) is None:
        raise InvalidDocument("token", "want a bearer token")
    if len(token) > LONGEST_TOKEN:
        raise InvalidDocument(
            "token", f"longer than a cookie may be ({LONGEST_TOKEN}): use an authenticating proxy"
        )
    namespaces = tuple(asked.namespaces.replace(",", " ").split())
    for namespace in namespaces:
        if _NAMESPACE(namespace) is None:
            raise InvalidDocument("namespaces", f"{namespace:.80} is no name of a namespace")
    return Viewer(token, namespaces)


def _is_secure(request: web.Request) -> bool:
    """Whether the browser's connection is encrypted, as the gateway says, which ends it."""
    first = request.headers.get("X-Forwarded-Proto", request.scheme).partition(",")[0]
    return first.strip().lower() == "https"
