package datafile

import (
	"fmt"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/codec"
)

// encode serialises a file's description in the encoding of a manifest entry.
func encode(spec Spec, df iceberg.DataFile) ([]byte, error) {
	b, err := codec.EncodeDataFile(df, spec.PartitionSpec, spec.Schema, spec.FormatVersion)
	if err != nil {
		return nil, fmt.Errorf("describe data file %s: %w", df.FilePath(), err)
	}
	return b, nil
}

// Decode is the inverse of File.Encoded. The schema, partition spec and format
// version must be those that the file was written under.
func Decode(spec Spec, encoded []byte) (iceberg.DataFile, error) {
	df, err := codec.DecodeDataFile(encoded, spec.PartitionSpec, spec.Schema, spec.FormatVersion)
	if err != nil {
		return nil, fmt.Errorf("read the description of a staged data file: %w", err)
	}
	return df, nil
}
