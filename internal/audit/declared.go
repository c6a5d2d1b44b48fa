package audit

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/weirlake/weir/internal/failure"
)

// propertyDeletes is the public table property that says what was deleted on
// purpose. It is set in the commit that deletes.
const propertyDeletes = "weir.declared-deletes"

// declaredDelete is one entry of it.
type declaredDelete struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	From      int64  `json:"from"`
	To        int64  `json:"to"`
	Rows      int64  `json:"rows"`
	Offsets   string `json:"offsets"`
	Erasure   string `json:"erasure"`
}

// declared is what a table says was deleted from it on purpose.
type declared struct {
	// offsets of one topic, by partition.
	offsets map[int32]*OffsetSet
	// rows are those of the topics, and those without a place.
	rows     int64
	erasures map[string]bool
	// vague are entries that do not name their offsets: they prove nothing.
	vague int
}

// declaredDeletes reads the property; topic picks whose offsets are wanted, all
// where it is empty.
func (m *metadata) declaredDeletes(topic string) (declared, error) {
	out := declared{offsets: map[int32]*OffsetSet{}, erasures: map[string]bool{}}
	raw := ""
	if m != nil {
		raw = m.Properties[propertyDeletes]
	}
	if raw == "" {
		return out, nil
	}
	var all []declaredDelete
	if err := json.Unmarshal([]byte(raw), &all); err != nil {
		return out, failure.Wrap(failure.Config, err, "table property %s is not a list of deletions", propertyDeletes)
	}
	for _, d := range all {
		if d.Erasure != "" {
			out.erasures[d.Erasure] = true
		}
		if d.Topic != "" && d.Offsets == "" && d.Rows != d.To-d.From {
			out.vague++
			continue
		}
		if topic != "" && d.Topic != "" && d.Topic != topic {
			continue
		}
		if out.rows += d.Rows; d.Topic == "" {
			continue
		}
		set := out.offsets[d.Partition]
		if set == nil {
			set = NewOffsetSet()
			out.offsets[d.Partition] = set
		}
		if err := d.each(set.Add); err != nil {
			return out, failure.Wrap(failure.Config, err, "table property %s", propertyDeletes)
		}
	}
	return out, nil
}

// each calls add with every offset: runs of "gap+length" from From on.
func (d declaredDelete) each(add func(int64)) error {
	runs := strings.Split(d.Offsets, ",")
	if d.Offsets == "" {
		runs = []string{fmt.Sprintf("0+%d", d.To-d.From)}
	}
	at := d.From
	for _, run := range runs {
		gapText, lengthText, long := strings.Cut(run, "+")
		gap, err := strconv.ParseInt(gapText, 10, 64)
		length := int64(1)
		if err == nil && long {
			length, err = strconv.ParseInt(lengthText, 10, 64)
		}
		if err != nil || gap < 0 || length < 1 || at+gap+length > d.To {
			return fmt.Errorf("%q is no run of offsets of [%d, %d)", run, d.From, d.To)
		}
		for at += gap; length > 0; length-- {
			add(at)
			at++
		}
	}
	return nil
}

// back are the offsets that were deleted on purpose and are in the table again.
func (d declared) back(held *tableOffsets) (out []Range) {
	for _, p := range sortedKeys(d.offsets) {
		set := held.partitions[p]
		if set == nil {
			continue
		}
		var again [][2]int64
		for _, run := range d.offsets[p].Ranges(minOffset, maxOffset) {
			for o := run[0]; o < run[1]; o++ {
				if set.Has(o) {
					again = appendRange(again, o, o+1)
				}
			}
		}
		out = append(out, named(p, again, ReasonErased)...)
	}
	return out
}

// noteErased puts into the report what was deleted on purpose, and refuses what
// has come back.
func (t *TableReport) noteErased(d declared, held *tableOffsets) {
	t.ErasedRows = d.rows
	for _, p := range sortedKeys(d.offsets) {
		t.Erased = append(t.Erased, named(p, d.offsets[p].Ranges(minOffset, maxOffset), "")...)
	}
	if d.rows > 0 || len(d.erasures) > 0 {
		t.note("%d rows are declared as erased, by %d erasures: they are not counted as missing", d.rows, len(d.erasures))
	}
	if d.vague > 0 {
		t.note("%d declared deletions do not name their offsets: what they took is counted as missing", d.vague)
	}
	if back := d.back(held); len(back) > 0 {
		t.Extra = append(t.Extra, back...)
		t.mismatch("%d rows that were erased are there again", span(back))
	}
}
