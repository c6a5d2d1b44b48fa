"""Counts the rows of a table and how many of them differ."""
import os
import sys

from deltalake import DeltaTable

rows = DeltaTable(sys.argv[1]).to_pyarrow_dataset().to_table().to_pylist()
print(f"{len(rows)} rows, {len({repr(sorted(r.items())) for r in rows})} distinct")

# The engine's threads may abort a process that ends in the ordinary way.
sys.stdout.flush()
os._exit(0)
