#!/usr/bin/env python3
"""Computes sessions and windows again, in SQL, of the rows of the table that
they were made of, and compares them with the tables that hold them. Nothing
here knows how the engine does it: sessions are gaps and islands over all rows
at once. A group counts where the watermark that its table names has passed
its end."""

import json

import duckdb
import tables

AGGREGATES = """
  count(*) AS edits,
  count(page) AS paged,
  sum(size)::BIGINT AS bytes,
  avg(size)::DOUBLE AS mean,
  min(size) AS least,
  max(page) AS greatest,
  (min({'seen': seen, 'v': page}) FILTER (WHERE page IS NOT NULL)).v AS first_page,
  (max({'seen': seen, 'v': size}) FILTER (WHERE size IS NOT NULL)).v AS last_size,
  count(DISTINCT page)::BIGINT AS pages
"""

SESSIONS = """
WITH marked AS (
  SELECT *, seen - lag(seen) OVER w AS since FROM edits WINDOW w AS (PARTITION BY editor ORDER BY seen, kafka_partition, kafka_offset)
), islands AS (
  SELECT *, sum(CASE WHEN since <= {gap} THEN 0 ELSE 1 END) OVER (
    PARTITION BY editor ORDER BY seen, kafka_partition, kafka_offset ROWS UNBOUNDED PRECEDING) AS island FROM marked
)
SELECT editor, min(seen) AS group_start, max(seen) + {gap} AS group_end, {aggregates} FROM islands GROUP BY editor, island
"""

WINDOWS = """
SELECT editor, s AS group_start, s + {duration} AS group_end, {aggregates} FROM (
  SELECT *, unnest(range(seen - seen % {slide}, seen - {duration}, -{slide})) AS s FROM edits)
GROUP BY editor, s
"""


def main():
    parser = tables.arguments(__doc__)
    parser.add_argument("--groups", required=True, help="the table of sessions or windows")
    parser.add_argument("--query", required=True, help="the query that writes it")
    parser.add_argument("--gap", type=int, help="microseconds")
    parser.add_argument("--duration", type=int)
    parser.add_argument("--slide", type=int)
    args = parser.parse_args()
    rows = tables.load(args).scan().to_arrow()
    args.table = args.groups
    held_table = tables.load(args)
    held_rows = held_table.scan().to_arrow()
    watermark = json.loads(held_table.properties[f"weir.query.{args.query}"])["watermark"]["micros"]
    bounds = ("session", "<") if args.gap else ("window", "<=")

    db = duckdb.connect()
    db.register("source", rows)
    db.register("target", held_rows)
    db.execute("SET TimeZone = 'UTC'")
    db.execute("CREATE TABLE edits AS SELECT * REPLACE (epoch_us(seen) AS seen) FROM source")
    sql = (SESSIONS if args.gap else WINDOWS).format(
        gap=args.gap, duration=args.duration, slide=args.slide, aggregates=AGGREGATES)
    db.execute(f"CREATE TABLE groups AS {sql}")
    db.execute(f"CREATE TABLE expected AS SELECT * FROM groups WHERE group_end {bounds[1]} {watermark}")
    db.execute(f"""CREATE TABLE held AS SELECT editor, epoch_us({bounds[0]}_start) AS group_start,
        epoch_us({bounds[0]}_end) AS group_end, edits, paged, bytes, mean, least, greatest, first_page, last_size, pages FROM target""")

    def one(query):
        return db.execute(query).fetchone()[0]

    tables.report(
        rows=one("SELECT count(*) FROM edits"),
        groups=one("SELECT count(*) FROM groups"),
        expected=one("SELECT count(*) FROM expected"),
        held=one("SELECT count(*) FROM held"),
        missing=one("SELECT count(*) FROM (SELECT * FROM expected EXCEPT ALL SELECT * FROM held)"),
        extra=one("SELECT count(*) FROM (SELECT * FROM held EXCEPT ALL SELECT * FROM expected)"),
        examples=[str(r) for r in db.execute(
            "(SELECT 'missing', * FROM (SELECT * FROM expected EXCEPT ALL SELECT * FROM held) LIMIT 3) UNION ALL "
            "(SELECT 'extra', * FROM (SELECT * FROM held EXCEPT ALL SELECT * FROM expected) LIMIT 3)").fetchall()],
        watermark=watermark,
    )


if __name__ == "__main__":
    main()
