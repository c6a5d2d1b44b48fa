#!/usr/bin/env python3
"""Prints every row of a table as one line of JSON, as PyIceberg reads it.

Bytes are base64, timestamps are whole microseconds since 1970, everything else
is as JSON has it. --digest COLUMN prints the bytes of that column as
{"bytes": length, "sha256": hex} instead, for values that are too big to print.
"""

import base64
import hashlib
import json
import sys

import pyarrow as pa

import tables


def encoder(kind, digest):
    if digest:
        return lambda v: None if v is None else {"bytes": len(v), "sha256": hashlib.sha256(v).hexdigest()}
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda v: None if v is None else base64.b64encode(v).decode()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        one = encoder(kind.value_type, False)
        return lambda v: None if v is None else [one(x) for x in v]
    if pa.types.is_struct(kind):
        fields = {f.name: encoder(f.type, False) for f in kind}
        return lambda v: None if v is None else {n: f(v[n]) for n, f in fields.items()}
    if pa.types.is_map(kind):
        return lambda v: None if v is None else dict(v)
    return lambda v: v


def main():
    parser = tables.arguments(__doc__)
    parser.add_argument("--digest", action="append", default=[], metavar="COLUMN")
    args = parser.parse_args()
    out = sys.stdout
    for batch in tables.load(args).scan().to_arrow_batch_reader():
        names, columns = batch.schema.names, []
        for field, column in zip(batch.schema, batch.columns):
            if pa.types.is_timestamp(field.type):
                column = column.cast(pa.timestamp("us", field.type.tz)).cast(pa.int64())
            encode = encoder(field.type, field.name in args.digest)
            columns.append([encode(v) for v in column.to_pylist()])
        for row in zip(*columns):
            out.write(json.dumps(dict(zip(names, row))) + "\n")


if __name__ == "__main__":
    main()
