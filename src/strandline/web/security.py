"""Who may come in and what may go out: host, origin, token, read-only, size, headers, and no secrets in any answer.

One layer around the whole application: a route cannot forget it. Knows nothing of pipelines.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import socket
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from strandline.core.errors import ConfigError
from strandline.secrets import Redactor
from strandline.web.problems import problem

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "strandline_session"
COOKIE_SECONDS = 12 * 3600
SHORTEST_TOKEN = 16
_TRIES, _TRIES_OF_ALL, _TRY_SECONDS = 5, 50, 60.0
_BODY = 64 * 1024
_SAFE = ("GET", "HEAD", "OPTIONS")
_OPEN = ("/healthz", "/readyz", "/login")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with "no-referrer" a browser would call our own forms' origin "null"
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True)
class Security:
    token: str = ""  # empty: whoever reaches the address may come in, which must then be this machine's own
    read_only: bool = False
    hosts: frozenset[str] = frozenset(_LOOPBACK)

    @classmethod
    def at(cls, host: str, token: str = "", read_only: bool = False, allowed_hosts: Iterable[str] = ()) -> Security:
        """For an address to listen on. ConfigError if it can be reached from elsewhere and there is no token."""
        if not token and not is_loopback(host):
            raise ConfigError(
                f"{host} can be reached from other machines, and there is no token",
                remedy="Set STRANDLINE_TOKEN (strandline serve asks for it at the login), or listen on 127.0.0.1.",
                docs="docs/dashboard.md#security",
            )
        if token and len(token) < SHORTEST_TOKEN:
            raise ConfigError(
                f"the token has {len(token)} characters: it could be guessed",
                remedy=f"Take at least {SHORTEST_TOKEN}: python -c 'import secrets; print(secrets.token_urlsafe())'",
            )
        own = () if is_loopback(host) else (host, socket.gethostname())
        named = (*_LOOPBACK, *own, *allowed_hosts)
        return cls(token, read_only, frozenset(name.lower().strip("[]") for name in named if name))

    def cookie(self, now: float) -> str:
        """Proves that its bearer knew the token; does not tell it. Another token makes it worthless."""
        until = str(int(now) + COOKIE_SECONDS)
        return f"{until}.{self._sign(until)}"

    def knows(self, cookie: str, now: float) -> bool:
        until, _, signature = cookie.partition(".")
        good = hmac.compare_digest(self._sign(until).encode(), signature.encode())
        return good and until.isascii() and until.isdigit() and len(until) < 12 and int(until) > now

    def is_token(self, given: str) -> bool:
        return bool(self.token) and hmac.compare_digest(self.token.encode(), given.encode())

    def _sign(self, until: str) -> str:
        return hmac.new(self.token.encode(), f"session {until}".encode(), hashlib.sha256).hexdigest()


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Tries:
    """Wrong tokens of the last minute, per address and in all. Whoever has too many waits, right token or not."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: deque[tuple[float, str]] = deque()
        self._lock = threading.Lock()

    def wait_seconds(self, client: str) -> int:
        """How long until another try is allowed; 0: now."""
        with self._lock:
            now = self._clock()
            while self._failed and self._failed[0][0] <= now - _TRY_SECONDS:
                self._failed.popleft()
            own = [at for at, address in self._failed if address == client]
            oldest = own[-_TRIES] if len(own) >= _TRIES else None
            if oldest is None and len(self._failed) >= _TRIES_OF_ALL:
                oldest = self._failed[-_TRIES_OF_ALL][0]
            return 0 if oldest is None else max(1, int(oldest + _TRY_SECONDS - now) + 1)

    def failed(self, client: str) -> None:
        with self._lock:
            self._failed.append((self._clock(), client))


class RefusalError(Exception):
    def __init__(self, status: int, detail: str, remedy: str = "", **headers: str) -> None:
        super().__init__(detail)
        self.status, self.detail, self.remedy, self.headers = status, detail, remedy, headers


class Guard:
    """The layer. `redact`: takes the secrets of the project out of a text."""

    def __init__(
        self, app: App, *, security: Security, redact: Callable[[str], str], clock: Callable[[], float] = time.time
    ) -> None:
        self._app = app
        self._security = security
        self._redact = redact
        self._own = Redactor()
        self._own.register(security.token)
        self._tries = Tries()
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not spoken here")
        send = self._cleaned(scope, send)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        client = scope["client"][0] if scope.get("client") else ""
        try:
            self._check_host(headers)
            self._check_text(scope)
            if scope["method"] not in _SAFE:
                self._check_origin(headers)
            if scope["path"] == "/login" and scope["method"] == "POST":
                await self._login(scope, headers, client, receive, send)
                return
            if scope["path"] == "/logout" and scope["method"] == "POST":
                await _answer(send, 303, b"", {"location": "/login", "set-cookie": self._cookie(scope, "", 0)})
                return
            self._check_token(scope, headers, client)
            self._check_read_only(scope)
            length = headers.get("content-length", "")
            if length.isdigit() and int(length) > _BODY:
                raise RefusalError(413, f"a request has at most {_BODY:,} bytes")
            await self._app(scope, _limited(receive), send)
        except RefusalError as refusal:
            await self._refuse(scope, headers, refusal, send)

    def _check_host(self, headers: Mapping[str, str]) -> None:
        """A page of somebody else's that gave its own name our address (DNS rebinding) comes with that name."""
        if _host_name(headers.get("host", "")) not in self._security.hosts:
            raise RefusalError(
                400, "this name is not one that is served here", "Allow it: strandline serve --allow-host NAME"
            )

    @staticmethod
    def _check_text(scope: Scope) -> None:
        if "\0" in scope["path"] or b"%00" in scope.get("query_string", b""):
            raise RefusalError(400, "an address has no NUL")

    @staticmethod
    def _check_origin(headers: Mapping[str, str]) -> None:
        """A browser says where a request comes from; a page of another site may not act here."""
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if site not in (None, "same-origin", "none"):
            raise RefusalError(403, "the request comes from another site")
        if origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
            raise RefusalError(403, "the request comes from another site")

    def _check_token(self, scope: Scope, headers: Mapping[str, str], client: str) -> None:
        if not self._security.token or scope["path"] in _OPEN or scope["path"].startswith("/static/"):
            return
        if self._security.knows(_cookie(headers), self._clock()):
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            self._check_tries(client)
            if self._security.is_token(given.strip()):
                return
            self._tries.failed(client)
            raise RefusalError(401, "the token is wrong", **{"www-authenticate": "Bearer"})
        remedy = "Send it: Authorization: Bearer TOKEN. In a browser: /login"
        raise RefusalError(401, "there is no token", remedy, **{"www-authenticate": "Bearer"})

    def _check_tries(self, client: str) -> None:
        if wait := self._tries.wait_seconds(client):
            raise RefusalError(429, f"too many wrong tokens; wait {wait} s", **{"retry-after": str(wait)})

    def _check_read_only(self, scope: Scope) -> None:
        plans = scope["path"].endswith("/plan")  # it asks, and changes nothing
        if self._security.read_only and scope["method"] not in _SAFE and not plans:
            raise RefusalError(403, "this service only shows", "It was started with --read-only.")

    async def _login(self, scope: Scope, headers: Mapping[str, str], client: str, receive: Receive, send: Send) -> None:
        self._check_tries(client)
        form = parse_qs((await _body(receive)).decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=10)
        following = own_path(form.get("next", ["/"])[0])
        if not self._security.is_token(form.get("token", [""])[0].strip()):
            self._tries.failed(client)
            location = f"/login?wrong=1&next={quote(following, safe='')}"
            await _answer(send, 303, b"", {"location": location})
            return
        cookie = self._cookie(scope, self._security.cookie(self._clock()), COOKIE_SECONDS, headers)
        await _answer(send, 303, b"", {"location": following, "set-cookie": cookie})

    @staticmethod
    def _cookie(scope: Scope, value: str, seconds: int, headers: Mapping[str, str] | None = None) -> str:
        encrypted = scope["scheme"] == "https" or (headers or {}).get("origin", "").startswith("https:")
        secure = "; Secure" if encrypted else ""
        return f"{COOKIE}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"

    async def _refuse(self, scope: Scope, headers: Mapping[str, str], refusal: RefusalError, send: Send) -> None:
        page = "text/html" in headers.get("accept", "") and not scope["path"].startswith("/api/")
        if refusal.status == 401 and page and scope["method"] == "GET":
            where = quote(own_path(scope["path"]), safe="")
            await _answer(send, 303, b"", {"location": f"/login?next={where}"})
            return
        if page:
            from strandline.web.pages import error_page

            body = error_page(refusal.status, refusal.detail, refusal.remedy).encode()
            await _answer(send, refusal.status, body, {**refusal.headers, "content-type": "text/html; charset=utf-8"})
            return
        body = json.dumps(problem(refusal.status, refusal.detail, refusal.remedy)).encode()
        await _answer(send, refusal.status, body, {**refusal.headers, "content-type": "application/problem+json"})

    def _cleaned(self, scope: Scope, send: Send) -> Send:
        """Adds the headers, and takes secrets out of every text: whole bodies, and each piece of a stream of events."""
        start: Message = {}
        pieces: list[bytes] = []
        streaming = False

        async def cleaned(message: Message) -> None:
            nonlocal streaming
            if message["type"] == "http.response.start":
                start.update(message)
                streaming = _header(start, b"content-type").startswith(b"text/event-stream")
                if streaming:
                    await send(_with_headers(scope, start))
            elif streaming:
                await send({**message, "body": self._clean(message.get("body", b""))})
            else:
                pieces.append(message.get("body", b""))
                if not message.get("more_body"):
                    await self._send_whole(scope, start, b"".join(pieces), send)

        return cleaned

    async def _send_whole(self, scope: Scope, start: Message, body: bytes, send: Send) -> None:
        if not scope["path"].startswith("/static/"):
            body = self._clean(body)
        headers = [(name, value) for name, value in start["headers"] if name != b"content-length"]
        length = (b"content-length", str(len(body)).encode())
        await send(_with_headers(scope, {**start, "headers": [*headers, length]}))
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _clean(self, body: bytes) -> bytes:
        return self._own.redact(self._redact(body.decode())).encode() if body else body


def _host_name(host: str) -> str:
    """Without the port; an address in brackets without them."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def own_path(path: str) -> str:
    """A path on this server to go on to; anything else is the start page."""
    plain = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if plain and "\\" not in path else "/"


def _cookie(headers: Mapping[str, str]) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


def _header(message: Message, name: bytes) -> bytes:
    return next((bytes(value) for key, value in message.get("headers", ()) if key.lower() == name), b"")


def _with_headers(scope: Scope, message: Message) -> Message:
    kept = "private, max-age=3600" if scope["path"].startswith("/static/") else "no-store"
    ours = {**_HEADERS, "cache-control": kept}
    headers = [(name, value) for name, value in message["headers"] if name.decode().lower() not in ours]
    return {**message, "headers": [*headers, *((name.encode(), value.encode()) for name, value in ours.items())]}


def _limited(receive: Receive) -> Receive:
    size = 0

    async def limited() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > _BODY:
            raise RefusalError(413, f"a request has at most {_BODY:,} bytes")
        return message

    return limited


async def _body(receive: Receive) -> bytes:
    limited, parts = _limited(receive), []
    while True:
        message = await limited()
        parts.append(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body"):
            return b"".join(parts)


async def _answer(send: Send, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    told = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": body})
