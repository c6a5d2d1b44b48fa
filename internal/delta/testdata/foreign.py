"""Writes to our table with delta-rs, and makes one of its own of every type."""
import os
import sys
from datetime import date, datetime, timezone
from decimal import Decimal

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

ours, theirs = sys.argv[1], sys.argv[2]
utc = timezone.utc
schema = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("seq", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("part", pa.string()),
    ]
)
rows = [{"id": 1000 + i, "name": "theirs", "seq": 1, "at": datetime(2026, 1, 1, tzinfo=utc), "part": "p q"} for i in range(2)]
write_deltalake(ours, pa.Table.from_pylist(rows, schema=schema), mode="append")
dt = DeltaTable(ours)
dt.delete("id = 3")
dt.create_checkpoint()

every = pa.schema(
    [
        ("i8", pa.int8()), ("i16", pa.int16()), ("i32", pa.int32()), ("i64", pa.int64()), ("f", pa.float32()), ("d", pa.float64()),
        ("b", pa.bool_()), ("s", pa.string()), ("bin", pa.binary()), ("day", pa.date32()), ("ts", pa.timestamp("us", tz="UTC")),
        ("dec", pa.decimal128(10, 2)),
        ("st", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])),
        ("l", pa.list_(pa.struct([("k", pa.string()), ("v", pa.binary())]))),
        ("m", pa.map_(pa.string(), pa.int64())),
    ]
)
data = [
    {
        "i8": i, "i16": -i, "i32": i, "i64": i, "f": 1.5, "d": -0.5, "b": True, "s": "é", "bin": b"\x00\xff", "day": date(2026, 1, 2),
        "ts": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=utc), "dec": Decimal("12.34"), "st": {"x": 1, "y": ["a", None]},
        "l": [{"k": "a", "v": b"1"}, {"k": "b", "v": None}], "m": [("a", 1), ("b", 2)],
    }
    for i in range(2)
] + [{n: None for n in every.names}]
write_deltalake(theirs, pa.Table.from_pylist(data, schema=every))

# The engine's threads may abort a process that ends in the ordinary way.
sys.stdout.flush()
os._exit(0)
