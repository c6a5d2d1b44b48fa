#!/usr/bin/env python3
"""A rollback by another engine: sets the table's head to an ancestor. Table
properties, and so Weir's markers, stay as they are."""

import tables


def main():
    parser = tables.arguments(__doc__)
    parser.add_argument("--by", type=int, required=True, help="how many snapshots back")
    args = parser.parse_args()
    table = tables.load(args)
    snapshot = table.current_snapshot()
    for _ in range(args.by):
        snapshot = table.snapshot_by_id(snapshot.parent_snapshot_id)
    table.manage_snapshots().rollback_to_snapshot(snapshot.snapshot_id).commit()
    tables.report(table=args.table, rolled_back_to=tables.load(args).current_snapshot().snapshot_id)


if __name__ == "__main__":
    main()
