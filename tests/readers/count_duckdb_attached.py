#!/usr/bin/env python3
"""Counts tables with DuckDB's Iceberg extension through a REST catalog, the files on S3.

The extensions come from PyPI (requirements-duckdb.txt). Prints for each table its
rows, distinct places in Kafka and distinct event ids.
"""

import argparse
import importlib.util
import json
import os

import duckdb


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--catalog", required=True, help="the URL of the REST catalog")
    parser.add_argument("--s3", help="host:port of an S3 server, path-style and without TLS")
    parser.add_argument("--key", default="")
    parser.add_argument("--secret", default="")
    parser.add_argument("tables", nargs="+", help="namespace.table")
    args = parser.parse_args()
    con = duckdb.connect(config={"autoinstall_known_extensions": False, "autoload_known_extensions": False})
    for name in ("httpfs", "avro", "iceberg"):
        folder = os.path.dirname(importlib.util.find_spec("duckdb_extension_" + name).origin)
        con.load_extension(os.path.join(folder, "extensions", "v" + duckdb.__version__, name + ".duckdb_extension"))
    if args.s3:
        con.execute(
            "CREATE SECRET s3 (TYPE s3, KEY_ID '%s', SECRET '%s', REGION 'us-east-1', ENDPOINT '%s', URL_STYLE 'path', USE_SSL false)"
            % (args.key, args.secret, args.s3))
    con.execute("ATTACH '' AS lake (TYPE iceberg, ENDPOINT '%s', AUTHORIZATION_TYPE 'none')" % args.catalog)
    out = {}
    for table in args.tables:
        name = 'lake."%s"."%s"' % tuple(table.split("."))
        columns = [c[0] for c in con.execute(f"SELECT * FROM {name} LIMIT 0").description]
        partition = "kafka_partition" if "kafka_partition" in columns else "partition"
        offset = "kafka_offset" if "kafka_offset" in columns else "offset"
        ids = "count(DISTINCT event_id)" if "event_id" in columns else "0"
        rows, places, ids = con.execute(
            f'SELECT count(*), count(DISTINCT ("{partition}", "{offset}")), {ids} FROM {name}').fetchone()
        out[table] = {"rows": rows, "distinct_offsets": places, "distinct_event_ids": ids}
    print(json.dumps(out))


if __name__ == "__main__":
    main()
