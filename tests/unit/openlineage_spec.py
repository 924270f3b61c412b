"""Whether an event is as OpenLineage says.

The official client's classes are generated from the JSON Schema; here a key they do not know, one that is missing and
one of another type fails. Where STRANDLINE_OPENLINEAGE_SPEC names the `spec` folder of OpenLineage's repository, every
event is held against the schema itself, too.
"""

from __future__ import annotations

import json
import os
import pkgutil
from functools import cache
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import attr
from openlineage.client import generated
from openlineage.client.generated import base


def conforms(event: dict[str, Any]) -> None:
    _built(base.RunEvent, event)
    if spec := os.environ.get("STRANDLINE_OPENLINEAGE_SPEC"):
        _against_the_schema(Path(spec), event)


@cache
def _facets() -> dict[str, type]:
    """Every facet there is, by the address of its schema."""
    found = {}
    for module in pkgutil.iter_modules(generated.__path__):
        for kind in vars(import_module(f"{generated.__name__}.{module.name}")).values():
            if isinstance(kind, type) and issubclass(kind, base.BaseFacet):
                found[kind._get_schema()] = kind
    return found


def _built(kind: Any, value: Any) -> Any:
    """The value as an object of this kind, whose own checks then run."""
    if isinstance(kind, type) and issubclass(kind, base.BaseFacet):
        found = _facets()[value["_schemaURL"]]
        assert issubclass(found, kind), f"{found.__name__} is no {kind.__name__}"
        kind = found
    if attr.has(kind):
        return _object(kind, value)
    match get_origin(kind):
        case origin if origin is list:
            return [_built(get_args(kind)[0], part) for part in value]
        case origin if origin is dict:
            return {name: _built(get_args(kind)[1], part) for name, part in value.items()}
        case origin if origin in (Union, UnionType):
            kinds = [part for part in get_args(kind) if part is not NoneType]
            assert len(kinds) == 1, kind
            return _built(kinds[0], value)
    if kind is base.EventType:
        return base.EventType(value)
    assert type(value) is kind, f"{value!r} is no {kind}"
    return value


def _object(kind: Any, value: dict[str, Any]) -> Any:
    hints, fields = get_type_hints(kind), {field.name: field for field in attr.fields(kind)}
    required = {name for name, field in fields.items() if field.default is attr.NOTHING}
    assert required <= set(value), f"{kind.__name__} lacks {required - set(value)}"
    unknown = set(value) - set(fields)
    assert not unknown or kind in (base.RunFacet, base.JobFacet), f"{kind.__name__} does not know {unknown}"
    built = {name: _built(hints[name], value[name]) for name in fields if name in value}
    for name in {"schemaURL", "_schemaURL"} & set(fields):
        assert built.pop(name, "") == kind._get_schema()
    assert "_producer" not in fields or built["_producer"], f"{kind.__name__} lacks a producer"
    return kind(**{fields[name].alias: part for name, part in built.items()})


@cache
def _validators(spec: Path) -> dict[str, Any]:
    rs = import_module("jsonschema_rs")
    files = [spec / "OpenLineage.json", *sorted((spec / "facets").glob("*.json"))]
    schemas = {schema["$id"]: schema for schema in map(json.loads, (file.read_text() for file in files))}
    registry = rs.Registry(list(schemas.items()))
    return {
        address: rs.Draft202012Validator(schema, registry=registry, validate_formats=True)
        for address, schema in schemas.items()
    }


def _against_the_schema(spec: Path, event: dict[str, Any]) -> None:
    validators = _validators(spec)
    validators[event["schemaURL"].partition("#")[0]].validate(event)
    ends = [*event.get("inputs", ()), *event.get("outputs", ())]
    groups = [event["run"]["facets"], event["job"]["facets"], *(end["facets"] for end in ends)]
    groups += [end.get(name, {}) for end in ends for name in ("inputFacets", "outputFacets")]
    for facets in groups:
        for name, facet in facets.items():
            if "/facets/" in facet["_schemaURL"]:  # others are our own, and were looked at with the event
                validators[facet["_schemaURL"].partition("#")[0]].validate({name: facet})
