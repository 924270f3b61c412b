"""Configuration: strandline.yml and the environment → frozen typed specs, or every problem at once with its line.

`specs` declares the keys, `values` their types; `reader` walks the file, `load` puts it together, `schema` publishes.
"""

from strandline.config.duration import format_duration, parse_duration
from strandline.config.load import check_targets, config_files, load_config
from strandline.config.specs import AlertsSpec, Config, LineageSpec, PipelineSpec, ServiceSpec, SparkSpec, TableSpec

__all__ = [
    "AlertsSpec",
    "Config",
    "LineageSpec",
    "PipelineSpec",
    "ServiceSpec",
    "SparkSpec",
    "TableSpec",
    "check_targets",
    "config_files",
    "format_duration",
    "load_config",
    "parse_duration",
]
