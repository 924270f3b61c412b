"""The types of values a key can take: how each is read and checked, and its JSON Schema.

Knows no key by name. Reading raises ConfigError without a place; the reader adds it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from yaml.nodes import MappingNode, Node, SequenceNode

from strandline.alerts.webhook import Webhook
from strandline.config.duration import PATTERN, parse_duration
from strandline.config.reader import Reader, Type, suggest
from strandline.core.attention import Freshness
from strandline.core.errors import ConfigError
from strandline.core.table import MaxStall
from strandline.endpoint import ROLES, Endpoint
from strandline.secrets import looks_secret
from strandline.service import schedule as schedules

_TEXT = {"type": ["string", "number", "boolean"]}
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")
_WHOLE = {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^(-?[0-9]+|.*\$\{.*)$"}]}


def _text(reader: Reader, node: Node, where: str) -> str:
    text = reader.text(node, where.rpartition(".")[2])
    if not text.strip():
        raise ConfigError("is empty")
    return text


text = Type(_text, _TEXT)


def _boolean(reader: Reader, node: Node, _where: str) -> bool:
    word = reader.text(node).lower()
    if word not in (*_TRUE, *_FALSE):
        raise ConfigError(f'"{word}" is not true or false')
    return word in _TRUE


boolean = Type(_boolean, {"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": r"\$\{"}]})


def whole(minimum: int) -> Type:
    def parse(reader: Reader, node: Node, _where: str) -> int:
        number = _integer(reader.text(node))
        if number is None or number < minimum:
            raise ConfigError(f'"{reader.text(node)}" is not a whole number of at least {minimum}')
        return number

    return Type(parse, _WHOLE)


def _integer(word: str) -> int | None:
    digits = word.replace("_", "")
    return int(digits) if re.fullmatch(r"-?[0-9]{1,38}", digits) else None


def choice(*words: str) -> Type:
    def parse(reader: Reader, node: Node, _where: str) -> str:
        word = reader.text(node)
        if word not in words:
            raise ConfigError(f'"{word}" is not one of {", ".join(words)}')
        return words[words.index(word)]  # an enumeration's own member

    return Type(parse, {"enum": [str(word) for word in words]})


duration = Type(
    lambda reader, node, _where: parse_duration(reader.text(node)),
    {"type": "string", "pattern": rf"{PATTERN}|\$\{{"},
)


def parse_span(word: str) -> timedelta | int:
    """A duration, or units of an integer cursor."""
    number = _integer(word)
    if number is None:
        return parse_duration(word)
    if number < 0:
        raise ConfigError(f'"{word}" is below zero')
    return number


span = Type(lambda reader, node, _where: parse_span(reader.text(node)), {"type": ["string", "integer"]})


def _barrier(reader: Reader, node: Node, _where: str) -> str:
    word, _, amount = reader.text(node).partition(" ")
    if word != "lookback" or not amount:
        raise ConfigError(f'"{reader.text(node)}" is not understood; write: lookback 10m')
    parse_span(amount)
    return f"lookback {amount}"


barrier = Type(_barrier, {"type": "string", "pattern": r"^lookback |\$\{"})


def _zone(reader: Reader, node: Node, _where: str) -> str:
    name = reader.text(node)
    if name == "UTC":
        return name
    from zoneinfo import ZoneInfo, available_timezones

    try:
        ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        raise ConfigError(f'"{name}" is not a time zone{suggest_zone(name, available_timezones())}') from None
    return name


def suggest_zone(name: str, known: set[str]) -> str:
    near = suggest(name, known)
    return near if "did you mean" in near else "; write it like Europe/Berlin or UTC"


zone = Type(_zone, {"type": "string"})


def _names(reader: Reader, node: Node, where: str) -> tuple[str, ...]:
    parts = node.value if isinstance(node, SequenceNode) else [node]
    found = tuple(_text(reader, part, where) for part in parts)
    if not found:
        raise ConfigError("is empty")
    twice = {name for name in found if found.count(name) > 1}
    if twice:
        raise ConfigError(f'names "{min(twice)}" twice')
    return found


names = Type(_names, {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1, "uniqueItems": True}]})


def _stall(reader: Reader, node: Node, where: str) -> MaxStall:
    parts = reader.pairs(node, where)
    if set(parts) != {"after", "then"}:
        raise ConfigError("is written {after: 1h, then: fail} or {after: 1h, then: skip}")
    then = choice("fail", "skip").parse(reader, parts["then"][1], where)
    return MaxStall(parse_duration(reader.text(parts["after"][1])), then)


stall = Type(
    _stall,
    {
        "type": "object",
        "properties": {"after": duration.schema, "then": {"enum": ["fail", "skip"]}},
        "required": ["after", "then"],
        "additionalProperties": False,
    },
)


_TIMED = r"^\s*(every |(using |USING )?(cron |CRON )?[0-9*])"
schedule = Type(
    lambda reader, node, _where: schedules.parse(reader.text(node)),
    {"type": "string", "pattern": rf"{_TIMED}|^\s*(after \S+|manual)\s*$|\$\{{"},
)
timed = Type(
    lambda reader, node, _where: schedules.parse_timed(reader.text(node)),
    {"type": "string", "pattern": rf"{_TIMED}|\$\{{"},
)
checking = Type(lambda reader, node, _where: schedules.parse_checking(reader.text(node)), timed.schema)


_PERIODS = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}


def _freshness(reader: Reader, node: Node, where: str) -> Freshness:
    parts = reader.pairs(node, where)
    if not parts or not set(parts) <= {"warn_after", "error_after"}:
        raise ConfigError("is written {warn_after: {count: 10, period: minute}, error_after: {count: 1, period: hour}}")
    limits = {}
    for name, (_, value) in parts.items():
        limit = reader.pairs(value, f"{where}.{name}")
        if set(limit) != {"count", "period"}:
            raise ConfigError(f"{name} is written {{count: 10, period: minute}}")
        count = whole(1).parse(reader, limit["count"][1], where)
        period = choice(*_PERIODS).parse(reader, limit["period"][1], where)
        try:
            limits[name] = count * _PERIODS[period]
        except OverflowError:
            raise ConfigError(f"{name} is too long") from None
    return Freshness(**limits)


_LIMIT = {
    "type": "object",
    "properties": {"count": _WHOLE, "period": {"enum": list(_PERIODS)}},
    "required": ["count", "period"],
    "additionalProperties": False,
}
freshness = Type(
    _freshness,
    {
        "type": "object",
        "properties": {"warn_after": _LIMIT, "error_after": _LIMIT},
        "minProperties": 1,
        "additionalProperties": False,
    },
)


def _words(reader: Reader, node: Node, where: str) -> tuple[str, ...]:
    if not isinstance(node, SequenceNode) or not node.value:
        raise ConfigError("should be a list of words: [notify, --now]")
    return tuple(_text(reader, part, where) for part in node.value)


words = Type(_words, {"type": "array", "items": _TEXT, "minItems": 1})


def _hidden(reader: Reader, node: Node, where: str) -> tuple[str, ...]:
    found = _names(reader, node, where)
    for address in found:
        reader.redactor.register(address)
    return found


hidden = Type(_hidden, names.schema)
"""Names that are secrets as they are: addresses that hold tokens anywhere."""
_LONG_PATH = 12  # from here on it may be what gives access


def _webhook(reader: Reader, node: Node, where: str) -> Webhook:
    secret = ""
    if isinstance(node, MappingNode):
        parts = reader.pairs(node, where)
        if "url" not in parts or not set(parts) <= {"url", "secret"}:
            raise ConfigError("is written https://… or {url: https://…, secret: …}")
        if "secret" in parts:
            secret = _text(reader, parts["secret"][1], f"{where}.secret")
        node = parts["url"][1]
    url = _text(reader, node, where)
    reader.redactor.register(url)
    behind = url.partition("://")[2].partition("/")[2]
    if len(behind) >= _LONG_PATH:
        reader.redactor.register(behind)
    _check_http(url, "give the receiver a token in the path, or sign with a secret")
    return Webhook(url, secret)


def _check_http(url: str, instead: str) -> None:
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ConfigError("is no address of the kind https://host/path")
    if "@" in address.netloc:
        raise ConfigError(f"has a login in its address; {instead}")


def _collector(reader: Reader, node: Node, where: str) -> str:
    url = _text(reader, node, where)
    reader.redactor.register(urlsplit(url).query)
    _check_http(url, "give the collector a token: lineage.token")
    return url


_HTTP = {"type": "string", "pattern": r"^https?://|\$\{"}
collector = Type(_collector, _HTTP)
webhook = Type(
    _webhook,
    {
        "anyOf": [
            _HTTP,
            {
                "type": "object",
                "properties": {"url": _HTTP, "secret": _TEXT},
                "required": ["url"],
                "additionalProperties": False,
            },
        ]
    },
)


def _settings(reader: Reader, node: Node, where: str) -> dict[str, str]:
    return {name: reader.text(value, name) for name, (_, value) in reader.pairs(node, where).items()}


settings = Type(_settings, {"type": "object", "additionalProperties": _TEXT})


def _connect(reader: Reader, node: Node, _where: str) -> str:
    address = reader.text(node)
    if not address.startswith("sc://"):
        raise ConfigError("should be the address of a Spark Connect server: sc://host:15002")
    for secret in re.findall(r";token=([^;]+)", address):
        reader.redactor.register(secret)
    return address


connect = Type(_connect, {"type": "string", "pattern": r"^sc://|\$\{"})


def endpoint(role: str) -> Type:
    def parse(reader: Reader, node: Node, where: str) -> Endpoint:
        options: dict[str, str] = {}
        if isinstance(node, MappingNode):
            parts = reader.pairs(node, where)
            if "url" not in parts:
                raise ConfigError('has no "url"')
            options = {name: reader.text(value, name) for name, (_, value) in parts.items() if name != "url"}
            node = parts["url"][1]
        return place(reader, reader.text(node, url=True), options, role)

    address = {"type": "string", "minLength": 1}
    mapping = {"type": "object", "properties": {"url": address}, "required": ["url"], "additionalProperties": _TEXT}
    return Type(parse, {"anyOf": [address, mapping]})


def place(reader: Reader, url: str, options: Mapping[str, str], role: str) -> Endpoint:
    """An endpoint fit for its role, its secrets registered, its relative path taken from the config's folder."""
    found = Endpoint.parse(url.strip(), options)
    for secret in (found.password, *(value for name, value in found.options.items() if looks_secret(name))):
        reader.redactor.register(secret)
    if role not in ROLES[found.scheme]:
        fitting = ", ".join(scheme for scheme, roles in ROLES.items() if role in roles)
        hint = "; a Delta table in a folder is written delta:PATH" if found.scheme in ("file", "s3") else ""
        what = "a folder" if found.scheme == "file" else f"{found.scheme}:"
        raise ConfigError(f"{what} cannot be a {role}{hint}; {role}s are {fitting}")
    if not found.path and found.scheme in ("delta", "catalog", "file", "sqlite", "postgresql", "redshift", "snowflake"):
        what = (
            "path"
            if found.scheme in ("delta", "file", "sqlite")
            else "schema"
            if found.scheme == "catalog"
            else "database"
        )
        raise ConfigError(f"{found.scheme}: the address names no {what}")
    if not found.host and found.scheme in ("s3", "kafka", "redshift", "snowflake"):
        raise ConfigError(f"{found.scheme}: the address names no {'bucket' if found.scheme == 's3' else 'host'}")
    return found.resolved(reader.root)


def part(schema: Mapping[str, Any]) -> Type:
    """A value with keys of its own, left as a node for `load` to read."""
    return Type(lambda _reader, node, _where: node, schema)
