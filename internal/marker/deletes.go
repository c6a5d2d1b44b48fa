package marker

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/weirlake/weir/internal/batch"
)

// DeclaredDeletesKey is the table property that records what was deleted on
// purpose (legal erasure): a JSON list of DeclaredDelete. It is set in the commit
// that deletes. Rows that are missing within what is declared are no loss; rows
// that are there although they are declared by their offsets have come back.
const DeclaredDeletesKey = "weir.declared-deletes"

// DeclaredDelete is what one deletion took of one partition. With Offsets it says
// exactly which rows; without, as people write it by hand, at most Rows rows of
// [From, To). An erasure that took nothing, or rows that have no place in Kafka,
// leaves an entry without a topic: the table has seen it.
type DeclaredDelete struct {
	Topic     string `json:"topic,omitempty"`
	Partition int32  `json:"partition"`
	From      int64  `json:"from"`
	To        int64  `json:"to"`
	Rows      int64  `json:"rows"`
	// Offsets are the deleted ones as runs: "gap+length" from the end of the run
	// before (the first from From), the length left out where it is 1.
	// From 10, "0+3,2" is 10, 11, 12 and 15.
	Offsets string `json:"offsets,omitempty"`
	// Erasure is the id of the erasure, empty where people declared it.
	Erasure string `json:"erasure,omitempty"`
}

// Run is a half-open run of offsets, [From, To).
type Run struct{ From, To int64 }

// Runs decodes the offsets; none where they are not given.
func (d DeclaredDelete) Runs() ([]Run, error) {
	if d.Offsets == "" {
		return nil, nil
	}
	var out []Run
	at := d.From
	for _, part := range strings.Split(d.Offsets, ",") {
		gapText, lengthText, long := strings.Cut(part, "+")
		gap, err := strconv.ParseInt(gapText, 10, 64)
		length := int64(1)
		if err == nil && long {
			length, err = strconv.ParseInt(lengthText, 10, 64)
		}
		if err != nil || gap < 0 || length < 1 || at+gap+length > d.To {
			return nil, fmt.Errorf("%s: %q is no run of offsets of [%d, %d)", DeclaredDeletesKey, part, d.From, d.To)
		}
		out = append(out, Run{at + gap, at + gap + length})
		at += gap + length
	}
	return out, nil
}

// within is how many rows of [from, to) are declared: at least and at most.
func (d DeclaredDelete) within(from, to int64) (least, most int64, err error) {
	if d.From >= to || d.To <= from {
		return 0, 0, nil
	}
	runs, err := d.Runs()
	if err != nil || runs == nil {
		return 0, d.Rows, err
	}
	var n int64
	for _, r := range runs {
		n += max(0, min(r.To, to)-max(r.From, from))
	}
	return n, n, nil
}

// DeclaredDeletes decodes a table's property; none where it is not set.
func DeclaredDeletes(props map[string]string) ([]DeclaredDelete, error) {
	raw, ok := props[DeclaredDeletesKey]
	if !ok {
		return nil, nil
	}
	var out []DeclaredDelete
	if err := json.Unmarshal([]byte(raw), &out); err != nil {
		return nil, fmt.Errorf("table property %s is not a list of deletions: %w", DeclaredDeletesKey, err)
	}
	return out, nil
}

// DeclaredWithin is how many rows of a range the deletions took: at least and at
// most, which differ where somebody declared them without their offsets.
func DeclaredWithin(all []DeclaredDelete, r batch.Range) (least, most int64, err error) {
	for _, d := range all {
		if d.Topic != r.Topic || d.Partition != r.Partition {
			continue
		}
		l, m, err := d.within(r.From, r.To)
		if err != nil {
			return 0, 0, err
		}
		least, most = least+l, most+m
	}
	return least, most, nil
}

// ErasuresOf names the erasures that a table has seen: their number and a hash of
// their ids. Two times with the same name have seen the same. Empty for none; a
// property that cannot be read is a name of its own.
func ErasuresOf(props map[string]string) string {
	all, err := DeclaredDeletes(props)
	if err != nil {
		return Hash([]byte(props[DeclaredDeletesKey]))
	}
	seen := map[string]bool{}
	for _, d := range all {
		if d.Erasure != "" {
			seen[d.Erasure] = true
		}
	}
	if len(seen) == 0 {
		return ""
	}
	return fmt.Sprintf("%d-%s", len(seen), Hash([]byte(strings.Join(slices.Sorted(maps.Keys(seen)), " ")))[:16])
}

// Places are offsets by partition.
type Places map[batch.TopicPartition][]Run

// PlacesOf are the places of a list of offsets in any order.
func PlacesOf(offsets map[batch.TopicPartition][]int64) Places {
	out := Places{}
	for tp, all := range offsets {
		all = slices.Clone(all)
		slices.Sort(all)
		for _, o := range slices.Compact(all) {
			runs := out[tp]
			if n := len(runs); n > 0 && runs[n-1].To == o {
				runs[n-1].To++
				continue
			}
			out[tp] = append(runs, Run{o, o + 1})
		}
	}
	return out
}

// Has reports whether an offset is among the places.
func (p Places) Has(tp batch.TopicPartition, offset int64) bool {
	runs := p[tp]
	i, found := slices.BinarySearchFunc(runs, offset, func(r Run, o int64) int {
		switch {
		case r.To <= o:
			return -1
		case r.From > o:
			return 1
		}
		return 0
	})
	return found && i < len(runs)
}

// Count is the number of offsets.
func (p Places) Count() (n int64) {
	for _, runs := range p {
		for _, r := range runs {
			n += r.To - r.From
		}
	}
	return n
}

// Declare writes the places down as deletions of an erasure, in a fixed order.
func (p Places) Declare(erasure string) (out []DeclaredDelete) {
	for tp, runs := range p {
		if len(runs) == 0 {
			continue
		}
		d := DeclaredDelete{Topic: tp.Topic, Partition: tp.Partition, From: runs[0].From, To: runs[len(runs)-1].To, Erasure: erasure}
		var b strings.Builder
		at := d.From
		for i, r := range runs {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(strconv.FormatInt(r.From-at, 10))
			if n := r.To - r.From; n > 1 {
				b.WriteByte('+')
				b.WriteString(strconv.FormatInt(n, 10))
			}
			d.Rows += r.To - r.From
			at = r.To
		}
		d.Offsets = b.String()
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b DeclaredDelete) int {
		if c := strings.Compare(a.Topic, b.Topic); c != 0 {
			return c
		}
		return int(a.Partition) - int(b.Partition)
	})
	return out
}

// PlacesIn are the places of deletions that name their offsets.
func PlacesIn(all []DeclaredDelete) (Places, error) {
	out := Places{}
	for _, d := range all {
		runs, err := d.Runs()
		if err != nil {
			return nil, err
		}
		tp := batch.TopicPartition{Topic: d.Topic, Partition: d.Partition}
		out[tp] = append(out[tp], runs...)
	}
	return out, nil
}
