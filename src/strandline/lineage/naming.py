"""What OpenLineage calls a table: a namespace for the place and a name within it. Pure.

The rules are those of https://openlineage.io/docs/spec/naming. Neither holds a user or a password.
"""

from __future__ import annotations

from strandline.endpoint import Endpoint
from strandline.stage.layout import Layout

_PORTS = {"postgresql": 5432, "mysql": 3306, "redshift": 5439}

Name = tuple[str, str]
"""Namespace and name."""


def table_name(end: Endpoint, table: str) -> Name:
    """Of a table in a source or target; a name without a schema lies in the address's own."""
    match end.scheme:
        case "postgresql":
            return f"postgres://{_server(end)}", f"{end.path}.{_within(end.options.get('schema') or 'public', table)}"
        case "redshift":
            return f"redshift://{_cluster(end)}", f"{end.path}.{_within(end.options.get('schema') or 'public', table)}"
        case "mysql":  # what others call a schema is a database here
            return f"mysql://{_server(end)}", _within(end.options.get("schema") or end.path, table)
        case "snowflake":
            database, _, schema = end.path.partition("/")
            return f"snowflake://{end.host}", f"{database}.{_within(end.options.get('schema') or schema, table)}"
        case "kafka":
            first = end.host.partition(",")[0]
            topic = end.options.get("topic", "{table}").replace("{table}", table)
            return f"kafka://{first if ':' in first else f'{first}:9092'}", topic
        case "catalog":
            return f"catalog://{end.path.partition('.')[0]}", f"{end.path}.{table}"
        case "stdout":
            return "stdout://", table
    return _files(end, table)


def staged_name(stage: Endpoint, pipeline: str, table: str) -> Name:
    """Of a table's batches between two hops."""
    return _files(stage, Layout(pipeline, table).folder)


def _within(schema: str, table: str) -> str:
    return table if "." in table else f"{schema}.{table}"


def _server(end: Endpoint) -> str:
    host = end.host or "localhost"
    return f"{f'[{host}]' if ':' in host else host}:{end.port or _PORTS[end.scheme]}"


def _cluster(end: Endpoint) -> str:
    """`cluster.id.region.redshift.amazonaws.com` is the cluster in its region; any other host is itself."""
    parts = end.host.split(".")
    host = f"{parts[0]}.{parts[2]}" if end.host.endswith(".redshift.amazonaws.com") and len(parts) > 5 else end.host
    return f"{host}:{end.port or _PORTS[end.scheme]}"


def _files(end: Endpoint, name: str) -> Name:
    """Below a bucket or a folder."""
    address = f"s3://{end.host}/{end.path}" if end.scheme == "s3" else end.path
    if "://" in address:
        scheme, _, rest = address.partition("://")
        bucket, _, prefix = rest.partition("/")
        return f"{scheme.replace('s3a', 's3')}://{bucket}", "/".join(filter(None, (prefix.strip("/"), name)))
    return "file", f"{address.rstrip('/')}/{name}"
