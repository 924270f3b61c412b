"""Strandline: incremental data pipelines on Spark that never lose a row and never apply one twice."""

__version__ = "0.1.0"
