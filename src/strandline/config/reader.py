"""Reading: from a YAML file to nodes that know their line, to values; every problem is noted, none stops the reading.

Owns files, lines, `${…}` and the walk over declared keys. Knows no key by name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from strandline.core.errors import ConfigError
from strandline.secrets import Redactor, looks_secret, url_passwords

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_PLACEHOLDER = re.compile(r"\$\$|\$\{([^{}]*)\}|\$\{")
_LOGIN = re.compile(r"^[A-Za-z0-9+.-]+://(?:\$\{[^{}]*\}|[^@/?#$:]|\$(?!\{))*:(?:\$\{[^{}]*\}|[^@/?#$]|\$(?!\{))*(?=@)")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.S)


@dataclass(frozen=True)
class Type:
    """How a value is read, and what it looks like to an editor (JSON Schema)."""

    parse: Callable[[Reader, Node, str], Any]
    schema: Mapping[str, Any]


@dataclass(frozen=True)
class Key:
    type: Type
    doc: str


class Place(NamedTuple):
    file: str
    line: int = 0  # 0: the file as a whole

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass
class Problems:
    """Everything wrong with the configuration, each with its place."""

    found: dict[tuple[Place, str], None] = field(default_factory=dict)  # a shared anchor is reported once

    def add(self, place: Place, message: str) -> None:
        self.found[place, message] = None

    def stop(self, redactor: Redactor, remedy: str = "") -> None:
        """Raise if there are any: all at once, file by file, by line."""
        if self.found:
            files = list(dict.fromkeys(place.file for place, _ in self.found))
            ordered = sorted(self.found, key=lambda one: (files.index(one[0].file), one[0].line))
            text = "\n".join(f"{place}: {message}" for place, message in ordered)
            raise ConfigError(redactor.redact(text), remedy=remedy, docs="docs/configuration.md")


@dataclass
class Reader:
    """One file being read. `root` is the folder of the main file: relative paths of all files start there."""

    path: Path
    root: Path
    environ: Mapping[str, str]
    redactor: Redactor
    problems: Problems

    def document(self) -> MappingNode | None:
        """The file's top mapping; None with a problem noted where there is none."""
        try:
            node = yaml.compose(self.path.read_bytes().decode("utf-8-sig"), Loader=_LOADER)
        except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
            self.problems.add(*_unusable(self.path, error))
            return None
        if isinstance(node, MappingNode):
            return node
        empty = node is None or is_null(node)
        what = "is empty" if empty else 'is not a mapping of keys; it starts with "pipelines:"'
        self.problems.add(Place(self.file), what)
        return None

    @cached_property
    def file(self) -> str:
        return shown(self.path)

    def place(self, node: Node) -> Place:
        return Place(self.file, node.start_mark.line + 1)

    def problem(self, node: Node, message: str) -> None:
        self.problems.add(self.place(node), message)

    def pairs(self, node: Node, where: str) -> dict[str, tuple[Node, Node]]:
        """Key → (key node, value node). Notes duplicate keys; `<<` merges, explicit keys win."""
        if not isinstance(node, MappingNode):
            raise ConfigError("should be a mapping of keys")
        found: dict[str, tuple[Node, Node]] = {}
        merged: dict[str, tuple[Node, Node]] = {}
        for name, value in node.value:
            if name.tag == _TAG + "merge":
                for part in value.value if isinstance(value, SequenceNode) else [value]:
                    merged = {**self.pairs(part, where), **merged}
            elif not isinstance(name, ScalarNode):
                self.problem(name, f"a key{_inside(where)} is not a plain word")
            elif name.value in found:
                first = found[name.value][0].start_mark.line + 1
                self.problem(name, f'key "{name.value}"{_inside(where)} is given twice, first in line {first}')
            else:
                found[name.value] = (name, value)
        return {**merged, **found}

    def group(self, keys: Mapping[str, Key], node: Node, where: str, *, null: bool = False) -> dict[str, Any]:
        """The values given for declared keys. `null` lets an empty value stand for "none", else it is a problem."""
        values: dict[str, Any] = {}
        for name, (key_node, value) in self.pairs(node, where).items():
            key = keys.get(name)
            if key is None:
                self.problem(key_node, f'unknown key "{name}"{_inside(where)}{suggest(name, keys)}')
            elif null and is_null(value):
                values[name] = None
            else:
                inner = f"{where}.{name}" if where else name
                try:
                    values[name] = self.value(key.type, value, inner)
                except ConfigError as error:
                    self.problem(value, f"{inner}: {error.message}")
        return values

    def value(self, type_: Type, node: Node, where: str) -> Any:
        """Raises ConfigError without a place; whoever walks the keys adds it."""
        if is_null(node):
            raise ConfigError("has no value")
        return type_.parse(self, node, where)

    def text(self, node: Node, name: str = "", *, url: bool = False) -> str:
        """A scalar's text as written, `${…}` filled in; secrets among it are registered.

        Inside the `user:password@` of a URL, values are percent-encoded, so that any password can be a variable.
        """
        if not isinstance(node, ScalarNode) or is_null(node):
            raise ConfigError("should be a single value")
        raw: str = node.value
        login = _LOGIN.match(raw) if url else None
        text = raw
        if "$" in raw:
            text = _PLACEHOLDER.sub(lambda found: self._fill(found, login.end() if login else 0), raw)
        if "\0" in text:
            raise ConfigError("holds a NUL character")
        if name and looks_secret(name):
            self.redactor.register(text)
        for password in url_passwords(text):
            self.redactor.register(password)
        return text

    def _fill(self, found: re.Match[str], encode_until: int) -> str:
        if found[0] == "$$":
            return "$"
        if found[1] is None:
            raise ConfigError('"${" is not closed; write $$ for a dollar sign')
        value = self._lookup(found[1])
        if looks_secret(found[1].partition(":-")[0]):
            self.redactor.register(value)
        return quote(value, safe="") if found.start() < encode_until else value

    def _lookup(self, inside: str) -> str:
        if inside.startswith("file:"):
            path = self.root / inside.removeprefix("file:")
            try:
                return path.read_text("utf-8").rstrip("\r\n")
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text, or no path"
                raise ConfigError(f"file {shown(path)} cannot be read: {reason}") from None
        found = _VARIABLE.fullmatch(inside)
        if not found:
            raise ConfigError(
                f'"${{{inside}}}" is not a variable; write ${{NAME}}, ${{NAME:-default}} or ${{file:PATH}}'
            )
        name, default = found.groups()
        value = self.environ.get(name)
        if default is not None and not value:
            return str(default)
        if value is None:
            raise ConfigError(f"variable {name} is not set; set it, or write ${{{name}:-default}}")
        return value


def _unusable(path: Path, error: Exception) -> tuple[Place, str]:
    """Place and reason."""
    file = shown(path)
    if isinstance(error, OSError):
        return Place(file), f"cannot be read: {error.strerror}"
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        return Place(file, mark.line + 1 if mark else 0), f"is not YAML: {error.problem}"
    return Place(file), f"is not YAML in UTF-8: {' '.join(str(error).split())}"


def is_null(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.tag == _TAG + "null"


def shown(path: Path) -> str:
    """The path as short as it is clear: relative where it lies below the working folder."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def normal(path: Path) -> Path:
    """Without "..", and with links left as they are: a mounted config map changes what its links point to."""
    return Path(os.path.normpath(path))


def suggest(word: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    names = list(known)
    near = get_close_matches(word, names, 1)
    return f'; did you mean "{near[0]}"?' if near else f"; known are {', '.join(sorted(names))}"


def _inside(where: str) -> str:
    return f" in {where}" if where else ""


def find_file(path: Path | None, environ: Mapping[str, str]) -> Path:
    """Given path → STRANDLINE_CONFIG → strandline.yml in this folder or one above."""
    remedy = "Make one with: strandline init, or name it: -c FILE"
    if path is None and environ.get("STRANDLINE_CONFIG"):
        path = Path(environ["STRANDLINE_CONFIG"])
        remedy = "STRANDLINE_CONFIG names this file: correct it, or make the file with: strandline init"
    if path is not None:
        try:
            path.stat()
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}", remedy=remedy) from None
        return normal(path.absolute())
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "strandline.yml").is_file():
            return folder / "strandline.yml"
    raise ConfigError("there is no strandline.yml in this folder or one above it", remedy=remedy)
