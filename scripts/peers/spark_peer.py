"""Spark Structured Streaming from Kafka into Iceberg, in one local process.
spark_peer.py KAFKA TOPIC FOLDER OFFSETS_A_BATCH; PEER_JARS is the folder of jars."""
import glob
import os
import sys

from pyspark.sql import SparkSession

kafka, topic, folder, size = sys.argv[1:]
jars = ":".join(glob.glob(os.path.join(os.environ["PEER_JARS"], "*.jar")))
spark = (
    SparkSession.builder.master("local[2]").appName("peer")
    .config("spark.driver.extraClassPath", jars)
    .config("spark.driver.memory", "4g")
    .config("spark.driver.extraJavaOptions", "-XX:+UseParallelGC")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    .config("spark.sql.warehouse.dir", os.path.join(folder, "spark-warehouse"))
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.shuffle.partitions", 2)
    .config("spark.serializer", "org.apache.spark.serializer.KryoSerializer")
    .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
    .config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
    .config("spark.sql.catalog.lake.type", "hadoop")
    .config("spark.sql.catalog.lake.warehouse", "file://" + os.path.join(folder, "warehouse"))
    .getOrCreate()
)
spark.sparkContext.setLogLevel("WARN")
spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.db")
spark.sql(
    "CREATE TABLE IF NOT EXISTS lake.db.events (key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp) "
    "USING iceberg TBLPROPERTIES ('write.parquet.compression-codec'='zstd', 'write.distribution-mode'='none')"
)
rows = (
    spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka).option("subscribe", topic)
    .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", size)
    .option("kafka.max.poll.records", 10_000).option("kafka.max.partition.fetch.bytes", 16 << 20)
    .option("kafka.fetch.max.bytes", 64 << 20)
    .load().select("key", "value", "topic", "partition", "offset", "timestamp")
)
query = (
    rows.writeStream.format("iceberg").outputMode("append").option("checkpointLocation", os.path.join(folder, "checkpoint"))
    .trigger(processingTime="0 seconds").toTable("lake.db.events")
)
query.awaitTermination()
