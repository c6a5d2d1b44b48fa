package pipeline

import "maps"

func init() {
	maps.Copy(descriptions, map[string]string{
		"To.http": "Send batches to an HTTP API.",
		"To.file": "Drop files into a folder.",
		"To.exec": "Run a program for each batch.",

		"HTTPSink.url":            "Where to send, `https://host/path`; a secret, because it may hold one.",
		"HTTPSink.method":         "The requests' method.",
		"HTTPSink.headers":        "Headers to send with every request. Their values are secrets.",
		"HTTPSink.tls":            "How to check the server, where the system's roots are not enough, and a certificate of our own.",
		"HTTPSink.format":         "`ndjson` (one object a line) or `json` (an array of objects).",
		"HTTPSink.gzip":           "Compress the requests' bodies.",
		"HTTPSink.chunkRows":      "Most rows of a request. A batch under way is cut as it was begun, whatever this says since.",
		"HTTPSink.chunkBytes":     "Most bytes of a request before compression; a single row may be larger.",
		"HTTPSink.concurrency":    "How many chunks may be under way at once. With more than 1 they arrive in any order; rows within a chunk keep theirs.",
		"HTTPSink.requestTimeout": "How long one request may take.",
		"HTTPSink.deadline":       "How long one chunk is tried: after 429, 5xx, or no answer. Then the query stops with exit code 8.",
		"HTTPSink.alreadyApplied": "Statuses that say that a chunk with this `Idempotency-Key` was applied before. Default: 409.",
		"HTTPSink.rowResults":     "Answers carry `{\"rejected\": [{\"row\": N, \"error\": \"…\"}]}`, N counted from 0 within the chunk; the other rows are applied.",
		"HTTPSink.recordKey":      "Add `weir_key` to each row: cluster, topic id, partition and offset, the same however often it is delivered.",
		"HTTPSink.onRejected":     "What to do with rows that the API refuses with a 4xx: `fail` (exit code 9), or `deadLetter`: a refused chunk is halved until the refused rows are found; they go to `rejectedTable`.",
		"HTTPSink.rejectedTable":  "Iceberg table of the pipeline's catalog for rejected rows, `namespace.table`; this query's alone.",
		"HTTPSink.rejectedMax":    "Most rows of one batch that may be refused; beyond, the query stops with exit code 9.",
		"HTTPSink.maxBatchBytes":  "Most memory that a batch may take.",

		"FileSink.path":        "The folder. It holds the query's log as well, under `_weir`.",
		"FileSink.format":      "`ndjson`, `csv` (with a header) or `parquet`.",
		"FileSink.compression": "`gzip` for ndjson and csv.",
		"FileSink.maxFileSize": "Size at which a file ends and the batch's next one begins; of Parquet the size of the rows in memory.",

		"ExecSink.command":       "The program and its arguments, a list; with `shell` one text.",
		"ExecSink.shell":         "Run the text with `/bin/sh -c`.",
		"ExecSink.dir":           "Folder to run in. Default: the one that weir runs in.",
		"ExecSink.env":           "Variables to add to weir's own environment. Their values are secrets.",
		"ExecSink.format":        "Rows on standard input: `ndjson`, or `arrow`, an Arrow IPC stream.",
		"ExecSink.ackRows":       "The last line of standard output is the number of rows that the program has dealt with; another one than the batch's stops the query (exit code 4).",
		"ExecSink.timeout":       "How long one run may take; then its process group is ended and the batch tried again.",
		"ExecSink.deadline":      "How long a batch is tried after exit code 75 or a time-out. Then the query stops with exit code 8.",
		"ExecSink.grace":         "Time between SIGTERM and SIGKILL.",
		"ExecSink.recordKey":     "Add `weir_key` to each row: cluster, topic id, partition and offset, the same however often it is delivered.",
		"ExecSink.maxBatchBytes": "Most memory that a batch may take.",
	})
}
