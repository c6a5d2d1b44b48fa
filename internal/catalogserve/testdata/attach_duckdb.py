"""Counts every table of every REST catalog with DuckDB's Iceberg extension, and tries to write if asked to.

The argument is JSON: catalogs (uri, and token or credential, by name) and write.
"""

import importlib.util
import json
import os
import sys

import duckdb

wanted = json.loads(sys.argv[1])
con = duckdb.connect(config={"autoinstall_known_extensions": False, "autoload_known_extensions": False})
for name in ("httpfs", "avro", "iceberg"):
    folder = os.path.dirname(importlib.util.find_spec("duckdb_extension_" + name).origin)
    con.load_extension(os.path.join(folder, "extensions", "v" + duckdb.__version__, name + ".duckdb_extension"))
counts, refused = {}, 0
for called, settings in wanted["catalogs"].items():
    uri, access = settings["uri"], "AUTHORIZATION_TYPE 'none'"
    if "token" in settings:
        con.execute("CREATE SECRET %s_secret (TYPE iceberg, TOKEN '%s')" % (called, settings["token"]))
        access = "SECRET %s_secret" % called
    if "credential" in settings:
        who, secret = settings["credential"].split(":")
        con.execute(
            "CREATE SECRET %s_secret (TYPE iceberg, CLIENT_ID '%s', CLIENT_SECRET '%s', OAUTH2_SERVER_URI '%s/v1/oauth/tokens')"
            % (called, who, secret, uri)
        )
        access = "SECRET %s_secret" % called
    con.execute("ATTACH '' AS %s (TYPE iceberg, ENDPOINT '%s', %s)" % (called, uri, access))
    counts[called] = {}
    for catalog, schema, table, *_ in con.execute("SHOW ALL TABLES").fetchall():
        if catalog == called:
            counts[called][schema + "." + table] = con.execute('SELECT count(*) FROM %s."%s"."%s"' % (called, schema, table)).fetchone()[0]
    if wanted["write"]:
        try:
            con.execute("CREATE TABLE %s.a.x AS SELECT 1 AS a" % called)
        except duckdb.Error:
            refused += 1
print(json.dumps({"counts": counts, "refused": refused}))
