#!/usr/bin/env python3
"""Recomputes the marts of the shipped pipeline from silver and compares.

silver.edits and silver.editor_sessions are read by PyIceberg at the snapshots
that each gold table's own summary names (or at --snapshot), the marts are
computed anew in DuckDB, in statements written for this script alone: no model,
no macro, no view of the project is used. Prints, per mart, whether the table
holds exactly those rows, and a few that it does not.

--snapshots lists the snapshots of silver.edits that added rows, oldest first.
"""

import json

import duckdb
import pyarrow as pa

import tables

# A mart: its columns in the order compared, and the batch computation.
BATCH = {
    "edits_per_minute": (
        "wiki, minute, edits, bot_edits, editors, bytes_changed",
        """SELECT ifnull(wiki, 'unknown'), time_bucket(INTERVAL 1 MINUTE, event_time), count(event_id),
                  sum(if(bot, 1, 0))::BIGINT, count(DISTINCT ifnull("user", 'unknown')),
                  sum(ifnull(length_new, 0) - ifnull(length_old, 0))::BIGINT
           FROM edits GROUP BY ALL""",
    ),
    "top_pages": (
        "wiki, rank, title, edits, editors, last_edit",
        """SELECT w, (SELECT count(*) FROM pages q WHERE q.w = p.w AND (q.n > p.n OR (q.n = p.n AND q.t <= p.t)))::INTEGER AS r, t, n, e, l
           FROM pages p WHERE r <= 50""",
    ),
    "editor_activity": (
        "editor, bot, edits, wikis, pages, bytes_changed, first_edit, last_edit, sessions",
        """SELECT ed, max(ifnull(bot, false)), count(*), count(DISTINCT ifnull(wiki, 'unknown')),
                  count(DISTINCT (ifnull(wiki, 'unknown'), ifnull(title, ''))),
                  sum(ifnull(length_new, 0) - ifnull(length_old, 0))::BIGINT, min(event_time), max(event_time),
                  (SELECT count(*) FROM sessions s WHERE ifnull(s."user", 'unknown') = ed)
           FROM (SELECT *, ifnull("user", 'unknown') AS ed FROM edits) GROUP BY ed""",
    ),
    "bot_share": (
        "wiki, hour, edits, bot_edits, bot_share",
        """SELECT ifnull(wiki, 'unknown'), time_bucket(INTERVAL 1 HOUR, event_time), count(*),
                  count(*) FILTER (bot), (count(*) FILTER (bot))::DOUBLE / count(*)
           FROM edits GROUP BY ALL""",
    ),
}

PAGES = """CREATE TABLE pages AS
  SELECT ifnull(wiki, 'unknown') AS w, ifnull(title, '') AS t, count(*) AS n, count(DISTINCT ifnull("user", 'unknown')) AS e, max(event_time) AS l
  FROM edits GROUP BY ALL"""


def naive(table):
    """Times in UTC, without a zone: DuckDB's own zones are an extension."""
    return table.cast(pa.schema([pa.field(f.name, pa.timestamp("us") if pa.types.is_timestamp(f.type) else f.type) for f in table.schema]))


def rows(relation):
    return sorted(map(repr, relation.fetchall()))


def recompute(catalog, mart, pinned):
    con = duckdb.connect()
    edits = naive(catalog("silver.edits").scan(snapshot_id=pinned["silver.edits"]).to_arrow())
    con.register("edits", edits)
    if "silver.editor_sessions" in pinned:
        con.register("sessions", naive(catalog("silver.editor_sessions").scan(snapshot_id=pinned["silver.editor_sessions"]).to_arrow()))
    else:
        con.execute('CREATE TABLE sessions ("user" VARCHAR)')
    con.execute(PAGES)
    columns, statement = BATCH[mart]
    want = rows(con.sql(statement))
    con.register("have", naive(catalog("gold." + mart).scan().to_arrow()))
    have = rows(con.sql(f"SELECT {columns} FROM have"))
    return have, want, edits.num_rows


def main():
    parser = tables.arguments(__doc__.splitlines()[0])
    parser.add_argument("--snapshots", action="store_true")
    parser.set_defaults(table="silver.edits")
    for action in parser._actions:
        if action.dest == "table":
            action.required = False
    args = parser.parse_args()

    def catalog(name):
        args.table = name
        return tables.load(args)

    if args.snapshots:
        found = [s.snapshot_id for s in catalog("silver.edits").snapshots()
                 if int((s.summary.additional_properties if s.summary else {}).get("added-records", "0"))]
        print(json.dumps({"snapshots": found}))
        return
    out = {}
    for mart in BATCH:
        table = catalog("gold." + mart)
        head = table.current_snapshot()
        pinned = json.loads(head.summary.additional_properties["weir.gold-inputs"])
        if mart == "editor_activity" and pinned.get("silver.editor_sessions") == 0:
            pinned.pop("silver.editor_sessions")
        have, want, n = recompute(catalog, mart, {k: v for k, v in pinned.items() if v})
        out[mart] = {
            "equal": have == want, "rows": len(have), "silver_rows": n, "inputs": pinned,
            "extra": sorted(set(have) - set(want))[:3], "missing": sorted(set(want) - set(have))[:3],
        }
    print(json.dumps({"equal": all(m["equal"] for m in out.values()), "marts": out}))


if __name__ == "__main__":
    main()
