"""Objects on a directory, on SeaweedFS and on Moto: the same promises; and what their failures are called."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.core.errors import ConfigError, ConnectError, StrandlineError, TransientError
from strandline.endpoint import Endpoint
from strandline.objects import Objects, open_objects
from strandline.testing.stores import Moto, Seaweed, answering

PLACES = ("directory", "seaweed", "moto")


@pytest.fixture(params=PLACES)
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    if request.param == "directory":
        return open_objects(Endpoint.parse(str(tmp_path / "objects")))
    server: Seaweed | Moto = request.getfixturevalue(request.param)
    return open_objects(server.endpoint("objects", f"p/{uuid.uuid4().hex}"))


def test_an_object_is_created_once_and_keeps_its_first_bytes(objects: Objects) -> None:
    assert objects.get("a/1.json") is None
    assert objects.create("a/1.json", b"first")
    assert not objects.create("a/1.json", b"second")
    assert objects.get("a/1.json") == b"first"


def test_creating_the_same_bytes_again_counts_as_ours_since_the_first_answer_may_be_lost(objects: Objects) -> None:
    assert objects.create("a", b"mine")
    assert objects.create("a", b"mine")


def test_of_many_creators_at_once_exactly_one_wins(objects: Objects) -> None:
    won: list[bytes] = []
    start = threading.Barrier(6)

    def contend(name: bytes) -> None:
        start.wait()
        if objects.create("race", name):
            won.append(name)

    threads = [threading.Thread(target=contend, args=(b"%d" % number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [objects.get("race")]


def test_writers_may_come_and_go_in_one_folder_at_once(objects: Objects) -> None:
    failed: list[Exception] = []
    start = threading.Barrier(4)

    def come_and_go(name: str) -> None:
        start.wait()
        try:
            for number in range(100):
                assert objects.create(f"a/b/{name}-{number}", b"here")
                objects.delete([f"a/b/{name}-{number}"])  # the last one to go takes an empty folder with it
        except Exception as error:  # a thread's error would be lost
            failed.append(error)

    threads = [threading.Thread(target=come_and_go, args=(str(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert list(objects.list()) == []


def test_compare_and_set_lets_one_of_two_writers_through(objects: Objects) -> None:
    first = objects.replace("doc", b"1")
    assert first
    second = objects.replace("doc", b"2", first)
    assert second not in (None, first)
    assert objects.replace("doc", b"3", first) is None
    found = objects.find("doc")
    assert found is not None
    assert (found[0], found[1].etag, found[1].size) == (b"2", second, 1)
    assert objects.replace("never", b"1", first) is None


def test_a_listing_is_ordered_by_key_stays_in_its_folder_and_goes_on_after_a_key(objects: Objects) -> None:
    keys = ["b/10.json", "b/9.json", "b/sub/y", "b/sub/x", "b/t.json", "bb/1", "a"]
    for key in keys:
        objects.create(key, key.encode())
    expected = sorted(key for key in keys if key.startswith("b/"))
    assert [entry.key for entry in objects.list("b")] == expected
    assert [entry.key for entry in objects.list("b", after=expected[1])] == expected[2:]
    assert [entry.key for entry in objects.list("b", after="b/sub/x")] == ["b/sub/y", "b/t.json"]
    assert [entry.key for entry in objects.list()] == sorted(keys)
    assert {entry.size for entry in objects.list("bb")} == {4}
    assert list(objects.list("none")) == []


def test_a_listing_passes_a_thousand_objects(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    if objects.address.startswith("s3:"):
        pytest.skip("the pages are obstore's; once is enough")
    monkeypatch.setattr("os.fsync", lambda _: None)
    for number in range(1100):
        objects.create(f"n/{number:05d}", b"")
    assert len(list(objects.list("n", after="n/00049"))) == 1050


def test_deleting_forgets_and_does_not_mind_what_is_gone(objects: Objects) -> None:
    for key in ("d/1", "d/2", "d/3"):
        objects.create(key, b"x")
    objects.delete(["d/1", "d/3", "d/never"])
    assert [entry.key for entry in objects.list("d")] == ["d/2"]
    objects.delete(["d/2"])
    assert list(objects.list("d")) == []


def test_files_of_a_directory_are_private_and_no_unfinished_one_is_listed(tmp_path: Path) -> None:
    objects = open_objects(Endpoint.parse(str(tmp_path / "state")))
    objects.create("a/b.json", b"x")
    objects.replace("a/b.json", b"y", next(objects.list()).etag)
    (tmp_path / "state" / "a" / ".tmp-left").write_bytes(b"half")
    assert [entry.key for entry in objects.list()] == ["a/b.json"]
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "state", tmp_path / "state" / "a")} == {0o700}
    assert (tmp_path / "state" / "a" / "b.json").stat().st_mode & 0o777 == 0o600


def test_a_folder_that_is_a_file_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("not a folder")
    objects = open_objects(Endpoint.parse(str(tmp_path / "taken")))
    with pytest.raises(ConnectError) as caught:
        objects.create("a", b"x")
    assert "folder" in caught.value.remedy


def _get(objects: Objects) -> object:
    return objects.get("k")


def _create(objects: Objects) -> object:
    return objects.create("k", b"x")


def _list(objects: Objects) -> object:
    return list(objects.list("k"))


@pytest.mark.parametrize("act", [_get, _create, _list])
def test_a_missing_bucket_is_named_with_its_remedy(moto: Moto, act: Callable[[Objects], object]) -> None:
    objects = open_objects(Endpoint.parse("s3://no-such-bucket/p", moto.options()))
    with pytest.raises(ConnectError, match="bucket does not exist") as caught:
        act(objects)
    assert "Create it" in caught.value.remedy


@pytest.mark.parametrize("act", [_get, _create, _list])
@pytest.mark.parametrize("wrong", ["secret_access_key", "access_key_id"])
def test_wrong_credentials_are_told_from_a_missing_object(
    seaweed: Seaweed, act: Callable[[Objects], object], wrong: str
) -> None:
    objects = open_objects(seaweed.endpoint("objects", "p", **{wrong: "not-this-one"}))
    with pytest.raises(ConnectError, match="credentials are wrong") as caught:
        act(objects)
    assert "not-this-one" not in caught.value.explain()


def test_a_login_that_may_only_read_is_refused_with_the_rights_it_needs(seaweed: Seaweed) -> None:
    objects = open_objects(seaweed.endpoint("objects", "p", access_key_id="reader"))
    assert objects.get("k") is None
    with pytest.raises(ConnectError, match="access is denied") as caught:
        objects.create("k", b"x")
    assert "s3:PutObject" in caught.value.remedy


def test_a_store_that_is_away_is_worth_another_try() -> None:
    away = {"endpoint": "http://127.0.0.1:1", "region": "us-east-1", "access_key_id": "a", "secret_access_key": "hush"}
    with pytest.raises(TransientError) as caught:
        open_objects(Endpoint.parse("s3://bucket/p", away)).get("k")
    assert "endpoint" in caught.value.remedy
    assert "hush" not in caught.value.explain()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("ExpiredToken", "have expired"),
        ("RequestTimeTooSkewed", "clock"),
        ("InvalidAccessKeyId", "are wrong"),
        ("AccessDenied", "denied"),
        ("InvalidBucketName", "name is not valid"),
    ],
)
def test_what_aws_answers_is_put_into_words(code: str, said: str) -> None:
    """Neither test server gives these answers, so a socket does."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>"
    with answering(403, body) as port:
        options = {"endpoint": f"http://127.0.0.1:{port}", "region": "us-east-1"}
        keys = {"access_key_id": "a", "secret_access_key": "b"}
        objects = open_objects(Endpoint.parse("s3://bucket/p", {**options, **keys}))
        with pytest.raises(ConnectError, match=said) as caught:
            objects.get("k")
    assert code in caught.value.why
    assert caught.value.remedy


def test_a_creation_that_met_another_one_under_way_is_tried_again() -> None:
    """409: AWS gives it where two conditional puts meet; neither test server does. The other one may yet fail."""
    meets = (409, "<Error><Code>ConditionalRequestConflict</Code></Error>")
    missing = (404, "<Error><Code>NoSuchKey</Code></Error>")
    with answering(200, "", once={"PUT": meets, "GET": missing}) as port:
        options = {"endpoint": f"http://127.0.0.1:{port}", "region": "us-east-1"}
        keys = {"access_key_id": "a", "secret_access_key": "b"}
        assert open_objects(Endpoint.parse("s3://bucket/p", {**options, **keys})).create("k", b"mine")


def test_keys_come_from_the_address_then_the_environment_then_a_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from strandline.objects.s3 import s3_settings

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    profiles = tmp_path / "credentials"
    profiles.write_text("[work]\naws_access_key_id = p\naws_secret_access_key = q\nregion = eu-west-1\n[sso]\nx = y\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profiles))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    bare = Endpoint.parse("s3://bucket/p")
    assert s3_settings(bare) == {}
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert s3_settings(bare) == {"access_key_id": "p", "secret_access_key": "q", "region": "eu-west-1"}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "e")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "f")
    assert s3_settings(bare)["access_key_id"] == "e"
    given = Endpoint.parse("s3://bucket/p", {"access_key_id": "o", "secret_access_key": "r"})
    assert s3_settings(given)["secret_access_key"] == "r"
    with pytest.raises(ConfigError, match='profile "sso" holds no keys'):
        s3_settings(Endpoint.parse("s3://bucket/p", {"profile": "sso"}))


def test_an_address_without_a_bucket_is_refused() -> None:
    with pytest.raises(StrandlineError, match="names no bucket"):
        open_objects(Endpoint.parse("s3:///p"))
