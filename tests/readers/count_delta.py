#!/usr/bin/env python3
"""Counts a Delta table with delta-rs: rows, distinct places in Kafka, distinct
event ids. The table is read whole, by delta-rs's own scan."""

import argparse
import json
import os
import sys

from deltalake import DeltaTable


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", required=True, help="folder of the table")
    parser.add_argument("--property", action="append", default=[], help="storage option, NAME=VALUE")
    args = parser.parse_args()
    table = DeltaTable(args.table, storage_options=dict(p.split("=", 1) for p in args.property) or None)
    names = [f.name for f in table.schema().fields]
    place = [c for c in ("topic", "partition", "kafka_partition", "offset", "kafka_offset") if c in names]
    ids = [c for c in ("event_id",) if c in names]
    rows = table.to_pyarrow_table(columns=place + ids).to_pylist()
    print(json.dumps({
        "reader": "delta-rs",
        "table": args.table,
        "rows": len(rows),
        "distinct_offsets": len({tuple(r[c] for c in place) for r in rows}),
        "distinct_event_ids": len({r["event_id"] for r in rows}) if ids else None,
        "version": table.version(),
    }))
    # The libraries' threads sometimes abort the interpreter while it shuts down,
    # after everything is counted.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
