"""Objects on S3 and what speaks its protocol, over obstore."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from configparser import ConfigParser, Error
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import S3Store

from strandline.core.errors import ConfigError, ConnectError, StrandlineError, TransientError
from strandline.endpoint import Endpoint
from strandline.objects import Entry

if TYPE_CHECKING:
    from obstore import PutMode

_TRIES = 5  # of a conditional put that met another one under way
_DOCS = "docs/stage.md#s3"
_REMEDIES = (
    (r"NoSuchBucket", "the bucket does not exist", "Create it, or correct the name in the address."),
    (r"InvalidBucketName", "the bucket's name is not valid", "Correct the name in the address."),
    (
        r"RequestTimeTooSkewed|RequestExpired",
        "this machine's clock is too far from the store's",
        "Set the clock (ntp), then try again.",
    ),
    (
        r"ExpiredToken|TokenRefreshRequired",
        "the credentials have expired",
        "Renew them (AWS_SESSION_TOKEN, or sign in again), then run the same command.",
    ),
    (
        r"InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|AuthorizationHeaderMalformed|InvalidClientTokenId",
        "the credentials are wrong",
        "Check access_key_id, secret_access_key and region (options of the address, or AWS_… in the environment).",
    ),
    (
        r"instance metadata|169\.254|[Nn]o credentials|CredentialsError|credential provider",
        "no credentials were found",
        "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or the options of the address.",
    ),
    (
        r"AccessDenied|AllAccessDisabled|403 Forbidden|status: Forbidden|AccountProblem|MethodNotAllowed",
        "access is denied",
        "The login needs s3:ListBucket on the bucket and s3:GetObject, s3:PutObject, s3:DeleteObject on the prefix.",
    ),
    (
        r"PermanentRedirect|301 Moved|bare redirect|IllegalLocationConstraint",
        "the bucket is in another region",
        "Set `region` (option of the address) or AWS_REGION to the bucket's region.",
    ),
)


class S3Objects:
    """One bucket and prefix. Waits at most about twenty seconds for a store that does not answer."""

    def __init__(self, endpoint: Endpoint) -> None:
        if not endpoint.host:
            raise ConfigError(f"{endpoint} names no bucket", remedy="Write s3://bucket/prefix.")
        self.address = str(endpoint)
        self._base = f"s3a://{endpoint.host}/{endpoint.path.strip('/')}".rstrip("/")
        settings = s3_settings(endpoint)
        allow_http = settings.get("endpoint", "").startswith("http://")
        self._store = S3Store(
            endpoint.host,
            prefix=endpoint.path.strip("/") or None,
            config=_config(settings),
            client_options={"allow_http": allow_http, "connect_timeout": "5s", "timeout": "60s"},
            retry_config={"max_retries": 4, "retry_timeout": timedelta(seconds=20)},
        )

    def url(self, key: str) -> str:
        return f"{self._base}/{key}"

    def get(self, key: str) -> bytes | None:
        found = self.find(key)
        return found[0] if found else None

    def find(self, key: str) -> tuple[bytes, Entry] | None:
        try:
            result = obstore.get(self._store, key)
            return bytes(result.bytes()), _entry(key, result.meta)
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise self._explain(error) from error
            return None
        except (BaseError, OSError) as error:
            raise self._explain(error) from error

    def create(self, key: str, data: bytes) -> bool:
        for attempt in range(_TRIES):
            try:
                self._put(key, data, "create")
                return True
            except AlreadyExistsError:
                found = self.get(key)
                if found is not None:
                    return found == data
                time.sleep(0.05 * 2**attempt)  # 409: another conditional put is under way, and may yet fail
        raise TransientError(f"{self.address}/{key}: another writer has been in the way for a while")

    def replace(self, key: str, data: bytes, etag: str | None = None) -> str | None:
        try:
            return self._put(key, data, "overwrite" if etag is None else {"e_tag": etag})
        except (PreconditionError, AlreadyExistsError):
            found = self.find(key)
            return found[1].etag if found and found[0] == data else None

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        try:
            for page in obstore.list(self._store, prefix or None, offset=after or None, chunk_size=1000):
                for meta in page:
                    yield _entry(meta["path"], meta)
        except (BaseError, OSError) as error:
            raise self._explain(error) from error

    def folders(self, prefix: str = "") -> Sequence[str]:
        try:
            found = obstore.list_with_delimiter(self._store, prefix or None)
            return sorted(path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"])
        except (BaseError, OSError) as error:
            raise self._explain(error) from error

    def tail(self, key: str, size: int) -> bytes:
        try:
            return bytes(obstore.get(self._store, key, options={"range": {"suffix": size}}).bytes())
        except (BaseError, OSError) as error:
            raise self._explain(error) from error

    def settle(self, keys: Iterable[str]) -> None:
        """What S3 has taken is durable."""

    def delete(self, keys: Iterable[str]) -> None:
        pending = [*keys]
        try:
            for start in range(0, len(pending), 1000):
                obstore.delete(self._store, pending[start : start + 1000])
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise self._explain(error) from error
        except (BaseError, OSError) as error:
            raise self._explain(error) from error

    def _put(self, key: str, data: bytes, mode: PutMode) -> str:
        try:
            return _bare(obstore.put(self._store, key, data, mode=mode, use_multipart=False)["e_tag"])
        except (AlreadyExistsError, PreconditionError):
            raise
        except (BaseError, OSError) as error:
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> StrandlineError:
        text = str(error)
        for pattern, what, remedy in _REMEDIES:
            if re.search(pattern, text):
                return ConnectError(f"{self.address}: {what}", why=_answer(text), remedy=remedy, docs=_DOCS)
        if re.search(r"dns error|failed to lookup", text):
            remedy = "Check the option `endpoint` and the region."
            return ConnectError(f"{self.address}: no such host", why=_answer(text), remedy=remedy, docs=_DOCS)
        remedy = "Check that the store is up and that `endpoint` leads to it; the next run tries again."
        return TransientError(f"{self.address}: no proper answer", why=_answer(text), remedy=remedy)


def s3_settings(endpoint: Endpoint) -> dict[str, str]:
    """What both obstore and Spark's S3A need to know: `endpoint`, `region`, `access_key_id`, `secret_access_key`,
    `session_token`, `path_style`; from the endpoint's options, then the environment, then a profile of plain keys."""
    options, env = endpoint.options, os.environ
    found = {
        "endpoint": options.get("endpoint") or env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL", ""),
        "region": options.get("region") or env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION", ""),
    }
    keys = {name: options.get(name, "") for name in ("access_key_id", "secret_access_key", "session_token")}
    keys["access_key_id"] = keys["access_key_id"] or endpoint.user
    keys["secret_access_key"] = keys["secret_access_key"] or endpoint.password
    if not keys["access_key_id"] and not options.get("profile"):
        keys = {name: env.get(f"AWS_{name.upper()}", "") for name in keys}
    if not keys["access_key_id"]:
        keys, region = _profile(options.get("profile") or env.get("AWS_PROFILE"))
        found["region"] = found["region"] or region
    style = options.get("path_style", "").lower()
    if style not in ("", "true", "false"):
        raise ConfigError(f'{endpoint}: path_style is "{style}"', remedy="Write true or false.")
    found["path_style"] = style or ("true" if found["endpoint"] else "")
    return {name: value for name, value in (found | keys).items() if value}


def _profile(name: str | None) -> tuple[dict[str, str], str]:
    """Keys and region of a profile that holds plain keys; a profile that was asked for by name must hold them."""
    home = Path.home() / ".aws"
    files = [os.environ.get("AWS_SHARED_CREDENTIALS_FILE", home / "credentials")]
    files.append(os.environ.get("AWS_CONFIG_FILE", home / "config"))
    parser = ConfigParser(interpolation=None)
    try:
        parser.read(files)
    except (Error, OSError) as error:
        raise ConfigError(f"the AWS profiles cannot be read: {type(error).__name__}") from None
    found: dict[str, str] = {}
    for section in (name or "default", f"profile {name or 'default'}"):
        found |= dict(parser[section]) if parser.has_section(section) else {}
    if name and "aws_access_key_id" not in found:
        raise ConfigError(
            f'the AWS profile "{name}" holds no keys',
            why="A profile that signs in or takes on a role is not read here.",
            remedy='Export its keys first: eval "$(aws configure export-credentials --format env)"',
        )
    keys = ("access_key_id", "secret_access_key", "session_token")
    return {key: found.get(f"aws_{key}", "") for key in keys}, found.get("region", "")


def _config(settings: dict[str, str]) -> Any:
    """Without keys obstore asks the container's or the instance's own role."""
    config: dict[str, Any] = {name: value for name, value in settings.items() if name != "path_style"}
    if "path_style" in settings:
        config["virtual_hosted_style_request"] = settings["path_style"] == "false"
    return config


def _entry(key: str, meta: Any) -> Entry:
    return Entry(key, meta["size"], meta["last_modified"], _bare(meta["e_tag"]))


def _bare(etag: str | None) -> str:
    return (etag or "").strip('"')


def _answer(text: str) -> str:
    """The store's own words, without the debug form that repeats them and without long documents."""
    code, message = re.search(r"<Code>(.*?)</Code>", text), re.search(r"<Message>(.*?)</Message>", text)
    if code:
        return f"{code[1]}: {message[1]}" if message else code[1]
    return text.split("\n\nDebug source:")[0][:500]
