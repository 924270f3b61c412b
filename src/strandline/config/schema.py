"""The declared keys for others: JSON Schema for editors and Markdown tables for docs/configuration.md.

`python -m strandline.config.schema` prints the schema that is published as schema/strandline.schema.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from strandline.config.load import DEFAULTS_KEYS
from strandline.config.reader import Key
from strandline.config.specs import (
    AlertsSpec,
    Config,
    LineageSpec,
    PipelineSpec,
    ServiceSpec,
    SparkSpec,
    Spec,
    TableSpec,
    default_text,
    keys,
)


def json_schema() -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "strandline.yml",
        **_object(keys(Config)),
        "$defs": {
            "pipeline": {
                **_object(keys(PipelineSpec), required=("source", "tables")),
                "oneOf": [{"required": ["target"]}, {"required": ["targets"]}],
            },
            "table": _object(keys(TableSpec), required=("name",), null=True),
            "defaults": _object(DEFAULTS_KEYS),
            "spark": _object(keys(SparkSpec)),
            "service": _object(keys(ServiceSpec)),
            "alerts": {**_object(keys(AlertsSpec)), "minProperties": 1},
            "lineage": {**_object(keys(LineageSpec)), "oneOf": [{"required": ["url"]}, {"required": ["file"]}]},
        },
    }


def _object(declared: Mapping[str, Key], required: tuple[str, ...] = (), null: bool = False) -> dict[str, Any]:
    properties = {}
    for name, key in declared.items():
        schema = {"description": key.doc, **key.type.schema}
        if null and name not in required:
            schema = {"description": key.doc, "anyOf": [dict(key.type.schema), {"type": "null"}]}
        properties[name] = schema
    found: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**found, "required": list(required)} if required else found


def key_table(spec: Spec) -> str:
    """A Markdown table of keys, their defaults and meaning."""
    lines = ["| key | default | meaning |", "| --- | --- | --- |"]
    for name, key in keys(spec).items():
        default = default_text(spec, name)
        lines.append(f"| `{name}` | {f'`{default}`' if default else ''} | {key.doc} |")
    return "\n".join(lines)


def schema_text() -> str:
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")
