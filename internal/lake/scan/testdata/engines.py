"""Reads a bronze table with three independent readers, then rewrites it as
other engines would. Arguments: catalog file, warehouse URI, output folder."""
import glob
import json
import sys
from urllib.parse import urlparse

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog

catalog, warehouse, out = sys.argv[1:4]
cat = SqlCatalog("weir", uri="sqlite:///" + catalog, warehouse=warehouse)
t = cat.load_table("bronze.recentchange")
a = t.scan().to_arrow()
pairs = set(zip(a["partition"].to_pylist(), a["offset"].to_pylist()))
one = t.scan(row_filter="partition = 1 and offset >= 20 and offset < 30").to_arrow()
files = [urlparse(f.file.file_path).path for f in t.scan().plan_files()]
local = pa.concat_tables([pq.read_table(f, partitioning=None) for f in files])
d = duckdb.connect()
d.execute("set timezone = 'UTC'")
duck = d.execute("select count(*), count(distinct (\"partition\", \"offset\")), sum(octet_length(value)), min(\"timestamp\"), max(\"timestamp\"), sum(len(headers)) from read_parquet(?)", [files]).fetchone()
point = d.execute("select count(*) from read_parquet(?) where \"offset\" = 1399", [files]).fetchone()
groups = [pq.ParquetFile(f).metadata for f in files]
col = {c.path_in_schema: sorted(c.encodings) for c in (groups[0].row_group(0).column(i) for i in range(groups[0].num_columns))}
print(json.dumps({
    "pyiceberg": a.num_rows, "distinct": len(pairs), "pruned": one.num_rows,
    "pyarrow": local.num_rows, "duckdb": duck[0], "duckdb_distinct": duck[1],
    "value_bytes": [pc.sum(pc.binary_length(local["value"])).as_py(), int(duck[2])],
    "headers": [pc.sum(pc.list_value_length(local["headers"])).as_py(), int(duck[5])],
    "times": [str(pc.min(local["timestamp"]).as_py()), str(duck[3])],
    "files": len(files), "point": point[0], "row_groups": sum(g.num_row_groups for g in groups), "encodings": col,
    "column_index": all(g.row_group(r).column(2).has_column_index and g.row_group(r).column(i).has_offset_index
                        for g in groups for r in range(g.num_row_groups) for i in range(g.num_columns)),
}, default=str))

# PyIceberg 0.12 turns a null list into an empty one, when it scans and when it
# writes, so what is rewritten comes from PyArrow.
a = local.replace_schema_metadata(None)
a = pa.table({n: a[n] for n in a.column_names})
# The same rows as other engines hold them: large and dictionary types, other
# units and widths; without field ids, with an arrow schema in the metadata.
odd = pa.table({
    "topic": a["topic"].cast(pa.string()).dictionary_encode(),
    "partition": a["partition"].cast(pa.int64()),
    "offset": a["offset"],
    "timestamp": a["timestamp"].cast(pa.timestamp("ns", "UTC")),
    "timestamp_type": a["timestamp_type"].cast(pa.int16()),
    "key": a["key"].cast(pa.large_binary()),
    "value": a["value"].cast(pa.large_binary()),
    "headers": a["headers"].cast(pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))),
    "ingested_at": a["ingested_at"].cast(pa.timestamp("ms", "UTC")),
    "topic_id": a["topic_id"].cast(pa.large_string()),
})
pq.write_table(odd, out + "/odd.parquet", row_group_size=17)
d = duckdb.connect()
d.register("odd", a)
d.execute(f"copy (select * from odd order by \"offset\") to '{out}/duck.parquet' (format parquet)")
# PyIceberg's own file, with field ids of its choice. (Unpartitioned: writing a
# day partition needs the optional pyiceberg-core.)
cat.create_table("bronze.copy", schema=a.schema).append(a)
