"""Dagster assets of a Weir pipeline: one for each query, with row counts and checks.

Weir runs as a process of its own; its last line of JSON becomes the assets'
materialisations, its audit their checks. A query that had nothing new is not
materialised. Try it: WEIR_PIPELINE=pipeline.yaml dagster dev -f weir_assets.py

WEIR_PIPELINE names the pipeline file, WEIR_BIN the binary where it is not in PATH,
WEIR_QUERIES the assets: the queries' names, upstream first (default: bronze,silver).
"""

import json
import os
import subprocess

import dagster as dg

RETRY = {1, 6, 8, 130, 143}  # docs/orchestrators.md
QUERIES = os.environ.get("WEIR_QUERIES", "bronze,silver").split(",")


def weir(context: dg.AssetExecutionContext, *args: str) -> tuple[int, list[dict]]:
    """Runs weir; gives its exit code and the documents it printed."""
    documents = []
    with subprocess.Popen(
        [os.environ.get("WEIR_BIN", "weir"), *args, "--output", "json"], stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout:
            if line.strip():
                documents.append(json.loads(line))
                if "batch_id" in documents[-1]:
                    b = documents[-1]
                    context.log.info(f"{b['query_name']} batch {b['batch_id']}: {b['input_rows']} in, {b['output_rows']} out")
    return process.returncode, documents


def failed(what: str, code: int):
    """What Dagster is to do about an exit code."""
    if code in RETRY:
        return dg.RetryRequested(max_retries=3, seconds_to_wait=float(os.environ.get("WEIR_RETRY_SECONDS", "30")))
    return dg.Failure(f"{what} ended with {code}: needs a decision, see the log above", allow_retries=False)


@dg.multi_asset(
    name="weir_run",
    specs=[
        dg.AssetSpec(q, skippable=True, kinds={"iceberg"}, deps=QUERIES[i - 1 : i], group_name="weir")
        for i, q in enumerate(QUERIES)
    ],
    check_specs=[dg.AssetCheckSpec("rows_add_up", asset=q) for q in QUERIES]
    + [dg.AssetCheckSpec("exact", asset=q, description="counted against its topic by weir audit") for q in QUERIES],
)
def weir_run(context: dg.AssetExecutionContext):
    pipeline = os.environ["WEIR_PIPELINE"]
    code, documents = weir(context, "run", "--once", pipeline)
    if code:
        raise failed("weir run --once", code)
    summary = {q["query_name"]: q for q in documents[-1]["queries"]}
    code, documents = weir(context, "audit", pipeline)
    if code not in (0, 4):
        raise failed("weir audit", code)
    # The audit's tables are in the order of the queries.
    audited = dict(zip(QUERIES, documents[-1]["tables"]))
    for name in QUERIES:
        q, table = summary.get(name), audited.get(name)
        if q:
            yield dg.MaterializeResult(
                asset_key=name,
                data_version=dg.DataVersion(f"{q['query_id']}/{q['last_batch_id']}"),
                metadata={
                    "dagster/partition_row_count": q["output_rows"],
                    "dagster/row_count": table["rows"] if table else q["output_rows"],
                    **{k: v for k, v in q.items() if isinstance(v, int)},
                },
            )
        counted = q or dict.fromkeys(
            ("input_rows", "output_rows", "rows_filtered", "rows_duplicate", "rows_dropped_by_watermark", "rows_dead_lettered"), 0
        )
        rest = sum(v for k, v in counted.items() if k.startswith("rows_"))
        yield dg.AssetCheckResult(
            asset_key=name,
            check_name="rows_add_up",
            passed=counted["input_rows"] == counted["output_rows"] + rest,
            metadata={"input_rows": counted["input_rows"], "output_rows": counted["output_rows"], "set_aside": rest},
        )
        yield dg.AssetCheckResult(
            asset_key=name,
            check_name="exact",
            passed=bool(table and table["exact"]),
            severity=dg.AssetCheckSeverity.ERROR,
            metadata={"rows": table["rows"] if table else 0, "missing": len((table or {}).get("missing") or [])},
        )


defs = dg.Definitions(
    assets=[weir_run],
    schedules=[dg.ScheduleDefinition("every_quarter", target=weir_run, cron_schedule="*/15 * * * *")],
)
