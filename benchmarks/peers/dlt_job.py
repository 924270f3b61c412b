"""dlt by its documentation: `sql_database`, an incremental cursor, merge by primary key; runs in dlt's own environment.

The argument is a file that says what to do. In a folder tables are Delta, where dlt merges by `upsert`; PostgreSQL has
the same strategy, loaded as CSV, the fast way for Arrow that needs no further driver. Over a stage two pipelines follow
each other: the second reads the Parquet files that the first added.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import dlt
from dlt.sources.filesystem import filesystem, read_parquet
from dlt.sources.sql_database import sql_database

MERGE = {"disposition": "merge", "strategy": "upsert"}


def main(job: dict[str, Any]) -> None:
    folder = Path(job["folder"])
    source = sql_database(job["source"], table_names=job["tables"], backend=job["backend"])
    for resource in source.resources.values():
        resource.apply_hints(primary_key="id", incremental=dlt.sources.incremental("updated_at"))
    if len(job["tables"]) <= 50:  # each holds a connection, of which PostgreSQL has a hundred
        source.parallelize()
    if job["into"] == "lake":
        lake = dlt.destinations.filesystem(str(folder / "lake"))
        pipeline = make("lake", folder, lake, "shop")
        pipeline.run(source, write_disposition=MERGE, table_format="delta")
    elif job["into"] == "database":
        pipeline = make("copy", folder, dlt.destinations.postgres(job["target"]), job["schema"])
        pipeline.run(source, write_disposition=MERGE, loader_file_format="csv")
    else:
        stage = dlt.destinations.filesystem(str(folder / "stage"))
        extract = make("extract", folder, stage, "shop")
        extract.run(source, write_disposition="append", loader_file_format="parquet")
        load = make("load", folder, dlt.destinations.postgres(job["target"]), job["schema"])
        for table in job["tables"]:
            files = filesystem(bucket_url=str(folder / "stage" / "shop" / table), file_glob="*.parquet")
            files.apply_hints(incremental=dlt.sources.incremental("modification_date"))
            rows = (files | read_parquet(use_pyarrow=True)).with_name(table)
            rows.apply_hints(primary_key="id")
            load.run(rows, write_disposition=MERGE, loader_file_format="csv")


def make(name: str, folder: Path, destination: Any, dataset: str) -> dlt.Pipeline:
    return dlt.pipeline(name, pipelines_dir=str(folder / "dlt"), destination=destination, dataset_name=dataset)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
