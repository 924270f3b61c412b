"""Endpoints: where a source, stage, target or state lives, with its secrets kept out of every text form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from strandline.core.errors import ConfigError

_ALIASES = {"postgres": "postgresql", "mariadb": "mysql", "": "file"}


@dataclass(frozen=True)
class Endpoint:
    """A parsed URL. `options` come from its query and from the mapping form; they never hold what `password` holds."""

    scheme: str
    path: str = ""  # database name for servers, folder or object prefix otherwise
    host: str = ""
    port: int | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    options: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)

    @classmethod
    def parse(cls, url: str, options: Mapping[str, str] | None = None) -> Endpoint:
        """`scheme://user:password@host:port/name?option=value`, `delta:PATH`, `delta:s3://…`, or a folder."""
        given = dict(options or {})
        if url.startswith("delta:"):
            return cls("delta", path=url.removeprefix("delta:"), options=given)
        if "://" not in url:
            scheme, colon, rest = url.partition(":")
            if colon and scheme in ("catalog", "stdout"):
                return cls(scheme, path=rest, options=given)
            return cls("file", path=url, options=given)
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            raise ConfigError(f"{parts.scheme}://…: the port is not a number") from None
        scheme = _ALIASES.get(parts.scheme, parts.scheme)
        path = parts.path if scheme in ("sqlite", "file") else parts.path.lstrip("/")
        password = given.pop("password", None) or unquote(parts.password or "")
        return cls(
            scheme,
            unquote(path),
            parts.hostname or "",
            port,
            unquote(parts.username or ""),
            password,
            {**dict(parse_qsl(parts.query)), **given},
        )

    def __str__(self) -> str:
        """The address without password and options: safe in any output."""
        if self.scheme in ("delta", "catalog", "stdout"):
            return f"{self.scheme}:{self.path}"
        if self.scheme == "file":
            return self.path
        user = f"{self.user}@" if self.user else ""
        port = f":{self.port}" if self.port else ""
        return f"{self.scheme}://{user}{self.host}{port}/{self.path}"
