#!/bin/sh
# deploy/spark/submit.sh PIPELINE --config strandline.yml
# Versions are those that Strandline pins; every node has Strandline installed (its Python workers write to databases).
set -eu
exec spark-submit \
    --master "${SPARK_MASTER:-local[*]}" \
    --packages io.delta:delta-spark_4.2_2.13:4.4.0,org.postgresql:postgresql:42.7.14 \
    --conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension \
    --conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog \
    --conf spark.driver.extraJavaOptions=-Duser.timezone=UTC \
    --conf spark.executor.extraJavaOptions=-Duser.timezone=UTC \
    "$(dirname "$0")/job.py" "$@"
