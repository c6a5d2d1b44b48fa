#!/usr/bin/env python3
"""Foreign hands on tables by Spark: rewrites their data files and manifests,
expires every snapshot but the newest, appends rows, adds a column. Prints what
was done as a line of JSON for each table.

  hands_spark.py JARS CATALOG WAREHOUSE TABLE[,TABLE…] [rewrite] [manifests] [expire] [append=N] [column=NAME]

CATALOG is the SQLite file of the SQL catalog "weir".
"""

import json
import sys
from datetime import datetime, timedelta, timezone

from pyspark.sql import SparkSession
from pyspark.sql.functions import lit

jars, catalog, warehouse, tables = sys.argv[1:5]
wanted = dict((w.split("=", 1) + [""])[:2] for w in sys.argv[5:])

builder = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", jars)
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1")
    .config("spark.default.parallelism", "1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
    .config("spark.sql.catalog.weir", "org.apache.iceberg.spark.SparkCatalog")
    .config("spark.sql.catalog.weir.type", "jdbc")
    .config("spark.sql.catalog.weir.uri", "jdbc:sqlite:" + catalog)
    .config("spark.sql.catalog.weir.jdbc.schema-version", "V1")
    .config("spark.sql.catalog.weir.warehouse", warehouse)
    .config("spark.sql.catalog.weir.cache-enabled", "false")
)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")


def call(procedure, table, **more):
    arguments = "".join(", %s => %s" % (k, v) for k, v in more.items())
    return spark.sql("CALL weir.system.%s(table => '%s'%s)" % (procedure, table, arguments)).collect()[0]


for table in tables.split(","):
    name = "weir." + table
    done = {"table": table, "files_rewritten": 0, "manifests_rewritten": 0, "snapshots_expired": 0, "rows_appended": 0}
    snapshots = spark.table(name + ".snapshots").count()
    if "rewrite" in wanted:
        done["files_rewritten"] = call("rewrite_data_files", table, options="map('rewrite-all', 'true')").rewritten_data_files_count
    if "manifests" in wanted:
        done["manifests_rewritten"] = call("rewrite_manifests", table).rewritten_manifests_count
    if "append" in wanted:
        rows = spark.table(name).limit(int(wanted["append"])).withColumn("topic", lit("foreign"))
        done["rows_appended"] = rows.count()
        rows.writeTo(name).append()
    if "column" in wanted and wanted["column"] not in spark.table(name).columns:
        spark.sql("ALTER TABLE %s ADD COLUMN %s STRING" % (name, wanted["column"]))
    if "expire" in wanted:
        before = spark.table(name + ".snapshots").count()
        call("expire_snapshots", table, retain_last=1, older_than="TIMESTAMP '%s'" % (datetime.now(timezone.utc) + timedelta(days=1)).strftime("%Y-%m-%d %H:%M:%S"))
        done["snapshots_expired"] = before - spark.table(name + ".snapshots").count()
    print(json.dumps(done))
