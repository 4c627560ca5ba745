"""Signing in: reads the viewer's token from requests, and sets it as a cookie.

    Authorization: Bearer TOKEN    from an authenticating proxy, or a program; comes first
    cookie knafka-token            from the sign-in form: HttpOnly, SameSite=Strict, for the session

    POST /api/sign-in              `SignInForm` -> the cookies, once the cluster accepts the token
    POST /api/sign-out

The token appears in no URL, page or log, and is kept in memory only with its viewer's source. Both
routes need the header that every change needs (`server.refusal_reason`), so that no other site can
sign anybody in or out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple

from aiohttp import web

from knafka.core.documents import Model
from knafka.core.errors import InvalidDocument
from knafka_console.model.source import Forbidden, NotSignedIn, Source
from knafka_console.web.bodies import read_document

TOKEN_COOKIE: Final = "knafka-token"
"""Cookie with the viewer's token."""
NAMESPACES_COOKIE: Final = "knafka-namespaces"
"""Cookie with the namespaces that the viewer named, separated by dots."""
SESSION_COOKIE: Final = "knafka-session"
"""Cookie that tells the page's script, which can't read the token, that the viewer is signed in."""
LONGEST_TOKEN: Final = 3_800
"""Largest number of characters of a token: browsers limit a cookie to 4,096 bytes with its name."""
NEEDS_TLS: Final = (
    "a token over plain HTTP can be read on its way: open this page by https (or set "
    "KNAFKA_CONSOLE_PLAIN_HTTP=true where nobody listens)"
)
"""The answer to signing in over plain HTTP."""
_LEGAL_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]+").fullmatch
"""Matches the syntax of a bearer token (RFC 6750, 2.1)."""
_LEGAL_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?").fullmatch
"""Matches what may be the name of a namespace."""


class Viewer(NamedTuple):
    """A viewer's token, and the namespaces that the viewer named."""

    token: str
    namespaces: tuple[str, ...] = ()
    """Empty: all namespaces."""

    def __repr__(self) -> str:
        """Leave the token out, so that no log or traceback shows it."""
        return f"Viewer(namespaces={self.namespaces!r})"


def has_token(request: web.Request) -> bool:
    """Whether a request carries a well-formed token, valid or not."""
    return viewer_of_request(request.headers, request.cookies) is not None


class SignInForm(Model):
    """The fields of the sign-in form."""

    token: str
    namespaces: str = ""
    """Separated by spaces or commas."""


def viewer_of_request(headers: Mapping[str, str], cookies: Mapping[str, str]) -> Viewer | None:
    """Return the viewer of a request; None if it carries no token, or a malformed one. `headers`
    must find names in any case. Malformed namespaces in the cookie are left out."""
    scheme, _, credentials = headers.get("Authorization", "").partition(" ")
    token = credentials.strip() if scheme.lower() == "bearer" else cookies.get(TOKEN_COOKIE, "")
    if not token or _LEGAL_TOKEN(token) is None:
        return None
    namespaces = cookies.get(NAMESPACES_COOKIE, "").split(".")
    return Viewer(
        token, tuple(namespace for namespace in namespaces if _LEGAL_NAMESPACE(namespace))
    )


class SignIn:
    """Finds the source of signed-in viewers, and serves the routes to sign in and out."""

    def __init__(self, source_of: Callable[[Viewer], Source], *, plain_http: bool = False) -> None:
        """`source_of` returns a viewer's source; `plain_http` says whether to accept a token from a
        page without TLS."""
        self._source_of = source_of
        self._plain_http = plain_http

    def routes(self) -> list[web.RouteDef]:
        """Return the routes to sign in and out."""
        return [
            web.post("/api/sign-in", self._sign_in),
            web.post("/api/sign-out", self._sign_out),
        ]

    def source_of_request(self, request: web.Request) -> Source:
        """Return the source of the viewer who sent a request. Raises `NotSignedIn`."""
        viewer = viewer_of_request(request.headers, request.cookies)
        if viewer is None:
            raise NotSignedIn("sign in first")
        return self._source_of(viewer)

    async def _sign_in(self, request: web.Request) -> web.Response:
        """Answer with the cookies, once the cluster has accepted the token of the form. Raises
        `Forbidden` over plain HTTP, `InvalidDocument` for a malformed form, and `NotSignedIn` if
        the cluster refuses the token."""
        is_secure = _is_secure(request)
        if not is_secure and not self._plain_http:
            raise Forbidden(NEEDS_TLS)
        form = await read_document(SignInForm, request)
        viewer = _viewer_of_form(form)
        await self._source_of(viewer).state()  # raises if the cluster refuses the token
        response = web.Response(status=HTTPStatus.NO_CONTENT)
        for name, value, is_http_only in (
            (TOKEN_COOKIE, viewer.token, True),
            (NAMESPACES_COOKIE, ".".join(viewer.namespaces), True),
            (SESSION_COOKIE, "1", False),
        ):
            response.set_cookie(
                name, value, path="/", httponly=is_http_only, samesite="Strict", secure=is_secure
            )
        return response

    async def _sign_out(self, _: web.Request) -> web.Response:
        """Delete the cookies."""
        response = web.Response(status=HTTPStatus.NO_CONTENT)
        delete_cookies(response)
        return response


def delete_cookies(response: web.StreamResponse) -> None:
    """Delete the session's cookies in the browser."""
    for name in (TOKEN_COOKIE, NAMESPACES_COOKIE, SESSION_COOKIE):
        response.del_cookie(name, path="/", samesite="Strict")


def _viewer_of_form(form: SignInForm) -> Viewer:
    """Return the viewer that a sign-in form names. Raises `InvalidDocument` for a malformed or too
    long token, and for a malformed namespace."""
    token = form.token.strip()
    if _LEGAL_TOKEN(token) is None:
        raise InvalidDocument("token", "must be a bearer token")
    if len(token) > LONGEST_TOKEN:
        raise InvalidDocument(
            "token", f"longer than a cookie may be ({LONGEST_TOKEN}): use an authenticating proxy"
        )
    namespaces = tuple(form.namespaces.replace(",", " ").split())
    for namespace in namespaces:
        if _LEGAL_NAMESPACE(namespace) is None:
            raise InvalidDocument("namespaces", f"{namespace:.80} is no name of a namespace")
    return Viewer(token, namespaces)


def _is_secure(request: web.Request) -> bool:
    """Whether the browser's connection is encrypted. A gateway in between reports that connection's
    scheme in X-Forwarded-Proto."""
    schemes = request.headers.get("X-Forwarded-Proto", request.scheme)
    # Each proxy on the way appends a scheme, so the browser's is the first.
    browser_scheme = schemes.partition(",")[0]
    return browser_scheme.strip().lower() == "https"
