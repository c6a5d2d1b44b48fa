package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/iceberg-go"
	iceio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/ingest"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/status"
)

// Bounds of looking for samples of dead letters.
const (
	sampleManifests = 4   // newest manifests of a dead-letter table that are read
	sampleFiles     = 4   // newest data files
	sampleBatch     = 256 // rows of a file that are decoded at a time
	samplePayload   = 512 // bytes of a payload that are handed on; the page cuts further
	topicPatience   = 2 * time.Second
)

// deadLetters are the newest dead letters of every table and topic of the
// pipeline that holds some, at most `most` of each.
func (w *watch) deadLetters(ctx context.Context, most int) ([]status.DeadLetter, error) {
	var out []status.DeadLetter
	var errs []error
	for _, q := range w.a.P.Queries {
		if q.DeadLetter == nil || q.DeadLetter.Format == pipeline.FormatDelta {
			continue // samples are read from Iceberg tables
		}
		got, err := w.tableSamples(ctx, q.DeadLetter.Table, most)
		errs, out = append(errs, err), append(out, got...)
	}
	for _, in := range w.a.P.Ingest {
		if in.DeadLetterTopic == "" {
			continue
		}
		got, err := w.topicSamples(ctx, in.DeadLetterTopic, int64(most))
		errs, out = append(errs, err), append(out, got...)
	}
	return out, errors.Join(errs...)
}

// tableSamples reads the last rows of the newest files of a dead-letter table.
// The newest manifests hold them, whatever was expired or merged since.
func (w *watch) tableSamples(ctx context.Context, name string, most int) ([]status.DeadLetter, error) {
	t, err := w.load(ctx, name)
	if err != nil || t == nil || t.CurrentSnapshot() == nil {
		return nil, err
	}
	fio, err := t.FS(ctx)
	if err != nil {
		return nil, fmt.Errorf("dead letters of %s: %w", name, err)
	}
	files, err := newestFiles(t, fio)
	if err != nil {
		return nil, fmt.Errorf("dead letters of %s: %w", name, err)
	}
	var out []status.DeadLetter
	for _, f := range files {
		rows, err := lastRows(ctx, fio, f, most)
		if err != nil {
			return out, fmt.Errorf("dead letters of %s: %w", name, err)
		}
		for i := range rows {
			rows[i].Where = name
		}
		if out = append(out, rows...); len(out) >= most {
			break
		}
	}
	return out, nil
}

// newestFiles are the paths of the data files that were added last.
func newestFiles(t *table.Table, fio iceio.IO) ([]string, error) {
	manifests, err := t.CurrentSnapshot().Manifests(fio)
	if err != nil {
		return nil, fmt.Errorf("read the manifest list: %w", err)
	}
	slices.SortStableFunc(manifests, func(a, b iceberg.ManifestFile) int { return cmp.Compare(b.SequenceNum(), a.SequenceNum()) })
	type added struct {
		seq  int64
		path string
	}
	var files []added
	read := 0
	for _, m := range manifests {
		if m.ManifestContent() != iceberg.ManifestContentData || read == sampleManifests {
			continue
		}
		read++
		for e, err := range m.Entries(fio, true) {
			if err != nil {
				return nil, fmt.Errorf("read manifest %s: %w", m.FilePath(), err)
			}
			files = append(files, added{e.SequenceNum(), e.DataFile().FilePath()})
		}
	}
	slices.SortStableFunc(files, func(a, b added) int { return cmp.Compare(b.seq, a.seq) })
	var out []string
	for _, f := range files[:min(len(files), sampleFiles)] {
		out = append(out, f.path)
	}
	return out, nil
}

// sampleColumns are the columns of a dead-letter table that the page shows.
var sampleColumns = []string{"kafka_topic", "kafka_partition", "kafka_offset", "reason", "detail", "key", "value", "processed_at"}

// lastRows reads the end of a data file.
func lastRows(ctx context.Context, fio iceio.IO, path string, most int) (out []status.DeadLetter, err error) {
	defer func() {
		if p := recover(); p != nil { // the library panics on some broken files
			err = fmt.Errorf("read %s: %v", path, p)
		}
	}()
	in, err := fio.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	defer in.Close()
	rd, err := file.NewParquetReader(in)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if rd.NumRowGroups() == 0 {
		return nil, nil
	}
	var leaves []int
	for _, c := range sampleColumns {
		at := rd.MetaData().Schema.ColumnIndexByName(c)
		if at < 0 {
			return nil, fmt.Errorf("%s has no column %s: it is not a dead-letter table of ours", path, c)
		}
		leaves = append(leaves, at)
	}
	fr, err := pqarrow.NewFileReader(rd, pqarrow.ArrowReadProperties{BatchSize: sampleBatch}, memory.DefaultAllocator)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	recs, err := fr.GetRecordReader(ctx, leaves, []int{rd.NumRowGroups() - 1})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	defer recs.Release()
	for recs.Next() {
		rec := recs.RecordBatch()
		for i := max(0, int(rec.NumRows())-most); i < int(rec.NumRows()); i++ {
			out = append(out, sampleOf(rec, i))
		}
		out = out[max(0, len(out)-most):]
	}
	if err := recs.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return out, nil
}

// sampleOf copies one row; a column of another type than ours is left empty.
func sampleOf(rec arrow.RecordBatch, i int) status.DeadLetter {
	var d status.DeadLetter
	for c, f := range rec.Schema().Fields() {
		if rec.Column(c).IsNull(i) {
			continue
		}
		var text []byte
		var number int64
		switch a := rec.Column(c).(type) {
		case *array.String:
			text = []byte(a.Value(i))
		case *array.Binary:
			text = a.Value(i)
		case *array.Int32:
			number = int64(a.Value(i))
		case *array.Int64:
			number = a.Value(i)
		case *array.Timestamp:
			unit := a.DataType().(*arrow.TimestampType).Unit
			d.At = a.Value(i).ToTime(unit).UTC()
		}
		short := string(text[:min(len(text), samplePayload)])
		switch f.Name {
		case "kafka_topic":
			d.Topic = string(text)
		case "kafka_partition":
			d.Partition = int32(number)
		case "kafka_offset":
			d.Offset = number
		case "reason":
			d.Reason = short
		case "detail":
			d.Detail = short
		case "key":
			d.Key = short
		case "value":
			d.Snippet = short
		}
	}
	return d
}

// topicSamples reads the last records of a dead-letter topic.
func (w *watch) topicSamples(ctx context.Context, topic string, most int64) ([]status.DeadLetter, error) {
	admin, err := w.kafka()
	if err != nil {
		return nil, err
	}
	starts, err := admin.ListStartOffsets(ctx, topic)
	if err != nil {
		return nil, w.noAnswer(err, "where topic "+topic+" begins")
	}
	ends, err := admin.ListCommittedOffsets(ctx, topic)
	if err != nil {
		return nil, w.noAnswer(err, "where topic "+topic+" ends")
	}
	from := map[int32]kgo.Offset{}
	open := map[int32]int64{} // last offset wanted
	for p, end := range ends[topic] {
		start, ok := starts.Lookup(topic, p)
		if !ok || start.Err != nil || end.Err != nil || end.Offset <= start.Offset {
			continue
		}
		from[p], open[p] = kgo.NewOffset().At(max(start.Offset, end.Offset-most)), end.Offset-1
	}
	if len(from) == 0 {
		return nil, nil
	}
	opts, err := w.a.KafkaOptions()
	if err != nil {
		return nil, err
	}
	cl, err := kgo.NewClient(append(opts,
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}), kgo.FetchIsolationLevel(kgo.ReadCommitted()))...)
	if err != nil {
		return nil, fmt.Errorf("dead letters of topic %s: %w", topic, err)
	}
	defer cl.Close()
	// A transaction's marker at the end is an offset without a record: what has
	// come by then is enough.
	ctx, cancel := context.WithTimeout(ctx, topicPatience)
	defer cancel()
	var out []status.DeadLetter
	for len(open) > 0 && ctx.Err() == nil {
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			out = append(out, recordSample(r))
			if r.Offset >= open[r.Partition] {
				delete(open, r.Partition)
			}
		})
	}
	return out, nil
}

func recordSample(r *kgo.Record) status.DeadLetter {
	d := status.DeadLetter{
		Where: r.Topic, Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, At: r.Timestamp.UTC(),
		Key: string(r.Key[:min(len(r.Key), samplePayload)]), Snippet: string(r.Value[:min(len(r.Value), samplePayload)]),
	}
	for _, h := range r.Headers {
		switch h.Key {
		case ingest.HeaderReason:
			d.Reason = string(h.Value)
		case ingest.HeaderDetail:
			d.Detail = string(h.Value)
		}
	}
	return d
}
