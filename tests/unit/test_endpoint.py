"""Endpoints are read as people write them and never show their password."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.core.errors import ConfigError
from strandline.endpoint import Endpoint


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        (
            "postgresql://reader:p%40ss@db:5432/shop?sslmode=require",
            Endpoint("postgresql", "shop", "db", 5432, "reader", "p@ss", {"sslmode": "require"}),
        ),
        ("postgres://db/shop", Endpoint("postgresql", "shop", "db")),
        ("postgresql:///shop?host=/run/pg", Endpoint("postgresql", "shop", options={"host": "/run/pg"})),
        ("mariadb://root@[::1]:3306/shop", Endpoint("mysql", "shop", "::1", 3306, "root")),
        ("mysql://h/shop?user=u&password=pw1", Endpoint("mysql", "shop", "h", None, "u", "pw1")),
        ("snowflake://u:pw@account/DB/PUBLIC", Endpoint("snowflake", "DB/PUBLIC", "account", None, "u", "pw")),
        ("kafka://h1:9092,h2:9092?topic=t", Endpoint("kafka", "", "h1:9092,h2:9092", options={"topic": "t"})),
        ("s3://bucket/a/b", Endpoint("s3", "a/b", "bucket")),
        ("delta:lake", Endpoint("delta", "lake")),
        ("delta:s3://bucket/lake", Endpoint("delta", "s3://bucket/lake")),
        ("catalog:main.shop", Endpoint("catalog", "main.shop")),
        ("stdout:", Endpoint("stdout")),
        ("sqlite:///state.db", Endpoint("sqlite", "state.db")),
        ("sqlite:////var/state.db", Endpoint("sqlite", "/var/state.db")),
        ("file:///var/stage", Endpoint("file", "/var/stage")),
        ("postgresql://h:1/d?user=me@corp", Endpoint("postgresql", "d", "h", 1, "me@corp")),
        ("./stage", Endpoint("file", "./stage")),
    ],
)
def test_addresses_are_read(url: str, endpoint: Endpoint) -> None:
    assert Endpoint.parse(url) == endpoint


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgressql://h/d", 'did you mean "postgresql:"'),
        ("oracle://h/d", "known are"),
        ("postgresql://u:pw@h:port/d", "cannot be read"),
        ("postgresql://u:12/hunter2@h/d", "cannot be read"),
        ("postgresql://u:12?hunter2@h/d", "cannot be read"),
        ("postgresql://u:12#hunter2@h/d", "cannot be read"),
        ("postgresql:shop", "is followed by"),
        ("delta:s3://key:hunter2@bucket/lake", "takes no user or password"),
    ],
)
def test_a_wrong_address_is_refused_without_repeating_it(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Endpoint.parse(url)
    assert "hunter2" not in caught.value.explain()
    assert ":pw@" not in caught.value.explain()


def test_neither_text_form_shows_the_password_or_options() -> None:
    endpoint = Endpoint.parse("postgresql://u:hunter2@h:5432/d?token=t0k3n", {"sslpassword": "another"})
    for text in (str(endpoint), repr(endpoint), f"{endpoint}"):
        assert not any(secret in text for secret in ("hunter2", "t0k3n", "another"))
    assert str(endpoint) == "postgresql://u@h:5432/d"


@pytest.mark.parametrize(
    "url", ["mysql://root@[::1]:3306/shop", "sqlite:////var/s.db", "sqlite:///s.db", "delta:/lake", "/var/stage"]
)
def test_what_is_shown_reads_back_as_the_same_place(url: str) -> None:
    assert Endpoint.parse(str(Endpoint.parse(url))) == Endpoint.parse(url)


def test_options_beside_the_url_win_over_those_in_it() -> None:
    endpoint = Endpoint.parse("mysql://u:old@h/d?ssl=0", {"password": "new", "ssl": "1"})
    assert (endpoint.password, endpoint.options) == ("new", {"ssl": "1"})


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///a/state.db", "/project/a/state.db"),
        ("delta:../lake", "/lake"),
        ("delta:/abs/lake", "/abs/lake"),
        ("stage", "/project/stage"),
        ("delta:s3://bucket/lake", "s3://bucket/lake"),
        ("postgresql://h/shop", "shop"),
    ],
)
def test_relative_paths_are_taken_from_the_given_folder(url: str, path: str) -> None:
    assert Endpoint.parse(url).resolved(Path("/project")).path == path
