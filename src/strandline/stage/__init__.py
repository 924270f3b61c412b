"""The stage: numbered, immutable batches of rows as Parquet files with a manifest each, on S3 or in a directory.

A sink for the hop that extracts, and a source for the hops that load, whose cursor is the batch number.
"""
