"""Counts every table through the REST catalog with Spark, and tries to write."""

import json
import sys

from pyspark.sql import SparkSession

url, token, jar = sys.argv[1:4]
builder = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", jar)
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
    .config("spark.sql.catalog.lake.type", "rest")
    .config("spark.sql.catalog.lake.uri", url)
)
if token:
    builder = builder.config("spark.sql.catalog.lake.token", token)
spark = builder.getOrCreate()
counts, refused = {}, 0
for namespace in [r.namespace for r in spark.sql("SHOW NAMESPACES IN lake").collect()]:
    for row in spark.sql("SHOW TABLES IN lake.`%s`" % namespace).collect():
        counts[namespace + "." + row.tableName] = spark.table("lake.`%s`.`%s`" % (namespace, row.tableName)).count()
try:
    spark.sql("CREATE TABLE lake.a.x (a INT) USING iceberg")
except Exception:
    refused = 1
print(json.dumps({"counts": counts, "refused": refused}))
