"""Configuration: strandline.yml and the environment → frozen typed specs, or every problem at once with its line.

`specs` declares the keys, `values` their types; `reader` walks the file, `load` puts it together, `schema` publishes.
"""

from strandline.config.duration import format_duration, parse_duration
from strandline.config.load import check_targets, load_config
from strandline.config.specs import Config, PipelineSpec, SparkSpec, TableSpec

__all__ = [
    "Config",
    "PipelineSpec",
    "SparkSpec",
    "TableSpec",
    "check_targets",
    "format_duration",
    "load_config",
    "parse_duration",
]
