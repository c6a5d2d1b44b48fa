"""Loads examples/orchestrators/airflow as Airflow would, runs it once and prints
what came of it: run_airflow.py DAG_FILE. AIRFLOW_HOME is a folder of the caller."""
import json
import os
import sys

os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = os.path.dirname(sys.argv[1])
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__CORE__UNIT_TEST_MODE"] = "False"

from airflow.utils import db  # noqa: E402

db.initdb()

from airflow.exceptions import AirflowFailException, AirflowSkipException  # noqa: E402
from airflow.models import DagBag  # noqa: E402

bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"], include_examples=False)
out = {"import_errors": list(bag.import_errors.values()), "dags": list(bag.dag_ids)}
if "weir" in bag.dag_ids:
    dag = bag.get_dag("weir")
    out["retries"] = {t.task_id: t.retries for t in dag.tasks}
    if "FAKE_EXITS" in os.environ:  # a weir that ends with those codes: how are they taken?
        out["taken"] = {}
        for code in os.environ["FAKE_EXITS"].split(","):
            os.environ["FAKE_EXIT"] = code
            try:
                dag.get_task("run_once").python_callable()
                out["taken"][code] = "success"
            except AirflowFailException:
                out["taken"][code] = "fail"
            except AirflowSkipException:
                out["taken"][code] = "skip"
            except Exception:
                out["taken"][code] = "retry"
    else:
        run = dag.test()
        out["state"] = str(run.state)
        ti = {t.task_id: t for t in run.get_task_instances()}
        out["summary"] = ti["run_once"].xcom_pull(task_ids="run_once")
        out["audit"] = ti["audit"].xcom_pull(task_ids="audit")
print("\n" + json.dumps(out))
