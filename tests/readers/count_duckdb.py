#!/usr/bin/env python3
"""Counts a table with DuckDB: rows, distinct places in Kafka, distinct event ids.

DuckDB's Iceberg extension comes over the network and is not counted on; the
list of live files is planned by PyIceberg, and DuckDB reads and counts the
Parquet files. Tables with row-level deletes are refused: the files alone do
not say what is live.
"""

import sys
from urllib.parse import unquote, urlparse

import duckdb

import tables


def local(path: str) -> str:
    return unquote(urlparse(path).path) if path.startswith("file:") else path


def main():
    args = tables.arguments(__doc__).parse_args()
    table = tables.load(args)
    names = [f.name for f in table.schema().fields]
    partition, offset, event_id, topic = tables.place_columns(names)
    tasks = list(table.scan().plan_files())
    if any(t.delete_files for t in tasks):
        sys.exit(f"{args.table} has row-level deletes, which this reader does not apply")
    files = [local(t.file.file_path) for t in tasks]
    rows = places = ids = 0
    if files:
        db = duckdb.connect()
        source = "read_parquet($files, union_by_name = true, hive_partitioning = false)"
        place = ", ".join(f'"{c}"' for c in (topic, partition, offset) if c)
        rows = db.execute(f"SELECT count(*) FROM {source}", {"files": files}).fetchone()[0]
        if partition and offset:
            places = db.execute(
                f"SELECT count(*) FROM (SELECT DISTINCT {place} FROM {source})", {"files": files}
            ).fetchone()[0]
        if event_id:
            ids = db.execute(
                f'SELECT count(*) FROM (SELECT DISTINCT "{event_id}" FROM {source})', {"files": files}
            ).fetchone()[0]
    snapshot = table.current_snapshot()
    tables.report(
        reader="duckdb",
        table=args.table,
        rows=rows,
        distinct_offsets=places if partition and offset else None,
        distinct_event_ids=ids if event_id else None,
        snapshot_id=snapshot.snapshot_id if snapshot else None,
        metadata_location=table.metadata_location,
    )


if __name__ == "__main__":
    main()
