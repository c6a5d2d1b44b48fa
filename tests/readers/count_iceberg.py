#!/usr/bin/env python3
"""Counts a table with PyIceberg: rows, distinct places in Kafka, distinct event ids."""

import tables


def main():
    args = tables.arguments(__doc__).parse_args()
    table = tables.load(args)
    names = [f.name for f in table.schema().fields]
    partition, offset, event_id, topic = tables.place_columns(names)
    wanted = tuple(c for c in (topic, partition, offset, event_id) if c)
    # One row group at a time; only distinct values are kept.
    rows, places, ids = 0, set(), set()
    scan = table.scan(selected_fields=wanted or ("*",))
    for batch in scan.to_arrow_batch_reader():
        rows += batch.num_rows
        columns = {n: batch.column(n) for n in batch.schema.names}
        if partition and offset:
            topics = columns[topic].to_pylist() if topic else [None] * batch.num_rows
            places.update(zip(topics, columns[partition].to_pylist(), columns[offset].to_pylist()))
        if event_id:
            ids.update(columns[event_id].to_pylist())
    snapshot = table.current_snapshot()
    tables.report(
        reader="pyiceberg",
        table=args.table,
        rows=rows,
        distinct_offsets=len(places) if partition and offset else None,
        distinct_event_ids=len(ids) if event_id else None,
        snapshot_id=snapshot.snapshot_id if snapshot else None,
        metadata_location=table.metadata_location,
    )


if __name__ == "__main__":
    main()
