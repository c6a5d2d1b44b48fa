#!/usr/bin/env python3
"""Prints the rows of an Iceberg and of a Delta table by key, as PyIceberg, DuckDB
(over the files that PyIceberg plans) and delta-rs read them: by reader, a list of
the columns' values, sorted."""

import json
import os
import sys
from urllib.parse import unquote, urlparse

import duckdb
from deltalake import DeltaTable

import tables


def main():
    parser = tables.arguments(__doc__)
    parser.add_argument("--delta", required=True, help="folder of the Delta table")
    parser.add_argument("--column", action="append", required=True)
    args = parser.parse_args()
    columns = args.column
    table = tables.load(args)
    scan = table.scan(selected_fields=tuple(columns))

    def rows(arrow):
        return sorted([r[c] for c in columns] for r in arrow.select(columns).to_pylist())

    out = {"pyiceberg": rows(scan.to_arrow()), "delta-rs": rows(DeltaTable(args.delta).to_pyarrow_table(columns=columns))}
    tasks = list(table.scan().plan_files())
    if any(t.delete_files for t in tasks):
        sys.exit("the Iceberg table has row-level deletes")
    files = [unquote(urlparse(t.file.file_path).path) for t in tasks]
    names = ", ".join(f'"{c}"' for c in columns)
    source = "read_parquet($files, union_by_name = true, hive_partitioning = false)"
    found = duckdb.connect().execute(f"SELECT {names} FROM {source}", {"files": files}).fetchall() if files else []
    out["duckdb"] = sorted(list(r) for r in found)
    print(json.dumps(out, default=str))  # decimals and dates as text
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
