package broker

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// kfake writes a batch to its segment first and to the segment's index second,
// acknowledges after both, and keeps producer sequences only on a clean close.
// So kill -9 leaves two holes that a real Kafka does not have, and repair
// closes them before kfake reads the files:
//
//   - A batch whose index entry is missing was never acknowledged, and loading
//     it forgets that it belongs to an open transaction: an uncommitted record
//     would become a committed one. It is cut off.
//   - A producer that outlives the broker retries the batch whose
//     acknowledgement it missed. Without the sequences the retry is appended
//     again. They are rebuilt from the batches, as Kafka does.
//
// The layout (partitions/<topic>-<n>/<base>.dat with record batches back to
// back, .idx with 15 bytes per batch, seq_windows.json) is that of the pinned
// kfake version; the tests of crashes fail when an update changes it.
const (
	indexEntryBytes  = 15
	batchHeaderBytes = 61
	// sequenceWindow is how many batches per producer a broker remembers.
	sequenceWindow = 5
	cleanCloseFile = "session_state.json"
	sequencesFile  = "seq_windows.json"
)

type sequences struct {
	Version int              `json:"version"`
	Windows []sequenceRecord `json:"windows"`
}

type sequenceEntry struct {
	FirstSeq int32 `json:"first_seq"`
	NextSeq  int32 `json:"next_seq"`
	Offset   int64 `json:"offset"`
}

type sequenceRecord struct {
	PID     int64                         `json:"pid"`
	Topic   string                        `json:"topic"`
	Part    int32                         `json:"partition"`
	Entries [sequenceWindow]sequenceEntry `json:"entries"`
	Count   uint8                         `json:"count"`
	At      uint8                         `json:"at"`
	Epoch   int16                         `json:"epoch"`
	Seen    bool                          `json:"seen"`
	NextSeq int32                         `json:"next_seq"`
}

type sequenceKey struct {
	pid   int64
	topic string
	part  int32
}

// repair mends the data of a broker that was killed; it does nothing after a
// clean close.
func repair(data string) error {
	if _, err := os.Stat(filepath.Join(data, cleanCloseFile)); err == nil {
		return nil
	}
	parts, err := os.ReadDir(filepath.Join(data, "partitions"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	known, err := readSequences(filepath.Join(data, sequencesFile))
	if err != nil {
		return err
	}
	for _, p := range parts {
		i := strings.LastIndexByte(p.Name(), '-')
		if i < 0 {
			continue
		}
		topic, err := url.PathUnescape(p.Name()[:i])
		if err != nil {
			return fmt.Errorf("partition folder %s: %w", p.Name(), err)
		}
		n, err := strconv.ParseInt(p.Name()[i+1:], 10, 32)
		if err != nil {
			return fmt.Errorf("partition folder %s: %w", p.Name(), err)
		}
		found, err := repairPartition(filepath.Join(data, "partitions", p.Name()), topic, int32(n))
		if err != nil {
			return fmt.Errorf("partition folder %s: %w", p.Name(), err)
		}
		for key, rec := range found {
			known[key] = rec
		}
	}
	out := sequences{Version: 1}
	for _, rec := range known {
		out.Windows = append(out.Windows, rec)
	}
	b, err := json.Marshal(out)
	if err != nil {
		return err
	}
	return replaceFile(filepath.Join(data, sequencesFile), b)
}

func readSequences(path string) (map[sequenceKey]sequenceRecord, error) {
	out := map[sequenceKey]sequenceRecord{}
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	var s sequences
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, w := range s.Windows {
		out[sequenceKey{w.PID, w.Topic, w.Part}] = w
	}
	return out, nil
}

func repairPartition(dir, topic string, part int32) (map[sequenceKey]sequenceRecord, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.dat"))
	if err != nil {
		return nil, err
	}
	base := func(f string) int64 {
		n, _ := strconv.ParseInt(strings.TrimSuffix(filepath.Base(f), ".dat"), 10, 64)
		return n
	}
	slices.SortFunc(files, func(a, b string) int {
		switch {
		case base(a) < base(b):
			return -1
		case base(a) > base(b):
			return 1
		}
		return 0
	})
	found := map[sequenceKey]sequenceRecord{}
	for _, f := range files {
		if err := repairSegment(f, func(h []byte) { observe(found, topic, part, h) }); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// repairSegment cuts batches without an index entry, and anything that is not
// a whole batch, off the segment, and calls each with the header of the rest.
func repairSegment(path string, each func(header []byte)) error {
	indexed := int64(0)
	if info, err := os.Stat(strings.TrimSuffix(path, ".dat") + ".idx"); err == nil {
		indexed = info.Size() / indexEntryBytes
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	var header [batchHeaderBytes]byte
	pos := int64(0)
	for n := int64(0); n < indexed && pos+batchHeaderBytes <= info.Size(); n++ {
		if _, err := f.ReadAt(header[:], pos); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		size := 12 + int64(binary.BigEndian.Uint32(header[8:]))
		if pos+size > info.Size() {
			break
		}
		each(header[:])
		pos += size
	}
	if pos == info.Size() {
		return nil
	}
	return f.Truncate(pos)
}

// observe moves a producer's window over one batch, as a broker does when it
// appends the batch.
func observe(found map[sequenceKey]sequenceRecord, topic string, part int32, h []byte) {
	attributes := binary.BigEndian.Uint16(h[21:])
	pid := int64(binary.BigEndian.Uint64(h[43:]))
	first := int32(binary.BigEndian.Uint32(h[53:]))
	const control = 0x20
	if pid < 0 || first < 0 || attributes&control != 0 {
		return
	}
	epoch := int16(binary.BigEndian.Uint16(h[51:]))
	count := int32(binary.BigEndian.Uint32(h[57:]))
	key := sequenceKey{pid, topic, part}
	w, ok := found[key]
	if !ok || w.Epoch != epoch {
		w = sequenceRecord{PID: pid, Topic: topic, Part: part, Epoch: epoch, Seen: true}
	}
	next := int32((int64(first) + int64(count)) % math.MaxInt32)
	w.NextSeq = next
	w.Entries[w.At] = sequenceEntry{FirstSeq: first, NextSeq: next, Offset: int64(binary.BigEndian.Uint64(h))}
	w.At = (w.At + 1) % sequenceWindow
	w.Count = min(w.Count+1, sequenceWindow)
	found[key] = w
}
