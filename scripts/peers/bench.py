"""Measures Weir beside what one would otherwise run from Kafka into Iceberg: Spark
Structured Streaming, Flink, the Iceberg sink of Kafka Connect, and a hand-written
Python script. One broker, one topic, each alone, one after the other, one rule.

  scripts/peers/run.sh [--rows N] [--repeat R] [--engine NAME]… [--fresh]

What is measured, for all alike:
  rows/s   from the first commit of rows to the last but one, by the snapshots' own
           times and row counts in the table's metadata: start-up and the wait for
           the last commit interval are in nobody's figure
  CPU-s/M  user and system time of the process and all its descendants between the
           same two moments, per million rows of them; "whole" from its start
  peak MB  the greatest sum of resident memory of the same processes (of those that
           were there at the look before, so that a fork's shared pages do not count twice)
  first    seconds from the start of the process to its first commit of rows
  others   cores that neither it nor the broker used in that time
A run whose table does not end with the topic's records, each once by count, has no
figure. What is done is kept in RESULTS/results.jsonl; run again, it goes on.
"""
import argparse
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TICK, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
TOPIC, PARTITIONS = "wiki", 4
ENGINES = {  # name: (kind, setting, what it is)
    "weir": ("weir", 100_000, "100,000 offsets a batch (default)"),
    "spark": ("spark", 100_000, "100,000 offsets a batch"),
    "spark-big": ("spark", 500_000, "500,000 offsets a batch"),
    "python": ("python", 100_000, "100,000 rows a commit"),
    "python-big": ("python", 500_000, "500,000 rows a commit"),
    "connect": ("connect", 5, "2 tasks, 5 s commits, raised fetch sizes"),
    "flink": ("flink", 5, "parallelism 2, 5 s checkpoints"),
}


def say(*words):
    print(time.strftime("%H:%M:%S"), *words, file=sys.stderr, flush=True)


# ---- processes


def processes():
    """pid: (parent, CPU seconds with reaped children, resident bytes)"""
    out = {}
    for d in os.listdir("/proc"):
        if d.isdigit():
            try:
                with open(f"/proc/{d}/stat") as f:
                    s = f.read()
            except OSError:
                continue
            f = s[s.rindex(")") + 2 :].split()
            out[int(d)] = (int(f[1]), sum(map(int, f[11:15])) / TICK, int(f[21]) * PAGE)
    return out


def busy():
    """CPU seconds of the whole machine that were not idle."""
    with open("/proc/stat") as f:
        v = [int(x) for x in f.readline().split()[1:9]]
    return (sum(v) - v[3] - v[4]) / TICK


class Tree:
    """Watches a process and its descendants: samples of (time, CPU seconds of the
    tree, of the broker, of the machine), and the peak of resident memory."""

    def __init__(self, pid, broker):
        self.pid, self.broker, self.samples, self.peak, self.on = pid, broker, [], 0, True
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        before = set()
        while self.on:
            p = processes()
            todo, cpu, rss, seen = [self.pid], 0.0, 0, set()
            while todo:
                x = todo.pop()
                if x in p:
                    seen.add(x)
                    cpu += p[x][1]
                    # A fork that has not become its program yet shares its
                    # parent's pages: Hadoop forks the JVM for every chmod.
                    rss += p[x][2] if x in before or x == self.pid else 0
                    todo += [k for k, v in p.items() if v[0] == x]
            before = seen
            if rss:
                self.peak = max(self.peak, rss)
                self.samples.append((time.time(), cpu, p.get(self.broker, (0, 0, 0))[1], busy()))
            time.sleep(0.1)

    def stop(self):
        self.on = False
        self.thread.join()

    def at(self, t):
        """CPU of tree, broker and machine at a moment, between the samples around it."""
        before = [s for s in self.samples if s[0] <= t] or self.samples[:1]
        after = [s for s in self.samples if s[0] > t] or self.samples[-1:]
        a, b = before[-1], after[0]
        part = (t - a[0]) / (b[0] - a[0]) if b[0] > a[0] else 0
        return [x + (y - x) * part for x, y in zip(a[1:], b[1:])]


# ---- tables, from their metadata files


def newest_metadata(folder):
    best, number = None, -1
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    for name in names:
        m = re.fullmatch(r"v(\d+)\.metadata\.json|(\d{5})-.*\.metadata\.json", name)
        if m and int(m[1] or m[2]) > number:
            best, number = os.path.join(folder, name), int(m[1] or m[2])
    return best


def commits(folder):
    """[(time, rows of the table)] of the snapshots that have rows, in order."""
    path = newest_metadata(folder)
    if path is None:
        return []
    try:
        with open(path) as f:
            m = json.load(f)
    except (OSError, ValueError):
        return []
    out = []
    for s in sorted(m.get("snapshots") or [], key=lambda s: s["timestamp-ms"]):
        rows = int(s["summary"].get("total-records", 0))
        if rows and (not out or rows > out[-1][1]):
            out.append((s["timestamp-ms"] / 1000, rows))
    return out


def make_table(warehouse, name):
    """A table as a Hadoop catalog keeps it, so that no peer has to make it."""
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import new_table_metadata
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
    from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType

    schema = Schema(
        NestedField(1, "value", StringType(), required=False),
        NestedField(2, "kafka_partition", IntegerType(), required=False),
        NestedField(3, "kafka_offset", LongType(), required=False),
        NestedField(4, "kafka_ts", TimestamptzType(), required=False),
    )
    folder = os.path.join(warehouse, "db", name)
    os.makedirs(os.path.join(folder, "metadata"))
    properties = {"write.parquet.compression-codec": "zstd", "write.distribution-mode": "none"}
    metadata = new_table_metadata(schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "file://" + folder, properties)
    with open(os.path.join(folder, "metadata", "v1.metadata.json"), "w") as f:
        f.write(metadata.model_dump_json())
    with open(os.path.join(folder, "metadata", "version-hint.text"), "w") as f:
        f.write("1")
    return folder


# ---- the stream


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Broker:
    def __init__(self, folder, port):
        self.script, self.folder = os.path.join(ROOT, "scripts", "kafka.sh"), folder
        kept = os.path.join(folder, "port")
        if not port and not os.path.exists(kept):
            port = free_port()  # the controller takes the next one
        os.makedirs(folder, exist_ok=True)
        subprocess.run([self.script, "start", folder] + ([str(port)] if port else []), check=True,
                       env={**os.environ, "KAFKA_HEAP": "1g"})
        with open(kept) as f:
            self.address = "127.0.0.1:" + f.read().strip()
        self.pid = int(subprocess.run([self.script, "pid", folder], check=True, capture_output=True, text=True).stdout)

    def stop(self):
        subprocess.run([self.script, "stop", self.folder], check=True)


def records(address):
    """How many records the topic holds, 0 where there is none."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    c = Consumer({"bootstrap.servers": address, "group.id": "count"})
    try:
        topic = c.list_topics(timeout=60).topics.get(TOPIC)
        parts = topic.partitions if topic else {}
        return sum(c.get_watermark_offsets(TopicPartition(TOPIC, p), timeout=60)[1] for p in parts)
    except KafkaException:  # a partition that has no leader yet
        return 0
    finally:
        c.close()


def fill(weir, work, address, rows, seed):
    """Publishes the generator's stream with weir ingest, as a user would."""
    have = records(address)
    if have >= rows:
        return have
    folder = os.path.join(work, "feed")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    port = free_port()
    with open(os.path.join(folder, "pipeline.yaml"), "w") as f:
        f.write(f"""name: feed
catalog: {{type: sql, uri: "sqlite:{folder}/catalog.db"}}
warehouse: "{folder}/warehouse"
checkpointLocation: "{folder}/checkpoints"
kafka:
  bootstrapServers: ["{address}"]
  topics: [{{name: {TOPIC}, partitions: {PARTITIONS}}}, {{name: {TOPIC}.dlq, partitions: 1}}]
ingest:
  - name: feed
    sse: {{url: "http://127.0.0.1:{port}/v2/stream/recentchange", overlap: 10s, userAgent: bench}}
    topic: {TOPIC}
    deadLetterTopic: {TOPIC}.dlq
    key: $.meta.id
    contract: {{schema: "builtin:wikimedia/recentchange"}}
    position: "{folder}/position.json"
queries: []
""")
    log = open(os.path.join(folder, "log"), "w")
    stream = subprocess.Popen([weir, "replay-sse", "--listen", f"127.0.0.1:{port}", "--events", str(rows), "--seed", str(seed),
                               "--canaries", "0", "--violations", "0", "--duplicates", "0", "--late", "0"], stdout=log, stderr=log)
    ingest = subprocess.Popen([weir, "ingest", os.path.join(folder, "pipeline.yaml")], stdout=log, stderr=log)
    try:
        while True:
            now = records(address)
            if now >= rows:
                return now
            if ingest.poll() not in (None, 0):
                raise SystemExit(f"filling the topic ended: {log.name}")
            time.sleep(0.5)
    finally:
        for p in (ingest, stream):
            p.terminate()
            p.wait()


# ---- the engines: each gives a command, its environment, and its table's folder


def jars(name):
    return subprocess.run([os.path.join(HERE, "setup.sh"), name], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def weir_engine(o, d, address, size):
    path = os.path.join(d, "pipeline.yaml")
    with open(path, "w") as f:
        f.write(f"""name: peers
catalog: {{type: sql, uri: "sqlite:{d}/catalog.db"}}
warehouse: "{d}/warehouse"
checkpointLocation: "{d}/checkpoints"
kafka: {{bootstrapServers: ["{address}"]}}
queries:
  - name: bronze
    from: {{kafka: {{topics: [{TOPIC}], startingOffsets: earliest, maxOffsetsPerTrigger: {size}}}}}
    trigger: {{processingTime: 0s}}
    to: {{iceberg: {{table: bronze.events, partitionBy: ["day(timestamp)"]}}}}
status: {{listen: none}}
""")
    return [o.weir, "run", path], {}, os.path.join(d, "warehouse", "bronze.db", "events", "metadata")


def spark_engine(o, d, address, size):
    python = subprocess.run([os.path.join(ROOT, "scripts", "venv.sh"), "spark"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    env = {"PEER_JARS": jars("spark"), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": python, "SPARK_LOCAL_DIRS": os.path.join(d, "spark")}
    return ([python, os.path.join(HERE, "spark_peer.py"), address, TOPIC, d, str(size)], env,
            os.path.join(d, "warehouse", "db", "events", "metadata"))


def python_engine(o, d, address, size):
    # PyIceberg names folders as it likes; the script says the location.
    return ([sys.executable, os.path.join(HERE, "python_peer.py"), address, TOPIC, d, str(size)], {},
            os.path.join(d, "warehouse", "db", "events", "metadata"))


def connect_engine(o, d, address, seconds):
    plugin, worker, table = jars("connect"), jars("worker"), make_table(os.path.join(d, "warehouse"), "events")
    os.makedirs(os.path.join(d, "plugins"))
    os.symlink(plugin, os.path.join(d, "plugins", "iceberg"))
    with open(os.path.join(d, "worker.properties"), "w") as f:
        f.write(f"""bootstrap.servers={address}
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
offset.storage.file.filename={d}/offsets
offset.flush.interval.ms=1000
plugin.path={d}/plugins
listeners=http://127.0.0.1:{free_port()}
consumer.max.poll.records=5000
consumer.max.partition.fetch.bytes=8388608
consumer.fetch.min.bytes=262144
consumer.fetch.max.wait.ms=100
""")
    with open(os.path.join(d, "sink.properties"), "w") as f:
        f.write(f"""name=peer
connector.class=org.apache.iceberg.connect.IcebergSinkConnector
tasks.max=2
topics={TOPIC}
iceberg.tables=db.events
iceberg.tables.auto-create-enabled=false
iceberg.catalog=hadoop
iceberg.catalog.type=hadoop
iceberg.catalog.warehouse=file://{d}/warehouse
iceberg.control.topic=control-{os.path.basename(d)}
iceberg.control.commit.interval-ms={seconds * 1000}
iceberg.control.group-id-prefix=cg-{os.path.basename(d)}
transforms=hoist,meta
transforms.hoist.type=org.apache.kafka.connect.transforms.HoistField$Value
transforms.hoist.field=value
transforms.meta.type=org.apache.kafka.connect.transforms.InsertField$Value
transforms.meta.partition.field=kafka_partition
transforms.meta.offset.field=kafka_offset
transforms.meta.timestamp.field=kafka_ts
""".replace("name=peer", f"name=peer-{os.path.basename(d)}"))
    create_topic(address, f"control-{os.path.basename(d)}", 1)
    return (["java", "-Xmx2g", "-cp", f"{worker}/*", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
             "org.apache.kafka.connect.cli.ConnectStandalone", f"{d}/worker.properties", f"{d}/sink.properties"],
            {}, os.path.join(table, "metadata"))


def create_topic(address, name, partitions):
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address})
    for f in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        f.result()


def flink_engine(o, d, address, seconds):
    lib, table = jars("flink"), make_table(os.path.join(d, "warehouse"), "events")
    opens = [f"--add-opens=java.base/java.{p}=ALL-UNNAMED" for p in ("util", "lang", "nio", "time")]
    return (["java", "-Xmx2g", *opens, "-cp", f"{lib}/classes:{lib}/*", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "FlinkPeer",
             address, TOPIC, f"file://{d}/warehouse", "db.events", str(seconds * 1000), f"file://{d}/checkpoints"],
            {}, os.path.join(table, "metadata"))


KINDS = {"weir": weir_engine, "spark": spark_engine, "python": python_engine, "connect": connect_engine, "flink": flink_engine}


def measure(o, broker, rows, name):
    kind, size, _ = ENGINES[name]
    d = os.path.join(o.work, f"{name}-{int(time.time() * 1000)}")
    os.makedirs(d)
    command, env, table = KINDS[kind](o, d, broker.address, size)
    log = open(os.path.join(o.results, f"{name}.log"), "w")
    began = time.time()
    p = subprocess.Popen(command, env={**os.environ, **env}, stdout=log, stderr=log, cwd=d, start_new_session=True)
    tree = Tree(p.pid, broker.pid)
    try:
        while True:
            done = commits(table)
            if done and done[-1][1] >= rows:
                break
            if p.poll() is not None or time.time() - began > o.timeout:
                how = f"ended with {p.returncode}" if p.poll() is not None else f"has not done after {o.timeout} s"
                return {"engine": name, "failed": f"{how}, {done[-1][1] if done else 0} of {rows} rows: {log.name}"}
            time.sleep(0.1)
        time.sleep(0.3)  # a sample after the last commit
    finally:
        tree.stop()
        for s, wait in ((signal.SIGTERM, 20), (signal.SIGKILL, 20)):
            try:
                os.killpg(p.pid, s)
                p.wait(wait)
                break
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass
        done = commits(table)
        if not o.keep:
            shutil.rmtree(d, ignore_errors=True)
    if done[-1][1] != rows:
        return {"engine": name, "failed": f"the table holds {done[-1][1]} rows, the topic {rows}"}
    first, last = done[0], done[-2] if len(done) > 2 else done[-1]
    r = {"engine": name, "rows": rows, "commits": len(done), "first_commit_seconds": round(first[0] - began, 2),
         "peak_rss_mb": round(tree.peak / 2**20), "load_average": os.getloadavg()[0]}
    whole = tree.at(done[-1][0])
    r["cpu_seconds_per_million_rows_whole"] = round(whole[0] / rows * 1e6, 2)
    r["rows_per_second_whole"] = round(rows / (done[-1][0] - began))
    if last[0] > first[0]:
        a, b, seconds, n = tree.at(first[0]), tree.at(last[0]), last[0] - first[0], last[1] - first[1]
        r["rows_per_second"] = round(n / seconds)
        r["cpu_seconds_per_million_rows"] = round((b[0] - a[0]) / n * 1e6, 2)
        r["broker_cpu_seconds_per_million_rows"] = round((b[1] - a[1]) / n * 1e6, 2)
        r["others_cores"] = round(max(0, (b[2] - a[2] - (b[0] - a[0]) - (b[1] - a[1])) / seconds), 2)
    return r


# ---- the report


def table(results, out):
    by = {}
    for r in results:
        if "failed" not in r:
            by.setdefault(r["engine"], []).append(r)
    mid = lambda v, k: statistics.median([r[k] for r in v if k in r] or [0])
    weir = by.get("weir")
    out.write("| | setting | rows/s | Weir is | CPU-s/M | Weir takes | peak MB | start → first commit | others | runs |\n|---|---|---|---|---|---|---|---|---|---|\n")
    for name in ENGINES:
        v = by.get(name)
        failed = [r["failed"] for r in results if r["engine"] == name and "failed" in r]
        if not v:
            if failed:
                out.write(f"| {name} | {ENGINES[name][2]} | failed: {failed[-1]} |\n")
            continue
        rate, cpu = mid(v, "rows_per_second"), mid(v, "cpu_seconds_per_million_rows")
        ratio = share = ""
        if weir and name != "weir" and rate and cpu:
            ratio = f"{mid(weir, 'rows_per_second') / rate:.1f} ×"
            share = f"1/{cpu / mid(weir, 'cpu_seconds_per_million_rows'):.1f}"
        out.write(f"| {name} | {ENGINES[name][2]} | {rate:,.0f} | {ratio} | {cpu:.1f} | {share} | {mid(v, 'peak_rss_mb'):,.0f} | "
                  f"{mid(v, 'first_commit_seconds'):.1f} s | {mid(v, 'others_cores'):.2f} | {len(v)}{f', {len(failed)} failed' if failed else ''} |\n")


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    a.add_argument("--rows", type=int, default=2_000_000)
    a.add_argument("--repeat", type=int, default=3)
    a.add_argument("--engine", action="append", choices=list(ENGINES), help="only these (default: all)")
    a.add_argument("--weir", default=os.path.join(ROOT, "bin", "weir"))
    a.add_argument("--work", required=True, help="folder of broker, tables and results")
    a.add_argument("--port", type=int, default=0, help="of the broker; the next one is its controller's")
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--timeout", type=int, default=600, help="seconds that one run may take")
    a.add_argument("--fresh", action="store_true", help="forget what was measured and start over")
    a.add_argument("--keep", action="store_true", help="keep the tables")
    o = a.parse_args()
    o.weir, o.work = os.path.abspath(o.weir), os.path.abspath(o.work)
    o.results = o.work
    if o.fresh:
        shutil.rmtree(o.work, ignore_errors=True)
    os.makedirs(o.work, exist_ok=True)
    path = os.path.join(o.work, "results.jsonl")
    done = []
    if os.path.exists(path):
        with open(path) as f:
            done = [json.loads(line) for line in f]
    broker = Broker(os.path.join(o.work, "kafka"), o.port)
    try:
        rows = fill(o.weir, o.work, broker.address, o.rows, o.seed)
        say(f"{rows:,} records in {PARTITIONS} partitions at {broker.address}")
        # Round by round, so that a machine that drifts does so under all of them.
        for i in range(o.repeat):
            for name in o.engine or ENGINES:
                if sum(r["engine"] == name and "failed" not in r and r["rows"] == rows for r in done) > i:
                    continue
                say(f"{name}, run {i + 1}")
                r = measure(o, broker, rows, name)
                done.append(r)
                with open(path, "a") as f:
                    f.write(json.dumps(r) + "\n")
                say(json.dumps(r))
    finally:
        broker.stop()
    report = [r for r in done if "failed" in r or r["rows"] == rows]
    table(report, sys.stdout)
    with open(os.path.join(o.work, "results.json"), "w") as f:
        json.dump({"rows": rows, "cores": os.cpu_count(), "results": report}, f, indent=1)
    return 1 if not any("failed" not in r for r in report) else 0


if __name__ == "__main__":
    sys.exit(main())
