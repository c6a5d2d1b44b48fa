"""Counts every table through the REST catalog with PyIceberg, and tries to write."""

import json
import sys

from pyiceberg.catalog import load_catalog

url, token = sys.argv[1], sys.argv[2]
catalog = load_catalog("any name", type="rest", uri=url, **({"token": token} if token else {}))
counts, refused = {}, []
for namespace in catalog.list_namespaces():
    for name in catalog.list_tables(namespace):
        counts[".".join(name)] = catalog.load_table(name).scan().count()
for write in (
    lambda: catalog.create_namespace("x"),
    lambda: catalog.drop_table("a.events"),
    lambda: catalog.load_table("a.events").transaction().set_properties(a="b").commit_transaction(),
):
    try:
        write()
    except Exception as e:
        refused.append(type(e).__name__)
print(json.dumps({"counts": counts, "refused": len(refused)}))
