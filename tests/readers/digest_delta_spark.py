#!/usr/bin/env python3
"""As digest_delta.py, with Spark and delta-spark. The session stays offline: its
jars are given."""

import argparse
import json
import os
import tempfile
import time

from rowdigest import digest


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jars", required=True)
    parser.add_argument("--table", action="append", required=True, help="folder of a table")
    args = parser.parse_args()
    os.environ["TZ"] = "UTC"
    time.tzset()
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory() as scratch:
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.jars", args.jars)
            .config("spark.driver.extraClassPath", args.jars.replace(",", ":"))
            .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
            .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.local.dir", scratch)
            .config("spark.sql.warehouse.dir", scratch)
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        out = {}
        for path in args.table:
            rows = [r.asDict(recursive=True) for r in spark.read.format("delta").load(path).collect()]
            version = spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").collect()[0]["version"]
            out[path] = digest(rows) | {"version": version}
        print(json.dumps(out), flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
