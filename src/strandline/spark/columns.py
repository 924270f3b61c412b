"""Columns of a DataFrame: by name, and of one value. Importing this loads no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.spark.text import literal, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column


def column(name: str) -> Column:
    from pyspark.sql import functions as sql

    return sql.col(quoted(name))


def constant(value: str | int | None) -> Column:
    """PySpark's own imports pandas, to find out whether this may be a value of NumPy's: half a second, 60 MB."""
    from pyspark.sql import functions as sql

    return sql.expr(literal(value) if isinstance(value, str) else "NULL" if value is None else str(value).lower())
