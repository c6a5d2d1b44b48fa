#!/usr/bin/env python3
"""Foreign hands on a table: rewrites all its rows into new files, and expires
every snapshot but the newest, as another engine's maintenance does. Weir's
summary keys are on none of the snapshots that it makes."""

import tables


def main():
    parser = tables.arguments(__doc__)
    parser.add_argument("--no-rewrite", action="store_true", help="leave the data files as they are")
    parser.add_argument("--expire", action="store_true", help="expire all snapshots but the newest")
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
        snapshots_expired=len(expired),
        snapshots_left=len(table.snapshots()),
        snapshot_before=before.snapshot_id if before else None,
        snapshot_after=after.snapshot_id if after else None,
        operation=after.summary.operation.value if after and after.summary else None,
    )


if __name__ == "__main__":
    main()
