package datafile

import (
	"fmt"
	"io"
	"os"

	"github.com/apache/arrow-go/v18/parquet/file"
)

// Adopt makes a Parquet file that another writer made on this machine a data
// file of an unpartitioned table: it is copied to path, durably, and described
// from its footer. Its columns must carry the field ids of spec's schema.
func Adopt(spec Spec, from, path string) (File, error) {
	in, err := os.Open(from)
	if err != nil {
		return File{}, err
	}
	defer in.Close()
	r, err := file.NewParquetReader(in)
	if err != nil {
		return File{}, fmt.Errorf("read the footer of %s: %w", from, err)
	}
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return File{}, err
	}
	out, err := spec.FS.Create(path)
	if err != nil {
		return File{}, fmt.Errorf("create data file %s: %w", path, err)
	}
	n, err := io.Copy(out, in)
	if err != nil {
		if a, ok := out.(aborter); ok {
			a.Abort()
		} else {
			_ = out.Close()
		}
		return File{}, fmt.Errorf("write data file %s: %w", path, err)
	}
	if err := out.Close(); err != nil {
		return File{}, fmt.Errorf("make data file %s durable: %w", path, err)
	}
	return describe(spec, r.MetaData(), path, n, partitionValue{})
}
