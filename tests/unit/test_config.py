"""The configuration file: what it says, and what it says when it is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from strandline.alerts.webhook import Webhook
from strandline.config import (
    AlertsSpec,
    Config,
    LineageSpec,
    PipelineSpec,
    ServiceSpec,
    SparkSpec,
    TableSpec,
    check_targets,
    format_duration,
    load_config,
    parse_duration,
)
from strandline.config.schema import key_table, schema_text
from strandline.config.specs import Spec, keys
from strandline.core.attention import Freshness
from strandline.core.errors import ConfigError
from strandline.core.table import MaxStall, Mode, Table
from strandline.endpoint import Endpoint
from strandline.secrets import Redactor
from strandline.service.schedule import Checking, Every

REPOSITORY = Path(__file__).parents[2]
Load = Callable[..., Config]
Wrong = Callable[..., list[str]]

SHOP = """\
pipelines:
  shop:
    source: postgresql://reader@db/shop
    target: delta:lake
    tables: [orders]
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.chdir(tmp_path)

    def load(text: str, environ: Mapping[str, str] | None = None) -> Config:
        (tmp_path / "strandline.yml").write_text(text)
        return load_config(environ=environ or {})

    return load


@pytest.fixture
def wrong(load: Load) -> Wrong:
    """The lines of the error that a file gives."""

    def wrong(text: str, environ: Mapping[str, str] | None = None) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load(text, environ)
        assert caught.value.exit_code == 2
        return caught.value.message.splitlines()

    return wrong


def with_table(table: str) -> str:
    return SHOP.replace("[orders]", f"[{table}]")


def with_pipeline(line: str) -> str:
    return f"{SHOP}    {line}\n"


def test_a_full_file_becomes_typed_specs(load: Load, tmp_path: Path) -> None:
    config = load(
        """\
state: {url: "postgresql://state@db/state", cache: memory}
keep: 30d
spark: {master: "local[2]", warm: 10m, conf: {spark.sql.shuffle.partitions: 4}}
alerts: {webhook: {url: "https://example.org/hook", secret: s1gn}, command: [say, a, a], apprise: "json://h/x"}
lineage: {url: "http://marquez:5000", namespace: dw}
pipelines:
  settlement:
    source: mysql://reader:secret-one@db:3306/settlement
    stage: s3://lake/stage
    targets:
      dw: redshift://loader@cluster:5439/dw?iam_role=arn
      lake: delta:s3://bucket/lake
    schedule: every 1m
    defaults: {cursor: update_at, key: id, zone: Asia/Tokyo}
    tables:
      - claim_detail
      - order_*
      - {name: partner_info, mode: append, initial: 2025-01-01, key: [a, b], cursor: ~, zone: ~, lookback: 100}
      - {name: q, query: "SELECT 1", max_stall: {after: 1h, then: skip}, columns: [a], slice_rows: 10_000}
    exclude: order_tmp_*
    parallel: 8
    readers: 4
    guard: 500ms
    barrier: lookback 10m
    via: server
    freshness: {warn_after: {count: 10, period: minute}}
    verify: every 1d repair
    unfinished: stop
"""
    )
    assert (config.path, config.root) == (tmp_path / "strandline.yml", tmp_path)
    assert config.state == Endpoint("postgresql", "state", "db", None, "state", options={"cache": "memory"})
    assert config.keep == timedelta(days=30)
    assert config.spark == SparkSpec(
        master="local[2]", warm=timedelta(minutes=10), conf={"spark.sql.shuffle.partitions": "4"}
    )
    assert config.alerts == AlertsSpec(
        webhook=Webhook("https://example.org/hook", "s1gn"), command=("say", "a", "a"), apprise=("json://h/x",)
    )
    assert config.lineage == LineageSpec(url="http://marquez:5000", namespace="dw")
    pipeline = config.pipeline("settlement")
    assert pipeline.source.password == "secret-one"
    assert pipeline.stage == Endpoint("s3", "stage", "lake")
    assert [(name, target.scheme) for name, target in pipeline.targets.items()] == [
        ("dw", "redshift"),
        ("lake", "delta"),
    ]
    assert (pipeline.parallel, pipeline.readers, pipeline.guard) == (8, 4, timedelta(milliseconds=500))
    assert (pipeline.exclude, pipeline.via, pipeline.unfinished) == (("order_tmp_*",), "server", "stop")
    assert (pipeline.barrier, pipeline.schedule) == ("lookback 10m", Every(timedelta(minutes=1)))
    assert pipeline.verify == Checking(Every(timedelta(days=1)), repair=True)
    assert pipeline.freshness == Freshness(warn_after=timedelta(minutes=10))
    plain, pattern, partner, query = pipeline.tables
    ten_minutes = timedelta(minutes=10)
    assert plain == TableSpec(
        name="claim_detail", cursor="update_at", key=("id",), zone="Asia/Tokyo", lookback=ten_minutes
    )
    assert [table.glob for table in pipeline.tables] == [False, True, False, False]
    assert pattern.name == "order_*"
    assert partner == TableSpec(
        name="partner_info", mode=Mode.APPEND, initial="2025-01-01", key=("a", "b"), lookback=100
    )
    assert query.max_stall == MaxStall(timedelta(hours=1), "skip")
    assert (query.columns, query.slice_rows) == (("a",), 10_000)


def test_defaults_hold_where_the_file_is_silent(load: Load, tmp_path: Path) -> None:
    config = load(SHOP)
    assert config.state == Endpoint("sqlite", str(tmp_path / ".strandline/state.db"))
    assert (config.keep, config.spark) == (timedelta(days=90), SparkSpec())
    assert config.pipeline("shop") == PipelineSpec(
        name="shop",
        source=Endpoint("postgresql", "shop", "db", None, "reader"),
        targets={"": Endpoint("delta", str(tmp_path / "lake"))},
        tables=(TableSpec(name="orders"),),
    )


def test_all_problems_come_at_once_by_line_with_a_suggestion(wrong: Wrong) -> None:
    text = """\
piplines: {}
keep: 90
pipelines:
  shop:
    source: postgressql://reader@db/shop
    target: delta:lake
    tables:
      - orders
      - {name: items, curser: updated_at}
      - {name: people, zone: Europe/Berlim, mode: upsert}
    guard: soon
"""
    assert wrong(text) == [
        'strandline.yml:1: unknown key "piplines"; did you mean "pipelines"?',
        'strandline.yml:2: keep: "90" is not a duration; write 10s, 5m, 2h or 1d',
        'strandline.yml:5: pipelines.shop.source: unknown scheme "postgressql:"; did you mean "postgresql:"?',
        'strandline.yml:9: unknown key "curser" in pipelines.shop.tables[1]; did you mean "cursor"?',
        'strandline.yml:10: pipelines.shop.tables[2].zone: "Europe/Berlim" is not a time zone; '
        'did you mean "Europe/Berlin"?',
        'strandline.yml:10: pipelines.shop.tables[2].mode: "upsert" is not one of merge, append, snapshot',
        'strandline.yml:11: pipelines.shop.guard: "soon" is not a duration; write 10s, 5m, 2h or 1d',
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (with_pipeline("parallel: 0"), 'shop.parallel: "0" is not a whole number of at least 1'),
        (with_pipeline("parallel: many"), "is not a whole number"),
        (with_pipeline("guard:"), "shop.guard: has no value"),
        (with_pipeline("guard: [5s]"), "shop.guard: should be a single value"),
        (with_pipeline("barrier: none"), "write: lookback 10m"),
        (with_pipeline("via: magic"), '"magic" is not one of spark, server'),
        (with_pipeline("defaults: {name: x}"), 'unknown key "name" in pipelines.shop.defaults'),
        (with_pipeline("defaults: [x]"), "shop.defaults: should be a mapping"),
        (with_pipeline("source: mysql://h/d"), 'key "source" in pipelines.shop is given twice, first in line 3'),
        (with_pipeline("targets: {a: 'delta:x'}"), 'both "target" and "targets"'),
        (with_pipeline("stage: kafka://h"), "shop.stage: kafka: cannot be a stage; stages are s3, file"),
        (
            SHOP.replace("delta:lake", "lake"),
            "a folder cannot be a target; a Delta table in a folder is written delta:PATH",
        ),
        (SHOP.replace("delta:lake", "redshift://c/dw"), "redshift loads from a stage on S3"),
        (SHOP.replace("delta:lake", "redshift://c/dw\n    stage: folder"), "redshift loads from a stage on S3"),
        (SHOP.replace("delta:lake", "{path: x}"), 'shop.target: has no "url"'),
        (SHOP.replace("delta:lake", "postgresql://h"), "the address names no database"),
        (SHOP.replace("delta:lake", "'delta:'"), "the address names no path"),
        (SHOP.replace("postgresql:", "kafka:"), "kafka: cannot be a source"),
        (SHOP.replace("    tables: [orders]\n", ""), 'pipelines.shop has no "tables"'),
        (SHOP.replace("    target: delta:lake\n", ""), 'pipelines.shop has no "target"'),
        (SHOP.replace("shop:", '"my shop":'), '"my shop" cannot name a pipeline'),
        (SHOP.replace("[orders]", "orders"), "shop.tables: should be a list of tables"),
        (SHOP.replace("[orders]", "[]"), "shop.tables: should be a list of tables"),
        (with_table("orders, orders"), 'table "orders" is already listed in strandline.yml:5'),
        (with_table("{key: id}"), 'tables[0]: has no "name"'),
        (with_table("{name: a, key: [x, x]}"), 'names "x" twice'),
        (with_table("{name: a, shared: maybe}"), '"maybe" is not true or false'),
        (with_table("{name: a, lookback: -5}"), '"-5" is below zero'),
        (with_table("{name: a, max_stall: 1h}"), "max_stall: should be a mapping"),
        (with_table("{name: a, max_stall: {after: 1h}}"), "is written {after: 1h, then: fail}"),
        (SHOP + "    freshness: 10m\n", "freshness: should be a mapping"),
        (SHOP + "    freshness: {}\n", "is written {warn_after: {count: 10, period: minute}"),
        (SHOP + "    freshness: {warn_after: {count: 10}}\n", "warn_after is written {count: 10, period: minute}"),
        (SHOP + "    freshness: {warn_after: {count: 1, period: week}}\n", "is not one of minute, hour, day"),
        (SHOP + "    freshness: {warn_after: {count: 0, period: day}}\n", "not a whole number of at least 1"),
        (SHOP + "    freshness: {warn_after: {count: 9999999999999, period: day}}\n", "warn_after is too long"),
        (
            SHOP + "    freshness: {warn_after: {count: 1, period: day}, error_after: {count: 1, period: hour}}\n",
            "error_after comes before warn_after",
        ),
        (with_table('{name: a, query: "SELECT 1"}'), 'add "key" and "cursor"'),
        (with_table('{name: "a*", target: b}'), "can match many tables"),
        (with_table("[a]"), "tables[0]: should be a mapping of keys"),
        ("spark: fast\n" + SHOP, "strandline.yml:1: spark: should be a mapping of keys"),
        ("spark: {remote: 'sc://h:1', warm: 10m}\n" + SHOP, "spark: remote is a Spark that runs already"),
        ("state: snowflake://a/db\n" + SHOP, "snowflake: cannot be a state"),
        ("state: sqlite://\n" + SHOP, "the address names no path"),
        ("keep: 999999999d 999999999w\n" + SHOP, "is too long"),
        ("alerts: {}\n" + SHOP, "strandline.yml:1: alerts: names no webhook, command or apprise"),
        ("alerts: {mail: a}\n" + SHOP, 'unknown key "mail" in alerts'),
        ("alerts: {command: say a}\n" + SHOP, "alerts.command: should be a list of words"),
        ("alerts: {webhook: ftp://a/b}\n" + SHOP, "alerts.webhook: is no address of the kind https://host/path"),
        ("alerts: {webhook: 'https://u:p@h/b'}\n" + SHOP, "alerts.webhook: has a login in its address"),
        ("lineage: {namespace: a}\n" + SHOP, "strandline.yml:1: lineage: names one of url and file"),
        ("lineage: {url: 'https://h', file: a}\n" + SHOP, "lineage: names one of url and file"),
        ("lineage: {url: ftp://h}\n" + SHOP, "lineage.url: is no address of the kind https://host/path"),
        ("lineage: {url: 'https://u:p@h'}\n" + SHOP, "lineage.url: has a login in its address"),
        ("alerts: {webhook: {url: 'https://h', key: a}}\n" + SHOP, "alerts.webhook: is written https://"),
        ("pipelines:\n", "pipelines: has no value"),
        ("pipelines: {}\n", "there are no pipelines"),
        ("pipelines: [a]\n", "pipelines: should be a mapping of keys"),
        ("pipelines: {a: b}\n", "pipelines.a: should be a mapping of keys"),
        ("? [a]\n: b\n" + SHOP, "is not a plain word"),
        ('include: "a\\0b"\n' + SHOP, "include: holds a NUL character"),
        ('include: "${file:a\\0b}"\n' + SHOP, "or no path"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(wrong: Wrong, text: str, message: str) -> None:
    (line,) = wrong(text)
    assert message in line
    assert line.startswith("strandline.yml:")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "strandline.yml: is empty"),
        (b"# nothing\n", "strandline.yml: is empty"),
        (b"- a\n", "strandline.yml: is not a mapping of keys"),
        (b"pipelines:\n  a: [\n", "strandline.yml:3: is not YAML"),
        (b"a: 1\n---\nb: 2\n", "is not YAML"),
        (b"\xff\xfe\xff", "is not YAML in UTF-8"),
        (b"a: \x00", "is not YAML"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "strandline.yml").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(environ={})
    assert message in caught.value.message
    assert "strandline init" in caught.value.remedy
    assert caught.value.exit_code == 2


def test_a_missing_or_unreadable_file_is_refused_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"there is no strandline\.yml") as caught:
        load_config(environ={})
    assert "strandline init" in caught.value.remedy
    with pytest.raises(ConfigError, match=r"no\.yml cannot be read: No such file"):
        load_config(Path("no.yml"), environ={})
    with pytest.raises(ConfigError, match=r"gone\.yml cannot be read") as caught:
        load_config(environ={"STRANDLINE_CONFIG": "gone.yml"})
    assert "STRANDLINE_CONFIG" in caught.value.remedy
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path, environ={})


def test_the_file_is_looked_up_as_given_then_by_variable_then_upward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("strandline.yml", "variable.yml", "given.yml"):
        (tmp_path / name).write_text(SHOP)
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    environ = {"STRANDLINE_CONFIG": str(tmp_path / "variable.yml")}
    assert load_config(Path("../../given.yml"), environ).path == tmp_path / "given.yml"
    assert load_config(environ=environ).path == tmp_path / "variable.yml"
    assert load_config(environ={}).path == tmp_path / "strandline.yml"
    assert load_config(environ={}).pipeline("shop").targets[""].path == str(tmp_path / "lake")


def test_variables_and_files_are_filled_in(load: Load, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("from-file\n")
    config = load(
        """\
pipelines:
  shop:
    source: {url: "mysql://${USER_NAME}@${HOST:-db}/shop", password: "${file:password}"}
    target: ${TARGET}
    parallel: ${PARALLEL:-3}
    tables: [{name: orders, where: "price > 5 $$ ${EMPTY:-x} $1 ${SET}"}]
""",
        {"USER_NAME": "reader", "TARGET": "delta:/lake", "EMPTY": "", "SET": "s"},
    )
    shop = config.pipeline("shop")
    assert shop.source == Endpoint("mysql", "shop", "db", None, "reader", "from-file")
    assert (str(shop.targets[""]), shop.parallel) == ("delta:/lake", 3)
    assert shop.tables[0].where == "price > 5 $ x $1 s"


@pytest.mark.parametrize("password", ["p@ss/w#rd?", "100%", "a:b", "%41", "[x]", "ü ö"])
def test_any_password_can_stand_in_a_variable_of_a_url(load: Load, password: str) -> None:
    source = load(SHOP.replace("reader@db", "reader:${PW}@db:5432"), {"PW": password}).pipeline("shop").source
    assert (source.user, source.password, source.host, source.port) == ("reader", password, "db", 5432)


def test_a_url_that_is_a_variable_as_a_whole_is_read_as_a_url(load: Load) -> None:
    text = SHOP.replace("postgresql://reader@db/shop", "${URL}")
    source = load(text, {"URL": "postgresql://u:p%40ss@db/shop"}).pipeline("shop").source
    assert (source.user, source.password) == ("u", "p@ss")


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("${NOPE}", "variable NOPE is not set; set it, or write ${NOPE:-default}"),
        ("${file:nope}", "file nope cannot be read: No such file"),
        ("${not a name}", "is not a variable"),
        ("${OPEN", "is not closed"),
    ],
)
def test_what_cannot_be_filled_in_is_refused_with_its_line(wrong: Wrong, inside: str, message: str) -> None:
    (line,) = wrong(with_table(f"{{name: orders, where: '{inside}'}}"))
    assert line.startswith("strandline.yml:5: pipelines.shop.tables[0].where: ")
    assert message in line


def test_secrets_are_registered_wherever_they_come_from(load: Load, tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/pw").write_text("from-secret-file\n")
    config = load(
        """\
spark: {remote: "sc://h:1/;token=spark-connect-token", conf: {spark.hadoop.fs.s3a.secret.key: s3a-secret-value}}
alerts: {webhook: {url: "https://hook/abc", secret: alert-password}, apprise: ["tgram://bot-token/room"]}
lineage: {url: "https://h/v1?api_key=lineage-key", token: lineage-token}
pipelines:
  shop:
    source: {url: "postgresql://u:url-password@db/shop", sslpassword: "${SSL}", application_name: visible-name}
    target: mysql://u:${PW}@h/d?token=query-token-1
    tables: [{name: orders, where: "x = '${file:secrets/pw}'"}]
""",
        {"PW": "p@ss word", "SSL": "ssl-secret-1"},
    )
    hidden = [
        "spark-connect-token",
        "s3a-secret-value",
        "https://hook/abc",
        "alert-password",
        "tgram://bot-token/room",
        "api_key=lineage-key",
        "lineage-token",
        "url-password",
        "ssl-secret-1",
        "query-token-1",
        "from-secret-file",
        "p%40ss%20word",
    ]
    assert config.redactor.redact(" ".join(hidden)) == " ".join(["***"] * len(hidden))
    assert config.redactor.redact("visible-name reader") == "visible-name reader"
    assert not any(secret in repr((config.pipelines["shop"].source, config.alerts)) for secret in hidden)


def test_an_error_shows_no_secret_and_the_redactor_knows_them_already(tmp_path: Path) -> None:
    path = tmp_path / "strandline.yml"
    path.write_text(with_pipeline("guard: ${MY_PASSWORD}"))
    redactor = Redactor()
    with pytest.raises(ConfigError) as caught:
        load_config(path, {"MY_PASSWORD": "hunter2hunter2"}, redactor)
    assert "hunter2" not in caught.value.explain()
    assert redactor.redact("hunter2hunter2") == "***"


def test_included_files_add_pipelines(load: Load, tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/b.yml").write_text(SHOP.replace("shop:", "b:").replace("delta:lake", "delta:b"))
    (tmp_path / "a.yml").write_text(SHOP.replace("shop:", "a:").replace("delta:lake", "delta:a"))
    config = load("include: [a.yml, conf.d/*.yml, none/*.yml]\n" + SHOP)
    assert list(config.pipelines) == ["shop", "a", "b"]
    assert config.pipeline("b").targets[""].path == str(tmp_path / "b")


def test_problems_of_included_files_name_them(wrong: Wrong, tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("keep: 1d\n" + SHOP)
    (tmp_path / "b.yml").write_text("")
    assert wrong("include: [a.yml, b.yml, none.yml]\n" + SHOP) == [
        'a.yml:1: "keep" in an included file; only "pipelines" may stand here',
        'a.yml:3: pipeline "shop" is also in strandline.yml:3',
        "b.yml: is empty",
        "none.yml: cannot be read: No such file or directory",
    ]


def test_two_schemas_of_one_database_are_two_targets(load: Load, wrong: Wrong) -> None:
    targets = "targets: {near: {url: 'postgresql://h/d', schema: near}, far: {url: 'postgresql://h/d', schema: %s}}"
    config = "pipelines:\n  shop:\n    source: postgresql://h/s\n    stage: ./stage\n    %s\n    tables: [%s]\n"
    load(config % (targets % "far", "orders"))
    assert len(wrong(config % (targets % "near", "orders"))) == 1
    assert len(wrong(config % (targets % "far", "{name: orders, target: other.orders}"))) == 1


def test_two_tables_on_one_target_are_refused_unless_all_share_it(load: Load, wrong: Wrong) -> None:
    other = SHOP.removeprefix("pipelines:\n").replace("shop:", "copy:")
    (line,) = wrong(SHOP + other)
    assert line.startswith("strandline.yml:9: copy.orders and shop.orders (strandline.yml:5) both write to delta:")
    (line,) = wrong(with_table("a, {name: b, target: a}"))
    assert "shop.b and shop.a" in line
    assert wrong(with_table("a, {name: b, target: a, shared: true}"))
    shared = load(with_table("{name: a, shared: true}, {name: b, target: a, shared: true}"))
    assert len(shared.pipeline("shop").tables) == 2
    assert load(SHOP + other.replace("delta:lake", "delta:other"))


def test_targets_are_checked_again_once_globs_are_resolved() -> None:
    def table(name: str, shared: bool = False) -> Table:
        return Table(
            pipeline="shop",
            name=name,
            source=name,
            target="orders",
            stage="sync",
            mode=Mode.MERGE,
            cursor=None,
            shared=shared,
        )

    check_targets([("orders", table("a", True)), ("orders", table("b", True)), ("items", table("c"))])
    with pytest.raises(ConfigError, match=r"shop\.b and shop\.a both write to orders"):
        check_targets([("orders", table("a", True)), ("orders", table("b"))])


def test_anchors_and_merge_keys_work_and_a_problem_in_one_is_reported_once(load: Load, wrong: Wrong) -> None:
    text = with_table("&t {name: a, cursor: c}, {<<: *t, name: b}")
    assert [(table.name, table.cursor) for table in load(text).pipeline("shop").tables] == [("a", "c"), ("b", "c")]
    text = with_table("{name: a, max_stall: &m {after: x, then: fail}}, {name: b, max_stall: *m}")
    assert len(wrong(text)) == 2  # one place, two keys


def test_words_that_yaml_takes_for_other_types_stay_names(load: Load) -> None:
    tables = load(with_table("no, 0123, 2025-01-01, {name: on, key: yes}")).pipeline("shop").tables
    assert [table.name for table in tables] == ["no", "0123", "2025-01-01", "on"]
    assert tables[3].key == ("yes",)


def test_an_unknown_pipeline_is_refused_with_the_nearest_name(load: Load) -> None:
    with pytest.raises(ConfigError, match='there is no pipeline "shp"; did you mean "shop"'):
        load(SHOP).pipeline("shp")


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("5s", timedelta(seconds=5)),
        ("10m", timedelta(minutes=10)),
        ("1h30m", timedelta(minutes=90)),
        ("1.5h", timedelta(minutes=90)),
        ("2d", timedelta(days=2)),
        ("1w", timedelta(weeks=1)),
        ("0s", timedelta(0)),
    ],
)
def test_durations_read_and_print(text: str, span: timedelta) -> None:
    assert parse_duration(text) == span
    assert parse_duration(format_duration(span)) == span


@pytest.mark.parametrize("text", ["", "5", "5 minutes", "-5s", "s", "5x", "1e3s", "٥s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a duration"):
        parse_duration(text)


def test_the_published_schema_is_what_the_declarations_say() -> None:
    published = (REPOSITORY / "src/strandline/schema/strandline.schema.json").read_text()
    assert published == schema_text(), (
        "run: python -m strandline.config.schema > src/strandline/schema/strandline.schema.json"
    )
    assert json.loads(published)["$defs"]["table"]["properties"]["cursor"]


@pytest.mark.parametrize("spec", [Config, PipelineSpec, TableSpec, SparkSpec, ServiceSpec, AlertsSpec, LineageSpec])
def test_every_key_is_documented(spec: Spec) -> None:
    text = (REPOSITORY / "docs/configuration.md").read_text()
    assert key_table(spec) in text
    assert keys(spec)


def test_loading_needs_neither_spark_nor_a_driver() -> None:
    code = "import sys, strandline.config; print(sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(REPOSITORY / "src")},
    ).stdout
    assert "'yaml'" in loaded
    assert not any(f"'{name}'" in loaded for name in ("pyspark", "psycopg", "pymysql", "deltalake", "rich", "click"))
