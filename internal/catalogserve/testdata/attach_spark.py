"""Counts every table of every catalog with Spark, and tries to write if asked to.

The arguments are JSON, catalogs (the settings of each, by name) and write, and
the jars that Spark needs.
"""

import json
import sys

from pyspark.sql import SparkSession

wanted, jars = json.loads(sys.argv[1]), sys.argv[2]
builder = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", jars)
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
)
for called, settings in wanted["catalogs"].items():
    builder = builder.config("spark.sql.catalog." + called, "org.apache.iceberg.spark.SparkCatalog")
    for key, value in settings.items():
        builder = builder.config("spark.sql.catalog.%s.%s" % (called, key), value)
spark = builder.getOrCreate()
counts, refused = {}, 0
for called in wanted["catalogs"]:
    counts[called] = {}
    for namespace in [r.namespace for r in spark.sql("SHOW NAMESPACES IN " + called).collect()]:
        for row in spark.sql("SHOW TABLES IN %s.`%s`" % (called, namespace)).collect():
            counts[called][namespace + "." + row.tableName] = spark.table("%s.`%s`.`%s`" % (called, namespace, row.tableName)).count()
    if wanted["write"]:
        try:
            spark.sql("CREATE TABLE %s.a.x (a INT) USING iceberg" % called)
        except Exception:
            refused += 1
print(json.dumps({"counts": counts, "refused": refused}))
