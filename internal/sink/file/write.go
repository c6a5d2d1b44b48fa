package file

import (
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/weirlake/weir/internal/sink/rowjson"
)

// Formats of the files.
const (
	NDJSON  = "ndjson"
	CSV     = "csv"
	Parquet = "parquet"
)

// writer is one file under way; its bytes are held in memory.
type writer interface {
	write(rec arrow.RecordBatch) error
	// size is about how large the file has become.
	size() int
	// close gives the file's bytes.
	close() ([]byte, error)
}

func (o *Options) extension() string {
	ext := "." + o.Format
	if o.Gzip {
		ext += ".gz"
	}
	return ext
}

func (o *Options) newWriter() (writer, error) {
	if o.Format == Parquet {
		return newParquet(o.Shape)
	}
	enc, err := rowjson.New(o.Shape, nil, nil)
	if err != nil {
		return nil, err
	}
	t := &text{}
	t.to = &t.buf
	if o.Gzip {
		t.zip = gzip.NewWriter(&t.buf) // its header has no time: the same bytes for the same rows
		t.to = t.zip
	}
	if o.Format == NDJSON {
		t.row = func(rec arrow.RecordBatch, i int) error {
			t.line = append(enc.AppendRow(t.line[:0], rec, i), '\n')
			_, err := t.to.Write(t.line)
			return err
		}
		return t, nil
	}
	return t, t.csv(o.Shape, enc)
}

// text writes lines.
type text struct {
	buf  bytes.Buffer
	zip  *gzip.Writer
	to   io.Writer
	line []byte
	row  func(rec arrow.RecordBatch, i int) error
	end  func() error
}

// csv writes a header, and each value as it stands in JSON without the quotes;
// a null is empty, nested values are JSON.
func (t *text) csv(shape *arrow.Schema, enc *rowjson.Encoder) error {
	w := csv.NewWriter(t.to)
	cells := make([]string, shape.NumFields())
	for i, f := range shape.Fields() {
		cells[i] = f.Name
	}
	t.row = func(rec arrow.RecordBatch, i int) error {
		for c := range cells {
			t.line = enc.AppendValue(t.line[:0], rec, c, i)
			cells[c] = ""
			switch {
			case rec.Column(c).IsNull(i):
			case t.line[0] == '"':
				if err := json.Unmarshal(t.line, &cells[c]); err != nil {
					return fmt.Errorf("column %s: %w", shape.Field(c).Name, err)
				}
			default:
				cells[c] = string(t.line)
			}
		}
		return w.Write(cells)
	}
	t.end = func() error { w.Flush(); return w.Error() }
	return w.Write(cells)
}

func (t *text) write(rec arrow.RecordBatch) error {
	for i := range int(rec.NumRows()) {
		if err := t.row(rec, i); err != nil {
			return err
		}
	}
	return nil
}

func (t *text) size() int { return t.buf.Len() }

func (t *text) close() ([]byte, error) {
	if t.end != nil {
		if err := t.end(); err != nil {
			return nil, err
		}
	}
	if t.zip != nil {
		if err := t.zip.Close(); err != nil {
			return nil, err
		}
	}
	return t.buf.Bytes(), nil
}

// parquetFile writes a Parquet file.
type parquetFile struct {
	buf bytes.Buffer
	w   *pqarrow.FileWriter
	// raw is what the rows take in memory: how large their pages are is not known
	// before the file ends.
	raw uint64
}

func newParquet(shape *arrow.Schema) (*parquetFile, error) {
	p := &parquetFile{}
	props := parquet.NewWriterProperties(parquet.WithCompression(compress.Codecs.Zstd), parquet.WithCompressionLevel(1), parquet.WithCreatedBy("weir"))
	w, err := pqarrow.NewFileWriter(shape, &p.buf, props, pqarrow.NewArrowWriterProperties())
	if err != nil {
		return nil, fmt.Errorf("begin a Parquet file: %w", err)
	}
	p.w = w
	return p, nil
}

func (p *parquetFile) write(rec arrow.RecordBatch) error {
	for _, c := range rec.Columns() {
		p.raw += c.Data().SizeInBytes()
	}
	return p.w.WriteBuffered(rec)
}

func (p *parquetFile) size() int { return int(p.raw) }

func (p *parquetFile) close() ([]byte, error) {
	if err := p.w.Close(); err != nil {
		return nil, fmt.Errorf("finish a Parquet file: %w", err)
	}
	return p.buf.Bytes(), nil
}
