"""A registered secret is seen in no text, in whatever form it gets there."""

from __future__ import annotations

import io
import json
import logging
import re
from urllib.parse import quote, quote_plus

import pytest

from strandline.secrets import Redactor, looks_secret

SECRET = "p@ss/wörd \"x' é&1"


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        quote(SECRET, safe=""),
        quote(SECRET),
        quote_plus(SECRET),
        re.sub("%..", lambda found: found[0].lower(), quote(SECRET, safe="")),
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        repr(SECRET)[1:-1],
        "p@ss/wörd &quot;x&#x27; é&amp;1",
    ],
)
def test_every_form_of_a_secret_is_hidden(form: str) -> None:
    redactor = Redactor()
    redactor.register(SECRET)
    assert redactor.redact(f"login failed: password={form}, retrying") == "login failed: password=***, retrying"


def test_a_short_word_is_hidden_alone_but_not_inside_other_words() -> None:
    redactor = Redactor()
    redactor.register("dev")
    assert redactor.redact("dev on device, 'dev' %3Ddev \\ndev dev:dev") == "*** on device, '***' %3D*** \\n*** ***:***"


def test_a_long_secret_is_hidden_anywhere() -> None:
    redactor = Redactor()
    redactor.register("correct-horse-battery")
    assert redactor.redact("xcorrect-horse-batteryx") == "x***x"


def test_one_or_two_characters_are_hidden_only_where_a_secret_is_expected() -> None:
    redactor = Redactor()
    redactor.register("a1")
    text = "a1 rows; password=a1; {'password': 'a1'}; postgresql://u:a1@h/d"
    assert redactor.redact(text) == "a1 rows; password=***; {'password': '***'}; postgresql://u:***@h/d"


def test_the_password_of_any_url_is_hidden_even_if_nobody_registered_it() -> None:
    assert (
        Redactor().redact("cannot reach mysql://app:hunter2@db:3306/shop")
        == "cannot reach mysql://app:***@db:3306/shop"
    )


def test_a_secret_that_contains_another_is_hidden_whole() -> None:
    redactor = Redactor()
    redactor.register("hunter2-and-more")
    redactor.register("hunter2")
    assert redactor.redact("hunter2-and-more hunter2") == "*** ***"


def test_the_lines_of_a_private_key_are_hidden_one_by_one() -> None:
    redactor = Redactor()
    redactor.register("-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0\n-----END KEY-----")
    assert redactor.redact("  | MIIEvQIBADANBgkqhkiG9w0") == "  | ***"


def test_an_empty_value_hides_nothing() -> None:
    redactor = Redactor()
    redactor.register("")
    assert redactor.redact("nothing to see") == "nothing to see"


def test_logs_are_redacted_with_their_arguments_and_tracebacks() -> None:
    redactor = Redactor()
    redactor.register("hunter2")
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(redactor.formatter(logging.Formatter("%(levelname)s %(message)s")))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    try:
        raise ValueError("wrong password hunter2")
    except ValueError:
        logger.exception("login of %s failed", {"password": "hunter2"})
    assert "hunter2" not in stream.getvalue()
    assert "ERROR login of {'password': '***'} failed" in stream.getvalue()
    assert "ValueError: wrong password ***" in stream.getvalue()


@pytest.mark.parametrize("name", ["PGPASSWORD", "db_passwd", "/run/secrets/pw", "sslpassword", "aws_secret_access_key"])
def test_names_of_secrets_are_known(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", ["key", "cursor", "PGUSER", "HOST", "slice_rows"])
def test_other_names_are_no_secrets(name: str) -> None:
    assert not looks_secret(name)
