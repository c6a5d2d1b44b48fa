"""Counts every table through the REST catalog with DuckDB's Iceberg extension, and tries to write."""

import importlib.util
import json
import os
import sys

import duckdb

url, token = sys.argv[1], sys.argv[2]
con = duckdb.connect(config={"autoinstall_known_extensions": False, "autoload_known_extensions": False})
for name in ("httpfs", "avro", "iceberg"):
    folder = os.path.dirname(importlib.util.find_spec("duckdb_extension_" + name).origin)
    con.load_extension(os.path.join(folder, "extensions", "v" + duckdb.__version__, name + ".duckdb_extension"))
if token:
    con.execute("CREATE SECRET s (TYPE iceberg, TOKEN '%s')" % token)
    con.execute("ATTACH '' AS lake (TYPE iceberg, ENDPOINT '%s', SECRET s)" % url)
else:
    con.execute("ATTACH '' AS lake (TYPE iceberg, ENDPOINT '%s', AUTHORIZATION_TYPE 'none')" % url)
counts = {}
for _, schema, table, *_ in con.execute("SHOW ALL TABLES").fetchall():
    counts[schema + "." + table] = con.execute('SELECT count(*) FROM lake."%s"."%s"' % (schema, table)).fetchone()[0]
refused = 0
try:
    con.execute("CREATE TABLE lake.a.x AS SELECT 1 AS a")
except duckdb.Error:
    refused = 1
print(json.dumps({"counts": counts, "refused": refused}))
