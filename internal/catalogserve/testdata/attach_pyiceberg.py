"""Counts every table of every catalog with PyIceberg, and tries to write if asked to.

The argument is JSON: catalogs (the properties of each, by name) and write.
"""

import json
import sys

from pyiceberg.catalog import load_catalog

wanted = json.loads(sys.argv[1])
counts, refused = {}, []
for called, properties in wanted["catalogs"].items():
    catalog = load_catalog(called, **properties)
    counts[called] = {}
    for namespace in catalog.list_namespaces():
        for name in catalog.list_tables(namespace):
            counts[called][".".join(name)] = catalog.load_table(name).scan().count()
    for write in (
        lambda: catalog.create_namespace("x"),
        lambda: catalog.drop_table("a.events"),
        lambda: catalog.load_table("a.events").transaction().set_properties(a="b").commit_transaction(),
    ) if wanted["write"] else ():
        try:
            write()
        except Exception as e:
            refused.append(type(e).__name__)
print(json.dumps({"counts": counts, "refused": len(refused)}))
