"""Hurts Weir and its peers in the same two ways, and counts what their tables hold:

  killed     SIGKILL in mid-backlog, then the same command again
  forgotten  SIGKILL in mid-backlog, then what the engine keeps of its progress
             outside of the table is removed (checkpoint, consumer groups, control
             topic), then the same command again

`weir audit` counts every table against the topic: rows that are missing, rows that
are there more than once. It reads the tables by an implementation of its own.

  scripts/peers/hurt.sh [--engine NAME]… [--rows N]
"""
import argparse
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import bench

SCENARIOS = ("killed", "forgotten")
# How many offsets a batch (or, for connect and flink, seconds a commit): small enough
# for a backlog of many commits.
SETTINGS = {"weir": 10_000, "spark": 10_000, "python": 10_000, "connect": 1, "flink": 1}
SESSION = 90  # seconds after which no broker holds a killed member of a consumer group for alive
QUIET = 30  # seconds without a commit after which nothing more is expected


def delete_group(admin, group):
    """A group is empty once the broker has missed its killed members for long enough."""
    from confluent_kafka import KafkaError, KafkaException

    deadline = time.time() + SESSION
    while True:
        try:
            return admin.delete_consumer_groups([group])[group].result()
        except KafkaException as e:
            if e.args[0].code() != KafkaError.NON_EMPTY_GROUP or time.time() > deadline:
                raise
        time.sleep(1)


def forget(engine, d, address):
    """Removes what the engine knows of its progress, but for the table."""
    if engine == "connect":
        from confluent_kafka.admin import AdminClient

        admin, own = AdminClient({"bootstrap.servers": address}), os.path.basename(d)
        groups = [g.group_id for g in admin.list_consumer_groups().result().valid if own in g.group_id]
        for group in groups:
            delete_group(admin, group)
        for f in admin.delete_topics([f"control-{own}"]).values():
            f.result()
        time.sleep(2)
        bench.create_topic(address, f"control-{own}", 1)
        if os.path.exists(os.path.join(d, "offsets")):
            os.remove(os.path.join(d, "offsets"))
        return
    for name in ("checkpoint", "checkpoints"):
        shutil.rmtree(os.path.join(d, name), ignore_errors=True)


def run(command, env, d, log):
    return subprocess.Popen(command, env={**os.environ, **env}, stdout=log, stderr=log, cwd=d, start_new_session=True)


def newest(table):
    """The newest commit of rows, (0, 0) where there is none or its metadata is just being replaced."""
    return (bench.commits(table) or [(0, 0)])[-1]


def again(engine, d, command):
    """The command of the second life. Flink is told its newest checkpoint; the others find their place."""
    found = glob.glob(os.path.join(d, "checkpoints", "*", "chk-*", "_metadata")) if engine == "flink" else []
    return command + ["file://" + os.path.dirname(max(found, key=os.path.getmtime))] if found else command


def kill(p):
    try:
        os.killpg(p.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    p.wait()


def hurt(o, broker, rows, engine, scenario):
    d = os.path.join(o.work, f"{engine}-{scenario}-{int(time.time() * 1000)}")
    os.makedirs(d)
    command, env, table = bench.KINDS[engine](o, d, broker.address, SETTINGS[engine])
    result = {"engine": engine, "scenario": scenario, "records": rows}
    with open(os.path.join(d, "log"), "w") as log:
        p = run(command, env, d, log)
        try:
            deadline = time.time() + o.timeout
            while not bench.commits(table):
                if p.poll() is not None or time.time() > deadline:
                    return {**result, "outcome": f"did not commit: {log.name}"}
                time.sleep(0.02)
        finally:
            kill(p)
        result["rows_at_the_kill"] = newest(table)[1]
        if result["rows_at_the_kill"] >= rows:
            return {**result, "outcome": "inconclusive: the backlog was done before the kill"}
        if scenario == "forgotten":
            forget(engine, d, broker.address)
        p = run(again(engine, d, command), env, d, log)
        try:
            deadline, last, since = time.time() + o.timeout, None, time.time()
            while time.time() < deadline and p.poll() is None:
                now = newest(table)
                if now[1] and now != last:
                    last, since = now, time.time()
                if last and last[1] >= rows and time.time() - since > QUIET:
                    break
                time.sleep(0.5)
        finally:
            kill(p)
    return {**result, **audit(o, broker.address, table)}


def audit(o, address, table):
    command = [o.weir, "audit", "--table", os.path.dirname(table), "--topic", bench.TOPIC, "--kafka", address, "--output", "json"]
    if "kafka_partition" in open(bench.newest_metadata(table)).read():
        command += ["--partition-column", "kafka_partition", "--offset-column", "kafka_offset"]
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        t = json.loads(done.stdout)["tables"][0]
    except (ValueError, LookupError):
        return {"outcome": f"no audit: {done.stderr.strip()}"}
    return {"outcome": t["outcome"], "rows": t["rows"], "doubled": t["doubled_rows"],
            "missing": t["kafka_records"] - t["distinct_offsets"]}


def table(results, out):
    out.write("| | | rows at the kill | rows in the end | missing | doubled | audit |\n|---|---|---|---|---|---|---|\n")
    for r in results:
        n = lambda key: f"{r[key]:,}" if key in r else ""
        out.write(f"| {r['engine']} | {r['scenario']} | {n('rows_at_the_kill')} of {r['records']:,} | {n('rows')} | {n('missing')} | {n('doubled')} | {r['outcome']} |\n")


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    a.add_argument("--rows", type=int, default=100_000)
    a.add_argument("--engine", action="append", choices=list(SETTINGS), help="only these (default: weir and spark)")
    a.add_argument("--weir", required=True)
    a.add_argument("--work", required=True, help="folder of broker and tables")
    a.add_argument("--port", type=int, default=0, help="of the broker; the next one is its controller's")
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--timeout", type=int, default=300, help="seconds that one life of an engine may take")
    o = a.parse_args()
    o.weir, o.work = os.path.abspath(o.weir), os.path.abspath(o.work)
    shutil.rmtree(o.work, ignore_errors=True)
    broker = bench.Broker(os.path.join(o.work, "kafka"), o.port)
    results = []
    try:
        rows = bench.fill(o.weir, o.work, broker.address, o.rows, o.seed)
        for engine in o.engine or ("weir", "spark"):
            for scenario in SCENARIOS:
                results.append(hurt(o, broker, rows, engine, scenario))
                bench.say(json.dumps(results[-1]))
    finally:
        broker.stop()
    table(results, sys.stdout)
    # Weir must be exact; what the others do is shown.
    return 0 if all(r["outcome"] == "exact" for r in results if r["engine"] == "weir") else 4


if __name__ == "__main__":
    sys.exit(main())
