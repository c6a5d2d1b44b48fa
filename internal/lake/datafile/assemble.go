package datafile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/metadata"
)

// A Parquet file is its row groups' bytes, the page indexes, the footer.
// Row groups are encoded in memory, several at a time, each as a file of its
// own; assembling moves their bytes unchanged and shifts the offsets that the
// footer and the offset indexes hold. The library's own writer encodes one row
// group after the other, which keeps one core busy at most.

var magic = []byte("PAR1")

// assembler writes one Parquet file out of encoded row groups.
type assembler struct {
	w       io.Writer
	pos     int64
	meta    *metadata.FileMetaData
	indexes []pageIndex
}

// pageIndex holds the page indexes of one column chunk until they are written
// after the last row group.
type pageIndex struct {
	group, column int
	columnIndex   []byte
	offsetIndex   metadata.OffsetIndex
	shift         int64
}

// Write implements io.Writer, counting.
func (a *assembler) Write(b []byte) (int, error) {
	n, err := a.w.Write(b)
	a.pos += int64(n)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	return n, err
}

// add appends a row group.
func (a *assembler) add(g *rowGroup) error {
	if a.pos == 0 {
		if _, err := a.Write(magic); err != nil {
			return err
		}
	}
	raw := g.buf.Bytes()
	end, err := dataEnd(g)
	if err != nil {
		return err
	}
	shift := a.pos - int64(len(magic))
	group := 0
	if a.meta != nil {
		group = a.meta.NumRowGroups()
	}
	rg := g.meta.RowGroups[0]
	for i, c := range rg.Columns {
		ix := pageIndex{group: group, column: i, shift: shift}
		if c.ColumnIndexOffset != nil && c.ColumnIndexLength != nil {
			ix.columnIndex = append([]byte(nil), raw[*c.ColumnIndexOffset:*c.ColumnIndexOffset+int64(*c.ColumnIndexLength)]...)
		}
		if c.OffsetIndexOffset != nil && c.OffsetIndexLength != nil {
			ix.offsetIndex = metadata.NewOffsetIndex(raw[*c.OffsetIndexOffset:*c.OffsetIndexOffset+int64(*c.OffsetIndexLength)], parquet.NewReaderProperties(nil), nil)
		}
		a.indexes = append(a.indexes, ix)
		c.ColumnIndexOffset, c.ColumnIndexLength, c.OffsetIndexOffset, c.OffsetIndexLength = nil, nil, nil, nil
		if c.FileOffset > 0 {
			c.FileOffset += shift
		}
		c.MetaData.DataPageOffset += shift
		if c.MetaData.DictionaryPageOffset != nil && *c.MetaData.DictionaryPageOffset > 0 {
			*c.MetaData.DictionaryPageOffset += shift
		}
	}
	if rg.FileOffset != nil {
		*rg.FileOffset += shift
	}
	if rg.Ordinal != nil {
		*rg.Ordinal = int16(group)
	}
	if _, err := a.Write(raw[len(magic):end]); err != nil {
		return err
	}
	if a.meta == nil {
		a.meta = g.meta
		return nil
	}
	return a.meta.AppendRowGroups(g.meta)
}

// dataEnd is where the row group's column chunks end and indexes or the footer
// begin.
func dataEnd(g *rowGroup) (int64, error) {
	raw := g.buf.Bytes()
	if len(raw) < 12 {
		return 0, errors.New("encoded row group is too short")
	}
	footer := int64(binary.LittleEndian.Uint32(raw[len(raw)-8:]))
	end := int64(len(raw)) - 8 - footer
	for _, c := range g.meta.RowGroups[0].Columns {
		if c.ColumnIndexOffset != nil {
			end = min(end, *c.ColumnIndexOffset)
		}
		if c.OffsetIndexOffset != nil {
			end = min(end, *c.OffsetIndexOffset)
		}
		if c.MetaData == nil || c.MetaData.BloomFilterOffset != nil || c.MetaData.IndexPageOffset != nil {
			return 0, errors.New("encoded row group has parts that cannot be moved")
		}
	}
	if end < int64(len(magic)) {
		return 0, errors.New("encoded row group has no data")
	}
	return end, nil
}

// finish writes page indexes and footer and gives the file's metadata.
func (a *assembler) finish() (*metadata.FileMetaData, error) {
	if a.meta == nil {
		return nil, errors.New("a data file without rows")
	}
	for _, ix := range a.indexes {
		if ix.columnIndex == nil {
			continue
		}
		c := a.meta.RowGroups[ix.group].Columns[ix.column]
		at, n := a.pos, int32(len(ix.columnIndex))
		if _, err := a.Write(ix.columnIndex); err != nil {
			return nil, err
		}
		c.ColumnIndexOffset, c.ColumnIndexLength = &at, &n
	}
	for _, ix := range a.indexes {
		if ix.offsetIndex == nil {
			continue
		}
		if err := a.writeOffsetIndex(ix); err != nil {
			return nil, err
		}
	}
	n, err := a.meta.WriteTo(a, nil)
	if err != nil {
		return nil, fmt.Errorf("write footer: %w", err)
	}
	tail := append(binary.LittleEndian.AppendUint32(nil, uint32(n)), magic...)
	if _, err := a.Write(tail); err != nil {
		return nil, err
	}
	return a.meta, nil
}

func (a *assembler) writeOffsetIndex(ix pageIndex) error {
	b := &metadata.OffsetIndexBuilder{}
	for _, loc := range ix.offsetIndex.GetPageLocations() {
		if err := b.AddPage(loc.Offset, loc.FirstRowIndex, loc.CompressedPageSize); err != nil {
			return err
		}
	}
	if err := b.Finish(ix.shift); err != nil {
		return err
	}
	at := a.pos
	n, err := b.WriteTo(a, nil)
	if err != nil {
		return err
	}
	if n > 0 {
		length := int32(n)
		c := a.meta.RowGroups[ix.group].Columns[ix.column]
		c.OffsetIndexOffset, c.OffsetIndexLength = &at, &length
	}
	return nil
}
