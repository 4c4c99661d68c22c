"""Access checks and response headers for all requests.

1. *Host.* The name that a request was sent to must be this server's: an address, `localhost`, the name
   listened on, or one of `web.names`. Otherwise a foreign page whose name resolves to this server could read
   everything.
2. *Origin.* A request that names an origin must come from a page of this server. A form that changes
   something must name its origin; JSON need not, since foreign pages cannot send that type without a
   preflight.
3. *Token.* If one is set, each request must have it: as `Authorization: Bearer`, or as the login page's
   cookie, a keyed hash that does not reveal the token. Both are compared in constant time. Without a token
   there are no actions, and the server listens on the loopback address only (`serving`).
4. Response headers forbid a browser what these pages do not need: foreign hosts, inline scripts and styles,
   frames.
5. A client that accepts nothing for `SEND_S` is dropped.
6. The guard reads a request's whole body first: too long a body is answered with 413, too slow a one with
   408.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "lithify-web"
COOKIE_S = 7 * 24 * 3600
SEND_S = 10.0
BODY_S = 10.0
MAX_BODY_BYTES = 64 << 10
LEAST_TOKEN_CHARS = 16
LOGIN = "/login"
_OPEN = (LOGIN, "/static/")
"""Paths without secrets; they need no token."""
_READS = ("GET", "HEAD")
_HOST = re.compile(
    r"(?:(?P<name>[a-z0-9._-]+)|\[(?P<address>[0-9a-f:.]+(?:%[a-z0-9._-]+)?)\])(?::[0-9]{1,5})?"
)
"""A name or an address, and a port: nothing else that a URL could have."""
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # no-referrer would hide the origin of our own forms too
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """Passes on allowed requests. `names` are this server's host names besides addresses and `localhost`."""

    def __init__(self, app: ASGIApp, token: str, names: Iterable[str]) -> None:
        self._app = app
        self._token = token
        self._names = frozenset(name.strip().lower() for name in names if name.strip()) | {"localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)

        async def patient_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    answered[name] = value
                answered.setdefault("cache-control", "no-store")
            await asyncio.wait_for(send(message), SEND_S)

        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, patient_send)
            return
        scope.setdefault("state", {})["may_act"] = bool(self._token)
        if scope["method"] in _READS:
            await self._app(scope, receive, patient_send)
            return
        body = await _whole_body(receive, headers)
        if isinstance(body, Response):
            await body(scope, receive, patient_send)
        elif body is not None:
            await self._app(scope, _replayed(body, receive), patient_send)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        path, method = scope["path"], scope["method"]
        host = headers.get("host", "")
        if "\0" in path:
            return PlainTextResponse("The path contains a NUL byte.\n", 400)
        if not self._is_ours(host):
            return PlainTextResponse(
                "This host name is not configured for this server; see web.names.\n", 421
            )
        origin = headers.get("origin")
        if origin is not None and _netloc(origin) != host.lower():
            return PlainTextResponse("Requests from pages of other sites are refused.\n", 403)
        if headers.get("sec-fetch-site") == "cross-site" and method not in _READS:
            return PlainTextResponse("Requests from pages of other sites are refused.\n", 403)
        is_json = headers.get("content-type", "").partition(";")[0].strip() == "application/json"
        if method not in _READS and origin is None and not is_json:
            return PlainTextResponse("A form must come from a page of this server.\n", 403)
        if not self._token or path.startswith(_OPEN) or self._is_known(headers):
            return None
        if path.startswith(("/api/", "/events")) or method not in _READS:
            message = "this needs the token (web.token) as `Authorization: Bearer`"
            bearer = {"www-authenticate": "Bearer"}
            return JSONResponse({"error": "Unauthorized", "message": message}, 401, bearer)
        query = scope["query_string"].decode("latin-1")
        return RedirectResponse(f"{LOGIN}?to={quote(path + (f'?{query}' if query else ''))}", 303)

    def _is_ours(self, host: str) -> bool:
        found = _HOST.fullmatch(host.lower())
        if found is None:
            return False
        name = found["name"] or found["address"]
        return name in self._names or _is_address(name)

    def _is_known(self, headers: Headers) -> bool:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and is_same(given.strip(), self._token):
            return True
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return False
        found = cookies.get(COOKIE)
        return found is not None and is_same(found.value, sealed(self._token, "cookie"))


def sealed(token: str, purpose: str) -> str:
    """Return a hash that only an owner of the token can make, and that does not reveal it."""
    return hmac.new(token.encode(), f"lithify web {purpose}".encode(), hashlib.sha256).hexdigest()


def is_same(given: str, wanted: str) -> bool:
    """Return whether two secrets are equal, in constant time."""
    return hmac.compare_digest(given.encode(), wanted.encode())


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


async def _whole_body(receive: Receive, headers: Headers) -> bytes | Response | None:
    """Return the body of a request; a response if it is too long or too slow; `None` if the client has
    disconnected."""
    too_long = PlainTextResponse("The body of the request is too long.\n", 413, {"connection": "close"})
    if int(headers.get("content-length", "0")) > MAX_BODY_BYTES:  # the server has checked the number
        return too_long
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            while (message := await receive())["type"] == "http.request":
                body += message.get("body", b"")
                if len(body) > MAX_BODY_BYTES:
                    return too_long
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        return PlainTextResponse("The body of the request is too slow.\n", 408, {"connection": "close"})
    return None


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields the body, then the client's further messages."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def take() -> Message:
        return left.pop() if left else await receive()

    return take
