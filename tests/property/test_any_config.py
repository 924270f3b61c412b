"""Whatever a file says, it is loaded or refused with ConfigError; and no secret is ever repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from strandline.config import Config, PipelineSpec, SparkSpec, TableSpec, load_config
from strandline.config.specs import Spec, keys
from strandline.core.errors import ConfigError

_WORDS = st.sampled_from(
    [
        "orders",
        "order_*",
        "10m",
        "5",
        "-1",
        "merge",
        "UTC",
        "../..",
        "lookback 10m",
        "${SET}",
        "${UNSET}",
        "${",
        "$$",
        "",
    ]
)
_URLS = st.sampled_from(
    ["postgresql://u:${SET}@h/d", "mysql://h:x/d", "delta:lake", "lake", "kafka://", "sqlite:///s.db", "s3://[", "x:y"]
)
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.dates() | st.text(max_size=8) | _WORDS | _URLS
_ANYTHING = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_SCALARS, inner, max_size=3), max_leaves=6
)


def mapping_of(spec: Spec, **known: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({}, optional={name: known.get(name, _URLS) | _ANYTHING for name in keys(spec)})


_TABLES = st.lists(_WORDS | mapping_of(TableSpec), max_size=3)
_PIPELINES = st.dictionaries(
    st.text("ab.", max_size=2), mapping_of(PipelineSpec, tables=_TABLES, defaults=mapping_of(TableSpec)), max_size=2
)
_FILES = mapping_of(Config, pipelines=_PIPELINES, spark=mapping_of(SparkSpec))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "strandline.yml"


@given(content=_FILES | _ANYTHING)
def test_any_yaml_is_loaded_or_refused(file: Path, content: object) -> None:
    file.write_text(yaml.safe_dump(content, allow_unicode=True), "utf-8")
    try:
        assert load_config(file, {"SET": "hunter2hunter2"}).pipelines
    except ConfigError as error:
        assert error.message
        assert "hunter2hunter2@" not in error.explain()


@given(content=st.binary() | st.text("ab:-[]{}&*!|>'\"#%@`,? \n\t$", max_size=40).map(str.encode))
def test_any_bytes_are_loaded_or_refused(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(ConfigError):
        load_config(file, {})
