import java.util.Map;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.BigIntType;
import org.apache.flink.table.types.logical.IntType;
import org.apache.flink.table.types.logical.LocalZonedTimestampType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.logical.VarCharType;
import org.apache.flink.util.Collector;
import org.apache.iceberg.DistributionMode;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.flink.CatalogLoader;
import org.apache.iceberg.flink.TableLoader;
import org.apache.iceberg.flink.sink.IcebergSink;
import org.apache.kafka.clients.consumer.ConsumerRecord;

/**
 * Flink from Kafka into an Iceberg table that is there, in a local mini-cluster.
 * Arguments: KAFKA TOPIC WAREHOUSE TABLE CHECKPOINT_MILLIS CHECKPOINTS [CHECKPOINT]; it
 * goes on from the last one where it is given, as with flink run -s.
 */
public class FlinkPeer {
  static final RowType ROW =
      RowType.of(
          new LogicalType[] {
            new VarCharType(VarCharType.MAX_LENGTH), new IntType(), new BigIntType(), new LocalZonedTimestampType(6)
          },
          new String[] {"value", "kafka_partition", "kafka_offset", "kafka_ts"});

  public static class Rows implements KafkaRecordDeserializationSchema<RowData> {
    @Override
    public void deserialize(ConsumerRecord<byte[], byte[]> r, Collector<RowData> out) {
      out.collect(
          GenericRowData.of(
              StringData.fromBytes(r.value()), r.partition(), r.offset(), TimestampData.fromEpochMillis(r.timestamp())));
    }

    @Override
    public TypeInformation<RowData> getProducedType() {
      return InternalTypeInfo.of(ROW);
    }
  }

  public static void main(String[] args) throws Exception {
    Configuration c = new Configuration();
    c.setString("execution.checkpointing.interval", args[4] + "ms");
    c.setString("execution.checkpointing.storage", "filesystem");
    c.setString("execution.checkpointing.dir", args[5]);
    c.setString("restart-strategy.type", "none");
    if (args.length > 6) {
      c.setString("execution.state-recovery.path", args[6]);
    }
    c.setString("pipeline.object-reuse", "true");
    StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(c);
    env.setParallelism(2);
    KafkaSource<RowData> source =
        KafkaSource.<RowData>builder()
            .setBootstrapServers(args[0])
            .setTopics(args[1])
            .setGroupId("flink-" + System.nanoTime())
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setDeserializer(new Rows())
            .build();
    DataStream<RowData> rows = env.fromSource(source, WatermarkStrategy.noWatermarks(), "kafka");
    CatalogLoader catalog =
        CatalogLoader.hadoop("peer", new org.apache.hadoop.conf.Configuration(), Map.of("warehouse", args[2]));
    IcebergSink.forRowData(rows)
        .tableLoader(TableLoader.fromCatalog(catalog, TableIdentifier.parse(args[3])))
        .distributionMode(DistributionMode.NONE)
        .append();
    env.execute("peer");
  }
}
