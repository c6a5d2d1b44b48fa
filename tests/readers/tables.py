"""What the readers share: how a table is found, and which columns place a row.

Every question opens the catalog anew; nothing is cached between two of them.
"""

import argparse
import json
import pathlib
import sys


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--catalog", required=True, help="the SQL catalog's SQLite file, the URL of a REST catalog, postgresql+psycopg://…, or glue:")
    parser.add_argument("--name", default="weir", help="the catalog's name in its rows (default: weir)")
    parser.add_argument("--table", required=True, help="namespace.table")
    parser.add_argument("--property", action="append", default=[], metavar="KEY=VALUE",
                        help="a property of the catalog, as s3.endpoint=http://127.0.0.1:9000")
    return parser


def load(args):
    """The table at its newest metadata; the reader fails if there is none."""
    properties = dict(p.split("=", 1) for p in args.property)
    if args.catalog == "glue:":
        from pyiceberg.catalog.glue import GlueCatalog

        return GlueCatalog(args.name, **properties).load_table(args.table)
    if args.catalog.startswith("http"):
        from pyiceberg.catalog.rest import RestCatalog

        return RestCatalog(args.name, uri=args.catalog, **properties).load_table(args.table)
    from pyiceberg.catalog.sql import SqlCatalog

    if args.catalog.startswith("postgresql"):
        return SqlCatalog(args.name, uri=args.catalog, init_catalog_tables="false", **properties).load_table(args.table)
    path = pathlib.Path(args.catalog).resolve()
    if not path.is_file():
        sys.exit(f"no catalog at {path}")
    # A writer holds SQLite's lock for moments only; readers wait for it.
    catalog = SqlCatalog(args.name, uri=f"sqlite:///{path}?timeout=30", init_catalog_tables="false", **properties)
    return catalog.load_table(args.table)


def place_columns(names):
    """The columns that hold a row's place in Kafka, and its event id."""
    def first(*candidates):
        return next((c for c in candidates if c in names), None)

    return (
        first("kafka_partition", "partition"),
        first("kafka_offset", "offset"),
        first("event_id"),
        first("kafka_topic", "topic"),
    )


def report(**counts):
    print(json.dumps(counts))
