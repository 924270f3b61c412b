"""Endpoints: where a source, stage, target or state lives, with its secrets kept out of every text form."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from strandline.core.errors import ConfigError

ROLES: Mapping[str, frozenset[str]] = {
    "postgresql": frozenset({"source", "target", "state"}),
    "mysql": frozenset({"source", "target", "state"}),
    "snowflake": frozenset({"source", "target"}),
    "redshift": frozenset({"target"}),
    "delta": frozenset({"source", "target", "state"}),
    "catalog": frozenset({"source", "target", "state"}),
    "s3": frozenset({"stage", "state"}),
    "file": frozenset({"stage", "state"}),
    "kafka": frozenset({"target"}),
    "stdout": frozenset({"target"}),
    "sqlite": frozenset({"state"}),
}
"""What each scheme may be used as. A new backend is one line here."""

_ALIASES = {"postgres": "postgresql", "mariadb": "mysql"}
_WITHOUT_SLASHES = ("delta", "catalog", "stdout")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")


@dataclass(frozen=True)
class Endpoint:
    """A parsed URL. `options` come from its query and from the mapping form; they never hold what `password` holds."""

    scheme: str
    path: str = ""  # database name for servers, folder or object prefix otherwise
    host: str = ""  # for kafka: every broker, "h1:9092,h2:9092"
    port: int | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    options: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)

    @classmethod
    def parse(cls, url: str, options: Mapping[str, str] | None = None) -> Endpoint:
        """`scheme://user:password@host:port/name?option=value`, `delta:PATH`, `delta:s3://…`, or a folder.

        Options given beside the URL win over those in it. Raises ConfigError, which never repeats the URL.
        """
        given = dict(options or {})
        named = _SCHEME.match(url)
        scheme = named[1].lower() if named else "file"
        scheme = _ALIASES.get(scheme, scheme)
        if scheme not in ROLES:
            raise ConfigError(f'unknown scheme "{scheme}:"{_suggest(scheme)}')
        if named is None or scheme in _WITHOUT_SLASHES:
            path = url[named.end() :] if named else url
            if re.match(r"[^/]*://[^/]*@", path):
                raise ConfigError("an address of files takes no user or password; give them as options")
            return cls(scheme, path, password=given.pop("password", ""), options=given)
        if not url.startswith("//", named.end()):
            raise ConfigError(
                f'"{named[1]}:" is followed by "//"; a folder whose name holds a colon is "./{named[1]}:…"'
            )
        return cls._from_url(scheme, url, given)

    @classmethod
    def _from_url(cls, scheme: str, url: str, given: dict[str, str]) -> Endpoint:
        try:
            parts = urlsplit(url)
            host, port = (parts.netloc, None) if scheme == "kafka" else (parts.hostname or "", parts.port)
            # "user:12/34@host" reads as a host, a port and a path: the password would show as part of the address.
            if port and "@" not in parts.netloc and "@" in parts.path + parts.fragment + parts.query.partition("=")[0]:
                raise ValueError
        except ValueError:
            raise ConfigError(
                f"{scheme}://…: the address cannot be read; "
                '"/", "#", "?" and "[" in a password are written %2F, %23, %3F, %5B',
            ) from None
        if scheme == "kafka":
            host = host.rpartition("@")[2]
        path = unquote(parts.path if scheme == "file" else parts.path.removeprefix("/"))
        merged = {**dict(parse_qsl(parts.query)), **given}
        password = merged.pop("password", "") or unquote(parts.password or "")
        user = merged.pop("user", "") or unquote(parts.username or "")
        return cls(scheme, path, host, port, user, password, merged)

    def resolved(self, root: Path) -> Endpoint:
        """The same place, whatever the working folder: relative paths are taken from `root`."""
        if self.scheme not in ("sqlite", "delta", "file") or "://" in self.path:
            return self
        return replace(self, path=os.path.normpath(root / Path(self.path).expanduser()))

    def flag(self, option: str, default: bool) -> bool:
        given = self.options.get(option, str(default)).lower()
        if given not in ("true", "false"):
            raise ConfigError(f"{self}: {option} is true or false")
        return given == "true"

    def __str__(self) -> str:
        """The address without password and options: safe in any output."""
        if self.scheme in _WITHOUT_SLASHES:
            return f"{self.scheme}:{self.path}"
        if self.scheme == "file":
            return self.path
        user = f"{self.user}@" if self.user else ""
        host = f"[{self.host}]" if ":" in self.host and self.scheme != "kafka" else self.host
        port = f":{self.port}" if self.port else ""
        return f"{self.scheme}://{user}{host}{port}/{self.path}"


def _suggest(scheme: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(scheme, [*ROLES, *_ALIASES], 1)
    return f'; did you mean "{near[0]}:"?' if near else f"; known are {', '.join(sorted({*ROLES, *_ALIASES}))}"
