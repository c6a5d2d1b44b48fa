"""An Airflow DAG that works a Weir pipeline off every quarter of an hour.

A run is safe to try again whenever Weir says so; what needs a decision fails at
once, without retries. The rows of each query are the task's result (XCom).

WEIR_PIPELINE names the pipeline file, WEIR_BIN the binary where it is not in PATH.
"""

import json
import os
import subprocess
from datetime import datetime, timedelta

from airflow.exceptions import AirflowException, AirflowFailException, AirflowSkipException

try:
    from airflow.sdk import dag, task  # Airflow 3
except ImportError:
    from airflow.decorators import dag, task  # Airflow 2

RETRY = {1, 6, 8, 130, 143}  # docs/orchestrators.md
BUSY = 5  # another run holds the queries


def weir(*args: str) -> tuple[int, list[dict]]:
    """Runs weir; gives its exit code and the documents it printed."""
    done = subprocess.run(
        [os.environ.get("WEIR_BIN", "weir"), *args, "--output", "json"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines() if line.strip()]


@dag(
    dag_id="weir",
    schedule=timedelta(minutes=15),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(seconds=30), "retry_exponential_backoff": True},
    tags=["weir"],
)
def weir_pipeline():
    @task
    def run_once() -> dict:
        code, documents = weir("run", "--once", os.environ["WEIR_PIPELINE"])
        summary = documents[-1] if documents and "completed" in documents[-1] else {}
        if code == 0:
            return summary
        if code == BUSY:
            raise AirflowSkipException("another run is under way; the next turn comes")
        if code in RETRY:
            raise AirflowException(f"weir ended with {code}: safe to try again")
        raise AirflowFailException(f"weir ended with {code}: needs a decision, see the log above")

    @task
    def audit(summary: dict) -> dict:
        """Counts each table against its topic; a difference fails, for good."""
        code, documents = weir("audit", os.environ["WEIR_PIPELINE"])
        if code == 4:
            raise AirflowFailException(f"tables and topics differ: {documents}")
        if code:
            raise AirflowException(f"the audit ended with {code}")
        return {t["table"]: t["rows"] for t in documents[-1]["tables"]}

    audit(run_once())


weir_pipeline()
