"""Reads a Delta table with delta-rs and prints what it holds as JSON."""
import json
import os
import sys

import pyarrow as pa
from deltalake import DeltaTable

path, column = sys.argv[1], sys.argv[2]
dt = DeltaTable(path)
table = pa.table(dt.to_pyarrow_dataset().to_table(columns=[column]))
values = table.column(column).to_pylist()
out = {
    "version": dt.version(),
    "rows": len(values),
    "distinct": len(set(values)),
    "sum": sum(v for v in values if isinstance(v, int)),
    "files": len(dt.file_uris()),
    "txns": {a.split("|")[0]: dt.transaction_version(a) for a in sys.argv[3:]},
}
print(json.dumps(out))

# The engine's threads may abort a process that ends in the ordinary way.
sys.stdout.flush()
os._exit(0)
