"""What one writes by hand: confluent-kafka, Arrow, PyIceberg's append, and the
offsets in the snapshot's summary. python_peer.py KAFKA TOPIC FOLDER ROWS_A_COMMIT"""
import json
import os
import sys
import time

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from pyiceberg.catalog.sql import SqlCatalog

kafka, topic, folder, size = sys.argv[1:4] + [int(sys.argv[4])]
COMMIT_SECONDS = 10
warehouse = os.path.join(folder, "warehouse")
os.makedirs(warehouse, exist_ok=True)
catalog = SqlCatalog("peer", uri=f"sqlite:///{folder}/catalog.db", warehouse="file://" + warehouse)
catalog.create_namespace_if_not_exists("db")
schema = pa.schema([
    ("value", pa.string()), ("kafka_partition", pa.int32()), ("kafka_offset", pa.int64()), ("kafka_ts", pa.timestamp("us", tz="UTC")),
])
table = catalog.create_table_if_not_exists("db.events", schema, location=f"file://{warehouse}/db/events",
                                           properties={"write.parquet.compression-codec": "zstd"})
snapshot = table.current_snapshot()
position = json.loads(snapshot.summary["kafka-offsets"]) if snapshot else {}

consumer = Consumer({
    "bootstrap.servers": kafka, "group.id": "peer", "enable.auto.commit": False, "auto.offset.reset": "earliest",
    "queued.max.messages.kbytes": 131072, "fetch.max.bytes": 16 << 20,
})
partitions = consumer.list_topics(topic).topics[topic].partitions
consumer.assign([TopicPartition(topic, p, position.get(str(p), 0)) for p in partitions])
batches, rows, due = [], 0, time.monotonic() + COMMIT_SECONDS
while True:
    messages = consumer.consume(10_000, 0.05)
    if messages:
        numbers, offsets = [m.partition() for m in messages], [m.offset() for m in messages]
        for p, offset in zip(numbers, offsets):
            position[str(p)] = offset + 1
        batches.append(pa.record_batch([
            pa.array([m.value() for m in messages], pa.binary()).cast(pa.string()),
            pa.array(numbers, pa.int32()),
            pa.array(offsets, pa.int64()),
            pa.array([m.timestamp()[1] * 1000 for m in messages], pa.timestamp("us", tz="UTC")),
        ], schema=schema))
        rows += len(messages)
    if rows >= size or (rows and time.monotonic() >= due):
        table.append(pa.Table.from_batches(batches), snapshot_properties={"kafka-offsets": json.dumps(position)})
        batches, rows, due = [], 0, time.monotonic() + COMMIT_SECONDS
