#!/usr/bin/env python3
"""Compares the same tables of two DuckDB files, rows and column types.

The first file has a --table in --left-schema, the second in --right-schema.
Prints, per table, how many rows only one of the two has.
"""

import argparse
import json

import duckdb


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("left")
    parser.add_argument("right")
    parser.add_argument("--left-schema", default="main")
    parser.add_argument("--right-schema", default="main")
    parser.add_argument("--table", action="append", required=True)
    args = parser.parse_args()
    con = duckdb.connect()
    con.execute("SET TimeZone = 'UTC'")
    con.execute(f"ATTACH '{args.left}' AS l (READ_ONLY)")
    con.execute(f"ATTACH '{args.right}' AS r (READ_ONLY)")

    def count(query):
        return con.sql(f"SELECT count(*) FROM ({query})").fetchone()[0]

    out = {}
    for name in args.table:
        left, right = f'l."{args.left_schema}"."{name}"', f'r."{args.right_schema}"."{name}"'
        types = [con.sql(f"SELECT column_name, column_type FROM (DESCRIBE {t}) ORDER BY 1").fetchall() for t in (left, right)]
        columns = ", ".join(f'"{c}"' for c, _ in types[0])
        out[name] = {
            "rows": count(f"FROM {left}"), "same_types": types[0] == types[1],
            "only_left": count(f"SELECT {columns} FROM {left} EXCEPT ALL SELECT {columns} FROM {right}"),
            "only_right": count(f"SELECT {columns} FROM {right} EXCEPT ALL SELECT {columns} FROM {left}"),
        }
    equal = all(t["same_types"] and not t["only_left"] and not t["only_right"] for t in out.values())
    print(json.dumps({"equal": equal, "tables": out}))


if __name__ == "__main__":
    main()
