"""What another engine does to a table that a query writes to."""
import os
import sys

from deltalake import DeltaTable

what, path = sys.argv[1], sys.argv[2]
dt = DeltaTable(path)
if what == "restore":
    dt.restore(int(sys.argv[3]))
elif what == "vacuum":
    dt.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
elif what == "checkpoint":
    dt.optimize.compact()
    dt.create_checkpoint()
elif what == "count":
    print(dt.to_pyarrow_dataset().count_rows(), end="")
# The engine's threads may abort a process that ends in the ordinary way.
sys.stdout.flush()
os._exit(0)
