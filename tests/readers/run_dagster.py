"""Materialises examples/orchestrators/dagster once and prints what Dagster saw."""
import importlib.util
import json
import sys

import dagster as dg

spec = importlib.util.spec_from_file_location("weir_assets", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
with dg.DagsterInstance.local_temp() as instance:
    result = dg.materialize([module.weir_run], instance=instance, raise_on_error=False)
    rows = {
        e.asset_key.to_user_string(): {k: v.value for k, v in e.materialization.metadata.items()}
        for e in result.get_asset_materialization_events()
    }
    checks = {f"{c.asset_key.to_user_string()}/{c.check_name}": c.passed for c in result.get_asset_check_evaluations()}
    restarts = sum(e.event_type_value == "STEP_RESTARTED" for e in result.all_events)
print(json.dumps({"success": result.success, "rows": rows, "checks": checks, "restarts": restarts}))
