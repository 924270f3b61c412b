"""What Spark must be told to reach an object store: the same place and login that `objects` uses.

Settings are per bucket. A stage puts them on the session of one batch, so that a session the caller made keeps its own;
Delta reads its log past such sessions, so ours is started with them, and the caller's must have been.
"""

from __future__ import annotations

from collections.abc import Iterable

from strandline.endpoint import Endpoint
from strandline.spark.jars import PINNED

# A store that is away is told within a minute, where S3A alone would be at it for ten: runs try again by themselves.
_PATIENCE = {"attempts.maximum": "2", "retry.limit": "3"}


def needs(endpoints: Iterable[Endpoint]) -> list[str]:
    """What Spark needs jars for, to reach all of these (`jars.PINNED`)."""
    found = {name for end in endpoints for name in (end.scheme, "s3" if _bucket(end) else "")}
    found |= {"delta"} if "catalog" in found else set()
    return sorted(found & PINNED.keys())


def storage_settings(endpoint: Endpoint) -> dict[str, str]:
    """S3A's settings for an `s3://` endpoint, or a `delta:s3://…` one; nothing for a directory."""
    bucket = _bucket(endpoint)
    if not bucket:
        return {}
    from strandline.objects.s3 import s3_settings

    found = s3_settings(endpoint)
    names = {
        "endpoint": "endpoint",
        "region": "endpoint.region",
        "access_key_id": "access.key",
        "secret_access_key": "secret.key",
        "session_token": "session.token",
        "path_style": "path.style.access",
    }
    chosen = {names[name]: value for name, value in found.items()}
    if "session_token" in found:
        chosen["aws.credentials.provider"] = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
    elif "access_key_id" in found:
        chosen["aws.credentials.provider"] = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
    if found.get("endpoint", "").startswith("http://"):
        chosen["connection.ssl.enabled"] = "false"
    chosen |= _PATIENCE
    return {f"fs.s3a.bucket.{bucket}.{name}": value for name, value in chosen.items()}


def session_settings(endpoints: Iterable[Endpoint]) -> dict[str, str]:
    """What a session of ours is started with, to reach all of these."""
    return {f"spark.hadoop.{key}": value for end in endpoints for key, value in storage_settings(end).items()}


def delta_options(endpoint: Endpoint) -> dict[str, str]:
    """What delta-rs must be told to read a table's log at this endpoint."""
    if not _bucket(endpoint):
        return dict(endpoint.options)
    from strandline.objects.s3 import s3_settings

    found = s3_settings(endpoint)
    style = {"true": "false", "false": "true", "": ""}[found.pop("path_style", "")]
    chosen = {f"aws_{name}": value for name, value in found.items()} | {"aws_virtual_hosted_style_request": style}
    if found.get("endpoint", "").startswith("http://"):
        chosen["allow_http"] = "true"
    return {name: value for name, value in chosen.items() if value}


def spark_path(uri: str) -> str:
    """An address as Spark takes it."""
    return f"s3a://{uri.removeprefix('s3://')}" if uri.startswith("s3://") else uri


def _bucket(endpoint: Endpoint) -> str:
    if endpoint.scheme == "s3":
        return endpoint.host
    if endpoint.scheme == "delta" and endpoint.path.startswith(("s3://", "s3a://")):
        return endpoint.path.partition("://")[2].partition("/")[0]
    return ""
