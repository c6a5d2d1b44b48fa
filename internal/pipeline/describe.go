package pipeline

// descriptions says what each key means, by struct and key: one sentence or
// two, used by the JSON Schema and by the tables of docs/pipeline.md. A test
// holds that every key has one.
var descriptions = map[string]string{
	"Pipeline.name":               "Name of the pipeline. Part of the default client id, group ids and transactional ids, so changing it changes those.",
	"Pipeline.catalog":            "Where the tables are registered.",
	"Pipeline.warehouse":          "Folder of the tables' files, or `s3://bucket/prefix`. Required, except with a `rest` catalog, which places the tables itself.",
	"Pipeline.checkpointLocation": "Folder of the checkpoints, or `s3://bucket/prefix`; each query has a folder of its name in it. Must lie outside the warehouse. On S3 a stream's `position` has to be given.",
	"Pipeline.stores":             "How buckets of S3, or of a compatible store, are reached. Without an entry: AWS, by the SDK's default chain (environment, profile, web identity, role of the container or the instance).",
	"Pipeline.kafka":              "The broker. Needed by ingest and by queries that read kafka.",
	"Pipeline.ingest":             "Streams of server-sent events to publish to topics.",
	"Pipeline.queries":            "Micro-batch queries, each with one source, one main table and one checkpoint.",
	"Pipeline.ops":                "What the engine writes about itself.",
	"Pipeline.status":             "The status page.",

	"Catalog.type":            "Kind of catalog: `sql` (a file, or Postgres) or `rest`. `glue` is refused.",
	"Catalog.name":            "The catalog's name. The SQL catalog stores it with each table, so Spark and PyIceberg have to use the same one.",
	"Catalog.uri":             "Of a `sql` catalog `sqlite:PATH` or `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, of a `rest` catalog its URL without the `/v1`. Never printed, because a database's URI may carry a password.",
	"Catalog.newName":         "`sql`: begin a catalog of this name in a database that holds the tables of others. Without it that is taken for a misspelt name and refused.",
	"Catalog.startTimeout":    "How long a start waits for a catalog that does not answer.",
	"Catalog.warehouse":       "`rest`: the server's own name of a warehouse, where it has several.",
	"Catalog.credential":      "`rest`: `ID:SECRET` of the OAuth2 client credentials flow; a secret. At most one of this, `token` and `sigv4`.",
	"Catalog.token":           "`rest`: a bearer token that is sent as it is and never renewed; a secret.",
	"Catalog.oauth2ServerUri": "`rest`: where tokens for `credential` come from. Default: the catalog's own `/v1/oauth/tokens`.",
	"Catalog.scope":           "`rest`: scope to ask for with `credential`. Default: `catalog`.",
	"Catalog.headers":         "`rest`: headers to send with every request. Their values are secrets.",
	"Catalog.sigv4":           "`rest`: sign the requests with the credentials of the AWS SDK's default chain.",

	"SigV4.region":  "Region to sign for. Default: the SDK's own.",
	"SigV4.service": "Service to sign for. Default: `execute-api`.",

	"Store.bucket":          "The bucket that the entry is for. Default: every bucket that no other entry names.",
	"Store.endpoint":        "URL of a compatible store (MinIO, Ceph, R2, versitygw). Default: AWS.",
	"Store.region":          "Region of the bucket. Default: that of the chain (`AWS_REGION`, profile); `us-east-1` with an endpoint.",
	"Store.pathStyle":       "Put the bucket into the path, not into the host name. Most compatible stores need it.",
	"Store.caFile":          "PEM file of the certificate authorities to trust in place of the system's.",
	"Store.accessKeyId":     "Access key; a secret. Default: the SDK's default chain, which also refreshes what expires.",
	"Store.secretAccessKey": "Secret key; goes with `accessKeyId`.",
	"Store.sessionToken":    "Session token of temporary keys. They are not refreshed: prefer the chain.",
	"Store.assumeRole":      "Take the credentials of a role, from STS.",
	"Store.sse":             "Server-side encryption to ask for with every write. Default: what the bucket does by itself.",
	"Store.kmsKeyId":        "KMS key of `aws:kms`. Default: the account's own.",

	"AssumeRole.roleArn":     "ARN of the role.",
	"AssumeRole.externalId":  "External id that the role's trust policy asks for; a secret.",
	"AssumeRole.sessionName": "Name of the session in the account's logs. Default: `weir`.",

	"Kafka.bootstrapServers": "Brokers to begin with, `host:port`: a list or one comma-separated text. Exactly one of this and `embedded`.",
	"Kafka.clientId":         "Client id that the broker sees. Default: `weir-` and the pipeline's name.",
	"Kafka.embedded":         "Run a broker of our own as a child process on the loopback interface.",
	"Kafka.tls":              "Encrypt the connections. `{}` trusts the system's roots.",
	"Kafka.sasl":             "Log in to the broker.",
	"Kafka.topics":           "Topics to create at start when they are missing. Existing ones are left as they are.",

	"Embedded.dataDir": "Folder of the broker's log and of its cluster id.",
	"Embedded.port":    "Port on 127.0.0.1; 0 takes a free one.",

	"TLS.caFile":             "PEM file of the certificate authorities to trust in place of the system's.",
	"TLS.certFile":           "PEM file of the client's certificate; goes with `keyFile`.",
	"TLS.keyFile":            "PEM file of the client's key; goes with `certFile`.",
	"TLS.serverName":         "Name to check the certificate against, where it is not the host's.",
	"TLS.insecureSkipVerify": "Do not check the broker's certificate. Warned about.",

	"SASL.mechanism": "How to log in.",
	"SASL.username":  "User name; a secret.",
	"SASL.password":  "Password; a secret.",

	"Topic.name":              "Name of the topic.",
	"Topic.partitions":        "Number of partitions.",
	"Topic.replicationFactor": "Number of replicas; 1 on the embedded broker.",
	"Topic.config":            "Settings of the topic, by the broker's names.",

	"Ingest.name":            "Name of the stream.",
	"Ingest.sse":             "Where the events come from.",
	"Ingest.topic":           "Topic for events that meet the contract.",
	"Ingest.deadLetterTopic": "Topic for events that violate it: raw bytes, with reason and SSE id in headers. Default: the topic's name and `.dlq`.",
	"Ingest.key":             "JSON path of the message key. Without it messages have none.",
	"Ingest.contract":        "What an event has to be before it is published.",
	"Ingest.delivery":        "`at-least-once` may send a few events again after a crash; `exactly-once` keeps the position in the same Kafka transaction as the events.",
	"Ingest.transactionalId": "Transactional id of exactly-once delivery. Default: `weir-`, the pipeline's and the stream's name. Two running instances with one id fence each other.",
	"Ingest.position":        "File of the resume position, in a folder of its own: the folder is locked. Default: `ingest/<name>/position.json` in the checkpoint location.",

	"SSE.url":           "The stream.",
	"SSE.userAgent":     "User-Agent header. Wikimedia asks for a name and a way to reach you.",
	"SSE.since":         "Where a first start begins: milliseconds since 1970 or an RFC 3339 time. Default: now. A saved position takes precedence.",
	"SSE.maxEventBytes": "Longest event that is accepted; a longer one is a dead letter, cut.",
	"SSE.idleTimeout":   "Reconnect after this long without a byte, comments included.",
	"SSE.overlap":       "Resume this much before the saved position, because the stream's times go backwards.",

	"Contract.schema": "`builtin:wikimedia/recentchange`, or the path of a JSON Schema file. Default: any JSON object.",
	"Contract.canary": "Artificial events to drop and count before anything else is checked.",

	"Canary.path":   "JSON path to look at.",
	"Canary.equals": "The text that marks a canary.",

	"Query.name":                          "Name of the query: its checkpoint folder, its marker in the table, its label in metrics. A renamed query is another query.",
	"Query.from":                          "The source.",
	"Query.trigger":                       "When a batch is planned. Default: the next one as soon as there is something new.",
	"Query.onLostCheckpoint":              "What to do when the checkpoint is gone but the table remembers the query: `adopt` the table's marker (exact), `fail`, or `restart` from startingOffsets (duplicates; warned about).",
	"Query.checkpointLocation":            "Folder of this query's checkpoint. Default: the query's name in the pipeline's checkpointLocation. May be on S3.",
	"Query.parse":                         "Turn the record's value into columns. Without it records are stored as they came. Needs `deadLetter`.",
	"Query.filter":                        "Condition on the declared columns; rows that do not meet it are counted as filtered.",
	"Query.watermark":                     "How late an event may be.",
	"Query.dropDuplicatesWithinWatermark": "Required columns that name an event. A second row with the same values within the watermark is dropped and counted.",
	"Query.deadLetter":                    "Table for rows that cannot be parsed.",
	"Query.to":                            "The sink.",

	"From.kafka": "Read topics.",
	"From.table": "Read a table that a Kafka query feeds, batch by batch.",

	"KafkaSource.topics":                     "Topics to read: a list or one comma-separated text. Exactly one of this and `topicPattern`.",
	"KafkaSource.topicPattern":               "Regular expression (RE2) that a topic's whole name has to match. New topics join while the query runs.",
	"KafkaSource.partitions":                 "Partitions to read of each topic, `0-15` or `0,3,8-11`. Default: all, added ones included. Not together with dropDuplicatesWithinWatermark.",
	"KafkaSource.startingOffsets":            "Where a fresh query begins: `earliest`, `latest`, or offsets by topic and partition, `{\"topic\": {\"0\": 23, \"1\": -2}}` (-2 earliest, -1 latest). A query with a checkpoint or a marker goes on from there.",
	"KafkaSource.startingOffsetsByTimestamp": "The same by points in time (milliseconds), by topic and partition. Takes precedence over startingOffsets.",
	"KafkaSource.startingTimestamp":          "The same for all partitions: milliseconds since 1970 or an RFC 3339 time.",
	"KafkaSource.maxOffsetsPerTrigger":       "Most offsets in a batch, shared over the partitions; 0 is no limit.",
	"KafkaSource.failOnDataLoss":             "Stop (exit code 3) when records are gone before they were read. Off, only losses by retention are skipped, and recorded.",
	"KafkaSource.groupId":                    "Consumer group that lag tools are told the progress under; never read back. Default: `weir-`, the pipeline's and the query's name.",

	"TableSource.name":                 "The table, `namespace.table`.",
	"TableSource.startingOffsets":      "Where a fresh query begins, by the Kafka offsets of the table's rows.",
	"TableSource.maxOffsetsPerTrigger": "Most offsets in a batch; 0 is no limit.",
	"TableSource.failOnDataLoss":       "Stop (exit code 3) when rows are gone before they were read.",

	"Trigger.processingTime": "Plan a batch every so often; 0 as soon as there is something new. At most one of the three keys.",
	"Trigger.availableNow":   "Work off what is there at the start, in as many batches as needed, and end.",
	"Trigger.once":           "Work off what is there at the start in one batch, and end.",

	"Parse.format":  "Format of the value.",
	"Parse.columns": "The columns, in the table's order.",

	"Column.name":       "Name of the column.",
	"Column.path":       "JSON path into the value: `$.meta.id`, `$['a b']`, `$.a[0]`. Exactly one of this and `source`.",
	"Column.source":     "A property of the record, or of the batch: `batchTime` is the time that the batch was planned at.",
	"Column.type":       "Type of the column; `json` keeps the JSON text of any value, `binary` with a path reads base64. A value of another type is a dead letter.",
	"Column.timeFormat": "How a `timestamptz` with a path is written in the value. Default: `rfc3339`.",
	"Column.required":   "A row without the value is a dead letter; otherwise the column is null.",

	"Watermark.column":        "Column of the event's time, a required `timestamptz`.",
	"Watermark.delay":         "How far behind the latest event time an event is still taken. Later ones are counted as late.",
	"Watermark.maxFutureSkew": "An event further ahead of the batch's time than this is a dead letter and does not move the watermark.",

	"DeadLetter.table":      "The table, `namespace.table`.",
	"DeadLetter.format":     "Format of the table.",
	"DeadLetter.properties": "Table properties to create it with.",

	"To.iceberg": "Append to an Iceberg table. Exactly one of these keys.",
	"To.delta":   "Append to a Delta table.",

	"DeltaSink.table":         "The table, `namespace.table`: the folder `<namespace>/<table>` of the warehouse, created when missing. Exactly one of this and `path`.",
	"DeltaSink.path":          "The table's folder, where it does not lie in the warehouse.",
	"DeltaSink.partitionBy":   "Columns to partition it by when it is created. Delta has no transforms.",
	"DeltaSink.properties":    "Table properties to create it with. `weir.*` is reserved, and so is a `delta.setTransactionRetentionDuration` under 30 days, which would let the table forget the query.",
	"DeltaSink.mergeSchema":   "Add columns of the query that an existing table lacks.",
	"DeltaSink.appId":         "A transaction app id of your own, kept at the batch id as other Delta writers do. The query's own memory does not need it.",
	"DeltaSink.onReusedAppId": "What to do where `appId` belongs to another lineage: `fail` (exit code 7), or `rebind` it to this query. Rows are never dropped for it.",

	"To.postgres": "Write to a table of a Postgres database.",

	"PostgresSink.url":           "The database, `postgres://user:password@host:port/database`; a secret.",
	"PostgresSink.table":         "The table, `table` or `schema.table`; made when it is missing, else its columns are checked.",
	"PostgresSink.mode":          "`append` adds rows; `upsert` keeps one row per key, the last.",
	"PostgresSink.keys":          "Columns that name a row, for `upsert`. A table that exists needs a unique index or a primary key on exactly these.",
	"PostgresSink.orderBy":       "Which of several rows of one key is the last: the greatest by these columns. Also keeps an older row from replacing a newer one in the table. Default: the last one that was read.",
	"PostgresSink.jsonb":         "Text columns that the table holds as `jsonb`.",
	"PostgresSink.onRejected":    "What to do with a row that the database refuses (a constraint, a NUL character, a number that is too large): `fail` (exit code 9; nothing of the batch is written), or `deadLetter`, which puts it into `rejectedTable`.",
	"PostgresSink.rejectedTable": "Iceberg table of the pipeline's catalog for rejected rows, `namespace.table`; this query's alone.",
	"PostgresSink.maxBatchBytes": "Most memory that a batch may take: a batch is sent whole, in one transaction.",

	"IcebergSink.table":       "The table, `namespace.table`; created when missing.",
	"IcebergSink.partitionBy": "Partitioning to create it with: `column`, `year(c)`, `month(c)`, `day(c)`, `hour(c)`, `bucket(n, c)`, `truncate(w, c)`.",
	"IcebergSink.properties":  "Table properties to create it with. `weir.*` is reserved.",

	"Ops.progressTable": "Table with one row per batch. Default: none.",
	"Ops.flushInterval": "How often progress rows are committed.",
	"Ops.jsonl":         "File that gets every progress row as a line of JSON.",

	"Status.listen": "`host:port` of the status page, or `none`. An address that others reach needs `token`.",
	"Status.token":  "What readers must show: `Authorization: Bearer TOKEN`, or `/?token=TOKEN` once in a browser. At least 16 characters where `listen` is not a loopback address.",
}
