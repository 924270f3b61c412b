"""A webhook: where it is, how what is sent there is signed, and the sending. One try, no state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

TIMEOUT = 10.0
"""Seconds."""


@dataclass(frozen=True)
class Webhook:
    url: str = field(repr=False)
    secret: str = field(default="", repr=False)


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Over time and body, so that what was sent once cannot be sent again later."""
    import hmac

    return "sha256=" + hmac.new(secret.encode(), timestamp.encode() + b"." + body, "sha256").hexdigest()


def headers(hook: Webhook, body: bytes, now: datetime) -> Mapping[str, str]:
    timestamp = str(int(now.timestamp()))
    found = {
        "Content-Type": "application/json",
        "User-Agent": "strandline",
        "X-Strandline-Timestamp": timestamp,
    }
    if hook.secret:
        found["X-Strandline-Signature"] = signature(hook.secret, timestamp, body)
    return found


def post(hook: Webhook, body: bytes, now: datetime) -> str:
    return send(hook.url, body, headers(hook, body, now), TIMEOUT)


def send(url: str, body: bytes, headers: Mapping[str, str], timeout: float) -> str:
    """Why it was not taken; empty: it was. A redirect is not followed: it would turn the POST into a GET."""
    import http.client
    import urllib.error
    import urllib.request

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            return None

    request = urllib.request.Request(url, body, dict(headers), method="POST")
    try:
        with urllib.request.build_opener(Stay).open(request, timeout=timeout):
            return ""
    except urllib.error.HTTPError as error:
        error.close()
        return f"HTTP {error.code} {error.reason}".strip()
    except urllib.error.URLError as error:
        return str(error.reason)
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}".rstrip(": ")
