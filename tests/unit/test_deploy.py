"""What deploy/ says is so, as far as that shows without Docker, Kubernetes, Prometheus and Grafana."""

from __future__ import annotations

import ast
import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from strandline import __version__
from strandline.cli.app import app
from strandline.cli.invocation import Invocation
from strandline.cli.progress import describe
from strandline.config import load_config
from strandline.core.errors import RunFailedError, SourceError
from strandline.core.position import Status
from strandline.core.table import Column
from strandline.core.watermark import Cursor, Kind
from strandline.project import load
from strandline.service.service import GRACE, Service
from strandline.service.watch import Watch
from strandline.spark.jars import PINNED
from strandline.testing.memory import Clock, MemorySink, MemorySource
from strandline.web.app import make_app
from strandline.web.security import Security

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
YAML = [path for path in FILES if path.suffix in (".yml", ".yaml")]
PYTHON = [path for path in FILES if path.suffix == ".py"]
UNIT = DEPLOY / "systemd" / "strandline.service"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
ALERTS = [
    rule
    for group in yaml.safe_load((DEPLOY / "monitoring" / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
BOARD: dict[str, Any] = json.loads((DEPLOY / "monitoring" / "grafana.json").read_text())
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
STOP_SECONDS = GRACE + GRACE / 3 + 8  # slices end, are given up, and the web server closes
TOKEN = "a-token-that-is-long-enough"
PORT = next(int(str(option.default)) for option in app.commands["serve"].params if option.name == "port")

Names = dict[str, set[str]]
"""Labels by the name of a metric."""


def name(path: Path) -> str:
    return str(path.relative_to(DEPLOY))


def manifests() -> dict[str, dict[str, Any]]:
    files = (DEPLOY / "kubernetes").glob("*.yaml")
    found = [part for file in files for part in yaml.safe_load_all(file.read_text())]
    return {f"{part['kind']} {part['metadata']['name']}": part for part in found}


def container() -> dict[str, Any]:
    found: dict[str, Any] = manifests()["Deployment strandline"]["spec"]["template"]["spec"]["containers"][0]
    return found


def dockerfile(word: str) -> list[str]:
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    return [line.removeprefix(word).strip() for line in text.splitlines() if line.startswith(f"{word} ")]


class Unit(configparser.RawConfigParser):
    def optionxform(self, optionstr: str) -> str:
        return optionstr


def unit() -> Unit:
    parser = Unit()
    parser.read(UNIT)
    return parser


# commands


def said_in_python(path: Path) -> Iterator[list[str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.List) and node.elts and isinstance(node.elts[0], ast.Constant):
            words = [str(part.value) if isinstance(part, ast.Constant) else "" for part in node.elts]
            known = [
                word or "value" for word, part in zip(words, node.elts, strict=True) if type(part) is not ast.Starred
            ]
            if known[0] == "strandline":
                yield known[1:]


def commands() -> list[tuple[str, list[str]]]:
    """Every command line in deploy/, without the word strandline, and the file it is in."""
    compose = yaml.safe_load((DEPLOY / "docker" / "docker-compose.yml").read_text())
    found = [
        (name(UNIT), shlex.split(unit()["Service"]["ExecStart"])[1:]),
        ("docker-compose.yml", compose["services"]["strandline"]["command"]),
        ("Dockerfile", json.loads(dockerfile("CMD")[0])),
        ("deployment.yaml", container()["args"]),
    ]
    found += [(name(path), words) for path in PYTHON for words in said_in_python(path)]
    label = re.compile(r"\{\{ \$labels\.(\w+) \}\}")
    actions = [label.sub(r"\1", rule["annotations"].get("action", "")) for rule in ALERTS]
    comments = [line for path in FILES for line in re.findall(r"\((strandline [^)]+)\)", path.read_text())]
    return found + [("alerts and comments", shlex.split(line)[1:]) for line in [*actions, *comments] if line]


@pytest.mark.parametrize(("file", "words"), commands(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_command_in_deploy_parses(file: str, words: list[str]) -> None:
    command: click.Command = app
    context = click.Context(app, obj=Invocation())
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None, f"{file}: {words}"
        command, words = found, words[1:]
    command.make_context("strandline", list(words), parent=context)


def test_commands_were_found_in_every_kind_of_file() -> None:
    files = [file for file, _ in commands()]
    assert {"airflow/strandline_dags.py", "dagster/strandline_assets.py", "deployment.yaml"} < set(files)
    assert files.count("airflow/strandline_dags.py") == 3
    assert files.count("alerts and comments") > 6


# configs


@pytest.mark.parametrize("path", YAML, ids=name)
def test_every_yaml_file_parses(path: Path) -> None:
    assert all(part for part in yaml.safe_load_all(path.read_text()))


def test_every_config_loads_with_the_variables_that_its_deployment_gives(tmp_path: Path) -> None:
    compose = yaml.safe_load((DEPLOY / "docker" / "docker-compose.yml").read_text())["services"]["strandline"]
    known = manifests()
    given = {
        (DEPLOY / "docker" / "config" / "strandline.yml").read_text(): compose["environment"],
        known["ConfigMap strandline"]["data"]["strandline.yml"]: known["Secret strandline-environment"]["stringData"],
    }
    assert len(given) == 2
    for text, variables in given.items():
        (tmp_path / "strandline.yml").write_text(text)
        environ = dict.fromkeys(variables, "a-value") | {"SHOP_URL": "postgresql://reader:pw@db/shop"}
        config = load_config(tmp_path / "strandline.yml", {key: environ[key] for key in variables})
        assert config.pipelines["shop"].schedule


def test_env_example_has_what_compose_asks_for() -> None:
    text = (DEPLOY / "docker" / "docker-compose.yml").read_text()
    example = (DEPLOY / "docker" / ".env.example").read_text()
    assert set(re.findall(r"\$\{(\w+):\?", text)) == set(re.findall(r"^(\w+)=$", example, re.MULTILINE))


# systemd


def test_the_unit_stops_gently_and_keeps_spark_alive_meanwhile() -> None:
    service = unit()["Service"]
    assert int(service["TimeoutStopSec"]) > STOP_SECONDS
    assert service["KillMode"] == "mixed"
    assert service.get("KillSignal", "SIGTERM") == "SIGTERM"
    assert service["RestartPreventExitStatus"] == "2"
    assert "MemoryDenyWriteExecute" not in service
    credential = service["LoadCredential"].partition(":")[0]
    assert f"--token-file %d/{credential}" in service["ExecStart"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text(), flags=re.MULTILINE))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True)
    assert (done.returncode, [line for line in done.stderr.splitlines() if copy.name in line]) == (0, [])


# Docker


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    copies = [shlex.split(line) for line in dockerfile("COPY") if not line.startswith("--from")]
    sources = [source for *parts, _ in copies for source in parts]
    ignored = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    assert sources and all((ROOT / source).exists() for source in sources)
    assert {f"!{source}" for source in sources} <= set(ignored)


def test_the_image_runs_as_nobody_in_particular_with_known_jars() -> None:
    assert dockerfile("USER") == ["10001:10001"]
    assert dockerfile("EXPOSE") == [str(PORT)]
    arguments = dict(shlex.split(line)[0].split("=", 1) for line in dockerfile("ARG"))
    assert set(arguments["JARS"].split()) == PINNED.keys()
    assert set(arguments["ARCHIVE"].split()) < PINNED.keys()
    limits = subprocess.run(
        ["sh", "-c", dockerfile("RUN")[3].partition(" > ")[0]], cwd=ROOT, capture_output=True, text=True, check=True
    )
    pinned = [line for line in limits.stdout.splitlines() if line and not line.startswith("#")]
    assert len(pinned) > 50 and all(re.match(r"[\w.\[\]-]+==\S+( ; .*)?$", line) for line in pinned)


def test_compose_waits_as_long_as_the_service_needs_and_shows_it_to_this_machine_alone() -> None:
    service = yaml.safe_load((DEPLOY / "docker" / "docker-compose.yml").read_text())["services"]["strandline"]
    assert int(service["stop_grace_period"].removesuffix("s")) > STOP_SECONDS
    assert service["ports"] == [f"127.0.0.1:{PORT}:{PORT}"]
    context = (DEPLOY / "docker" / service["build"]["context"]).resolve()
    assert context == ROOT and (context / service["build"]["dockerfile"]) == DOCKERFILE


# a project in memory


class Shop:
    def __init__(self, folder: Path) -> None:
        self.config = folder / "strandline.yml"
        self.config.write_text(
            f"state: sqlite:///{folder}/state.db\n"
            "pipelines: {shop: {source: postgresql://db/shop, target: delta:lake, tables: [orders]}}\n"
        )
        self.source, self.sink = MemorySource(Clock()), MemorySink()
        columns = (Column("id", "bigint"), Column("moved", "timestamp"))
        self.source.create("orders", columns, Cursor("moved", Kind.TIMESTAMP), ["id"])

    def write(self, number: int) -> None:
        self.source.clock.advance(1)
        self.source.write("orders", {"id": number})
        self.source.clock.advance(10)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    shop = Shop(tmp_path)
    monkeypatch.setattr("strandline.pipeline.open_source", lambda *_, **__: shop.source)
    monkeypatch.setattr("strandline.pipeline.open_sink", lambda *_, **__: shop.sink)
    return shop


# Kubernetes


def test_probes_by_the_pods_address_are_answered(shop: Shop) -> None:
    """A kubelet asks by the pod's address, which the guard against rebinding would refuse if it were not allowed."""
    address = "10.1.2.3"
    words = [word.replace("$(POD_IP)", address) for word in container()["args"]]
    serve = app.commands["serve"].make_context("serve", words[1:], obj=Invocation()).params
    (port,) = container()["ports"]
    assert port["containerPort"] == serve["port"] == PORT
    with load(shop.config) as project:
        security = Security.at(serve["host"], TOKEN, allowed_hosts=serve["allow_host"])
        client = TestClient(make_app(Service(project, words=describe), security))
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            probe = container()[kind]["httpGet"]
            assert probe["port"] == port["name"]
            for host, status in ((address, 200), ("strandline", 200), ("evil.example", 400)):
                answer = client.get(probe["path"], headers={"Host": f"{host}:{PORT}"})
                assert answer.status_code == status, (kind, host)
        assert client.get("/metrics", headers={"Host": f"{address}:{PORT}"}).status_code == 401


def test_an_edited_config_map_is_picked_up(tmp_path: Path) -> None:
    """A kubelet writes a new folder and turns the link `..data` to it; the file's own link stays as it was."""
    text = manifests()["ConfigMap strandline"]["data"]["strandline.yml"]
    variables = dict.fromkeys(manifests()["Secret strandline-environment"]["stringData"], "a-value")
    for folder, said in (("..1", text), ("..2", text.replace("every 1m", "every 2m"))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "strandline.yml").write_text(said)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "strandline.yml").symlink_to("..data/strandline.yml")
    watch = Watch(
        load_config(tmp_path / "strandline.yml", variables), lambda before: load_config(before.path, variables)
    )
    assert not watch.look()
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert watch.look() and not watch.error
    assert "every 2m" in str(watch.config.pipelines["shop"].schedule)


def test_manifests_fit_together() -> None:
    known = manifests()
    pod = known["Deployment strandline"]["spec"]["template"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > STOP_SECONDS
    assert pod["metadata"]["labels"] == known["Service strandline"]["spec"]["selector"]
    assert pod["metadata"]["labels"] == known["Deployment strandline"]["spec"]["selector"]["matchLabels"]
    (port,) = known["Service strandline"]["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (PORT, container()["ports"][0]["name"])
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container()["volumeMounts"]} == volumes.keys()
    assert f"ConfigMap {volumes['config']['configMap']['name']}" in known
    assert f"Secret {volumes['token']['secret']['secretName']}" in known
    assert f"Secret {container()['envFrom'][0]['secretRef']['name']}" in known
    paths = {mount["name"]: mount["mountPath"] for mount in container()["volumeMounts"]}
    assert f"--token-file={paths['token']}/token" in container()["args"]
    assert f"STRANDLINE_CONFIG={paths['config']}/strandline.yml" in dockerfile("ENV")[-1]
    assert pod["spec"]["securityContext"]["runAsUser"] == int(dockerfile("USER")[0].partition(":")[0])
    assert container()["image"].partition(":")[2] == __version__
    assert container()["resources"].keys() == {"requests", "limits"}


# metrics


@pytest.fixture
def metrics(shop: Shop) -> Names:
    """What a service tells after a run, by the name that queries use."""
    shop.write(1)
    shop.config.write_text("lineage: {file: lineage.ndjson}\n" + shop.config.read_text())
    with load(shop.config) as project:
        client = TestClient(make_app(Service(project, words=describe), Security()), base_url="http://127.0.0.1")
        project.sync("shop", raise_on_failure=True)
        text = client.get("/metrics").text
    families = text_string_to_metric_families(text)
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def test_every_metric_label_and_status_in_a_query_exists(metrics: Names) -> None:
    variable = BOARD["templating"]["list"][1]["definition"]
    for query in [*QUERIES, *(rule["expr"] for rule in ALERTS), variable]:
        named = re.findall(r"strandline_\w+", query)
        assert named and set(named) <= metrics.keys(), query
        kept = " ".join(re.findall(r"(?:by|on) \(([^)]*)\)", query))
        used = {*re.findall(r"(\w+)=~?\"", query), *re.findall(r"\w+", kept)}
        assert used <= {label for metric in named for label in metrics[metric]}, query
        statuses = {status.upper() for status in re.findall(r'status="(\w+)"', query)}
        assert statuses <= {status.value for status in Status}, query


def test_the_dashboard_shows_every_metric(metrics: Names) -> None:
    shown = {metric for query in QUERIES for metric in re.findall(r"strandline_\w+", query)}
    left_out = {"strandline_run_duration_seconds_count", "strandline_run_duration_seconds_sum"}
    assert {metric for metric in metrics if not metric.endswith("_created")} - left_out == shown


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_what_is_wrong_with_labels_that_its_query_keeps(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    kept = re.search(r"by \(([^)]*)\)", rule["expr"])
    named = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    assert named <= set(re.findall(r"\w+", kept[1] if kept else ""))


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [
        (column, row)
        for place in (panel["gridPos"] for panel in panels)
        for column in range(place["x"], place["x"] + place["w"])
        for row in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken)) and max(column for column, _ in taken) < 24


def test_prometheus_asks_by_a_name_that_the_service_allows() -> None:
    job = yaml.safe_load((DEPLOY / "monitoring" / "prometheus.yml").read_text())["scrape_configs"][0]
    (target,) = job["static_configs"][0]["targets"]
    host, _, port = target.partition(":")
    assert int(port) == PORT and f"--allow-host={host}" in container()["args"]
    assert job.get("metrics_path", "/metrics") == "/metrics"


# Python


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_python_imports_the_standard_library_strandline_and_its_tool_alone(path: Path) -> None:
    tree = ast.parse(path.read_text())
    compile(tree, name(path), "exec")
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {part.name for node in ast.walk(tree) if isinstance(node, ast.Import) for part in node.names}
    tools = {"spark": {"pyspark"}, "airflow": {"airflow"}, "dagster": {"dagster"}}[path.parent.name]
    assert {module.partition(".")[0] for module in modules} - sys.stdlib_module_names - {"strandline"} == tools


def runner(path: Path) -> Callable[[list[str]], Any]:
    """Its `run` by itself: Airflow and Dagster are not installed here."""
    body = ast.parse(path.read_text()).body
    kept: list[ast.stmt] = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == "run"]
    names: dict[str, Any] = {"subprocess": subprocess, "json": json, "Any": Any}
    exec(compile(ast.Module(kept, []), name(path), "exec"), names)
    run: Callable[[list[str]], Any] = names["run"]
    return run


def test_a_command_that_fails_fails_the_schedulers_task() -> None:
    well = [sys.executable, "-c", "print('{\"tables\": []}')"]
    ill = [sys.executable, "-c", 'print(\'{"status": "FAILED"}\'); exit(1)']
    airflow, dagster = map(runner, (path for path in PYTHON if path.parent.name != "spark"))
    assert airflow(well) == {"tables": []}
    with pytest.raises(RuntimeError, match=r"ended with 1.*FAILED"):
        airflow(ill)
    assert dagster(well) == (0, {"tables": []})
    assert dagster(ill) == (1, {"status": "FAILED"})


def test_the_spark_job_returns_its_result_and_raises_when_a_table_fails(shop: Shop) -> None:
    spec = spec_from_file_location("strandline_job", DEPLOY / "spark" / "job.py")
    assert spec and spec.loader
    job = module_from_spec(spec)
    spec.loader.exec_module(job)
    shop.write(1)
    assert job.sync(str(shop.config), "shop", None).to_json()["tables"][0]["rows_inserted"] == 1

    def crash() -> None:
        raise SourceError("the table is gone")

    shop.write(2)
    shop.sink.at_commit(before=crash)
    with pytest.raises(RunFailedError, match="the table is gone"):
        job.sync(str(shop.config), "shop", None)


@pytest.mark.parametrize("file", ["submit.sh", "databricks.yml", "emr-serverless.json"])
def test_spark_jobs_take_the_jars_that_are_pinned(file: str) -> None:
    text = (DEPLOY / "spark" / file).read_text()
    assert file != "emr-serverless.json" or json.loads(text)["jobDriver"]
    pinned = {jar.coordinates for need in PINNED.values() for jar in need}
    named = re.findall(r"(?:io\.delta|org\.postgresql):[\w.-]+:[\d.]+\d", text)
    assert named and set(named) <= pinned
    assert "-Duser.timezone=UTC" in text
