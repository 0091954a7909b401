"""Checks of every request before a page sees it: the host, the token, the size and the origin."""

import ipaddress
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hpcprof.common.decode import parse_count

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
"""The names by which a browser reaches this machine, or the end of a tunnel on its own."""

MAX_BODY_BYTES = 64 * 1024
MAX_ADDRESS_BYTES = 8 * 1024

SESSION_SECONDS = 7 * 24 * 3600
_READ_METHODS = ("GET", "HEAD")

_HOST_HEADER = re.compile(r"(?:\[(?P<address>[^][]+)\]|(?P<name>[^][:]+))(?::\d+)?")

# Scripts and styles are files of hpcprof. Charts set styles of single elements, which load nothing here.
_CONTENT_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data: blob:",
    "connect-src": "'self'",
    "form-action": "'self'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
}
_SECURITY_HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in _CONTENT_POLICY.items()),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True)
class Access:
    """Users and hosts that may use the application."""

    hosts: frozenset[str]
    """The names in a Host header that are served, without their port and in lower case."""
    addresses: bool = False
    """True if any IP address is served as well. A page elsewhere cannot make a browser send one."""
    token: str | None = None
    """The token that a browser or a program has to show; None lets everybody in."""
    port: int = 0
    """The port, which is in the name of the cookie: browsers share cookies between the ports of a host."""
    https: bool = False
    """True if browsers reach it by https, whatever a proxy says of that."""
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    @property
    def cookie(self) -> str:
        """The name of the cookie that follows the token."""
        return f"hpcprof_{self.port}"

    def serves(self, host: str) -> bool:
        """Return whether a Host header names this server."""
        name = host_name(host)
        return name in self.hosts or (self.addresses and _is_address(name))

    def set_session(
        self, answer: Response, headers: Headers, session: str, same_site: Literal["lax", "strict"]
    ) -> None:
        """Have a browser keep the cookie of a session, to send by https only if it came by https itself.

        A browser that sends a proxy's header without a proxy restricts its own cookie alone.
        """
        answer.set_cookie(
            self.cookie,
            session,
            max_age=SESSION_SECONDS,
            httponly=True,
            secure=self.https or headers.get("x-forwarded-proto", "").strip().lower() == "https",
            samesite=same_site,
        )

    def session_of(self, headers: Headers) -> str:
        """Return the session in the cookies of a request; empty without one."""
        return cookie_parser("; ".join(headers.getlist("cookie"))).get(self.cookie, "")

    def accepts(self, token: str | None) -> bool:
        """Return whether a token is the right one."""
        return self.token is not None and _equal(token or "", self.token)

    def knows(self, headers: Headers) -> bool:
        """Return whether a request has the cookie, or the token as programs send it."""
        return self.accepts(bearer_token(headers)) or _equal(self.session_of(headers), self.session)


def bearer_token(headers: Headers) -> str | None:
    """Return the token that a program sends; None without one."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def host_name(host: str) -> str:
    """Return the host of a Host header without port and IPv6 brackets; any other text as it is."""
    host = host.strip().lower()
    match = _HOST_HEADER.fullmatch(host)
    return (match["address"] or match["name"]) if match else host


class Guard:
    """The ASGI middleware that lets a request through or answers it with one sentence."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY_HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        answer = self._refusal(scope) or self._sign_in(scope)
        if answer is not None:
            await answer(scope, receive, send_guarded)
            return
        most = self._most_bytes(scope)
        try:
            with suppress(ClientDisconnect):  # nobody waits for an answer, and the log needs no traceback
                await self._app(scope, _limit_body(receive, most), send_guarded)
        except _TooLarge:
            await sentence(413, f"the request exceeds {most:,} bytes.")(scope, receive, send_guarded)

    def _most_bytes(self, scope: Scope) -> int:
        return MAX_BODY_BYTES

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if not self._access.serves(headers.get("host", "")):
            return sentence(400, "host not allowed; add it with hpcprof serve --allow-host.")
        if len(scope.get("raw_path", b"")) + len(scope["query_string"]) > MAX_ADDRESS_BYTES:
            return sentence(414, f"the address exceeds {MAX_ADDRESS_BYTES:,} bytes.")
        length = parse_count(headers.get("content-length", "0"))
        most = self._most_bytes(scope)
        if length is None or length > most:
            return sentence(413, f"the request exceeds {most:,} bytes.")
        if not _same_origin(scope, headers):
            return sentence(403, "requests of other sites are refused.")
        return None

    def _sign_in(self, scope: Scope) -> Response | None:
        access, headers = self._access, Headers(scope=scope)
        if access.token is None:
            return None
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        token = dict(pairs).get("token")
        if scope["method"] in _READ_METHODS and access.accepts(token):
            query = urlencode([pair for pair in pairs if pair[0] != "token"])
            # A path that begins with two slashes would name another host.
            path = "/" + str(scope["path"]).lstrip("/\\")
            answer = RedirectResponse(path + (f"?{query}" if query else ""), 303)
            access.set_session(answer, headers, access.session, "strict")
            return answer
        if access.knows(headers):
            return None
        return sentence(
            401, "open the address with the token that hpcprof serve printed when it started.", bearer=True
        )


class _TooLarge(Exception):
    """The body of a request exceeds the limit."""


def _limit_body(receive: Receive, most: int) -> Receive:
    """Return a function that receives a body up to the limit: its length need not be declared."""
    received = 0

    async def receive_limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > most:
            raise _TooLarge
        return message

    return receive_limited


def _same_origin(scope: Scope, headers: Headers) -> bool:
    """Return whether a request comes from a page of this server, or from no page.

    Browsers say where a request comes from. A page of another site may be a link to a page here, but it may
    neither change anything nor have anything computed.
    """
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
        return False
    navigates = headers.get("sec-fetch-mode") == "navigate" and scope["method"] in _READ_METHODS
    return navigates or headers.get("sec-fetch-site", "none") in ("none", "same-origin")


def _equal(text: str, expected: str) -> bool:
    return secrets.compare_digest(text.encode("utf-8", "replace"), expected.encode("utf-8"))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def sentence(status: int, text: str, bearer: bool = False) -> Response:
    """Return an answer of one sentence."""
    headers = {"WWW-Authenticate": "Bearer"} if bearer else None
    return PlainTextResponse(f"hpcprof: {text}\n", status, headers)


def all_names(names: Iterable[str]) -> frozenset[str]:
    """Return the names of hosts as a Host header has them."""
    return frozenset(host_name(name) for name in names if name)
