#!/usr/bin/env python3
"""Foreign hands on a table: rewrites all its rows into new files, expires every
snapshot but the newest, appends rows, adds a column, as another engine does.
Weir's summary keys are on none of the snapshots that it makes."""

import tables


def append(table, topic, count):
    """Appends copies of the first rows under another topic's name."""
    import pyarrow

    rows = table.scan(limit=count).to_arrow()
    names = pyarrow.array([topic] * rows.num_rows, type=rows.schema.field("topic").type)
    table.append(rows.set_column(rows.schema.get_field_index("topic"), rows.schema.field("topic"), names))
    return rows.num_rows


def main():
    parser = tables.arguments(__doc__)
    parser.add_argument("--no-rewrite", action="store_true", help="leave the data files as they are")
    parser.add_argument("--expire", action="store_true", help="expire all snapshots but the newest")
    parser.add_argument("--append", type=int, default=0, help="append so many rows of another topic")
    parser.add_argument("--add-column", help="add an optional text column, unless it is there")
    args = parser.parse_args()
    table = tables.load(args)
    before = table.current_snapshot()
    rows = 0
    if not args.no_rewrite and before is not None:
        # The rows are read and written back in one transaction: a writer that
        # commits in between makes it fail instead of losing rows.
        everything = table.scan().to_arrow()
        rows = everything.num_rows
        with table.transaction() as tx:
            tx.overwrite(everything)
        table = tables.load(args)
    appended = append(table, "foreign", args.append) if args.append else 0
    if args.add_column and args.add_column not in table.schema().column_names:
        from pyiceberg.types import StringType

        with table.update_schema() as change:
            change.add_column(args.add_column, StringType())
    table = tables.load(args)
    expired = []
    if args.expire and table.current_snapshot() is not None:
        keep = table.current_snapshot().snapshot_id
        expired = [s.snapshot_id for s in table.snapshots() if s.snapshot_id != keep]
        if expired:
            table.maintenance.expire_snapshots().by_ids(expired).commit()
        table = tables.load(args)
    after = table.current_snapshot()
    tables.report(
        table=args.table,
        rows_rewritten=rows,
        rows_appended=appended,
        snapshots_expired=len(expired),
        snapshots_left=len(table.snapshots()),
        snapshot_before=before.snapshot_id if before else None,
        snapshot_after=after.snapshot_id if after else None,
        operation=after.summary.operation.value if after and after.summary else None,
    )


if __name__ == "__main__":
    main()
