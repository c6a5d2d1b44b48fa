package delta

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/upsert"
)

// Upsert is a source of changes on its way into a table: for each version that
// its commit is tried on it says which files go and which come.
type Upsert struct {
	t     *Table
	src   *upsert.Source
	files FileOptions

	// What was worked out, for base; nothing before On.
	base, shaped *Snapshot
	plan         *upsert.Plan
	touched      []*Add
	adds         []*Add
	tries        int
}

// NewUpsert keeps the source, which the caller releases. Files gets the files
// that are written.
func NewUpsert(t *Table, src *upsert.Source, files FileOptions) *Upsert {
	if files.Prefix == "" {
		files.Prefix = "merge-" + clock.Nonce() + "-"
	}
	return &Upsert{t: t, src: src, files: files}
}

// On works out what the source does to the table at s and writes the files that
// replace others. shaped is s with the changes of its metadata that the commit
// makes. What was worked out for an earlier version is kept where nothing has
// happened since to rows that it looked at.
func (u *Upsert) On(ctx context.Context, s, shaped *Snapshot) error {
	if u.holds(s, shaped) {
		return nil
	}
	u.tries++
	u.base, u.shaped, u.plan, u.touched, u.adds = nil, nil, upsert.NewPlan(u.src), nil, nil
	var looked []*Add
	if s.Version >= 0 {
		for _, a := range s.Files() {
			if !u.mayHold(a) {
				continue
			}
			looked = append(looked, a)
			if err := u.t.readFile(ctx, s, a, u.src.Columns(), func(rec arrow.RecordBatch) error {
				defer rec.Release()
				return u.plan.Look(a.Path, rec)
			}); err != nil {
				return err
			}
		}
	}
	for _, a := range looked {
		if u.plan.Touched(a.Path) {
			u.touched = append(u.touched, a)
		}
	}
	if err := u.rewrite(ctx, s, shaped); err != nil {
		return err
	}
	u.base, u.shaped = s, shaped
	return nil
}

// holds reports whether what was worked out for another version is true of s.
func (u *Upsert) holds(s, shaped *Snapshot) bool {
	b := u.base
	if b == nil || b.Version > s.Version || b.Version < 0 || b.Metadata.ID != s.Metadata.ID ||
		u.shaped.Metadata.SchemaString != shaped.Metadata.SchemaString || !samePartitioning(u.shaped, shaped) {
		return false
	}
	for _, a := range u.touched {
		if _, ok := s.File(a.Path); !ok {
			return false
		}
	}
	for _, a := range s.Files() {
		if _, had := b.File(a.Path); !had && u.mayHold(a) {
			return false
		}
	}
	return true
}

func (u *Upsert) rewrite(ctx context.Context, s, shaped *Snapshot) error {
	o := u.files
	o.Prefix += strconv.Itoa(u.tries) + "-"
	w, err := u.t.NewFiles(ctx, shaped, o)
	if err != nil {
		return err
	}
	for _, a := range u.touched {
		if err := u.t.readFile(ctx, s, a, nil, func(rec arrow.RecordBatch) error { return u.plan.Rest(rec, w.Write) }); err != nil {
			w.Abort()
			return err
		}
	}
	if err := u.plan.Insert(w.Write); err != nil {
		w.Abort()
		return err
	}
	u.adds, err = w.Close(ctx)
	return err
}

// Actions are what the commit does to the table's files.
func (u *Upsert) Actions() []Action {
	var out []Action
	for _, a := range u.touched {
		out = append(out, removeOf(a, u.t.nowMillis(), true))
	}
	for _, a := range u.adds {
		out = append(out, Action{Add: a})
	}
	return out
}

// Counts say what On found.
func (u *Upsert) Counts() upsert.Counts { return u.plan.Counts }

// Adds are the files that come.
func (u *Upsert) Adds() []*Add { return u.adds }

// Metrics are operationMetrics as other engines name them.
func (u *Upsert) Metrics() map[string]any {
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	c := u.plan.Counts
	return map[string]any{
		"numSourceRows": n(int64(len(u.src.Rows))), "numTargetRowsInserted": n(c.Inserted), "numTargetRowsUpdated": n(c.Updated),
		"numTargetRowsDeleted": n(c.Deleted), "numTargetRowsCopied": n(c.Copied), "numTargetFilesRemoved": n(int64(len(u.touched))),
		"numTargetFilesAdded": n(int64(len(u.adds))),
	}
}

func (u *Upsert) paths() map[string]bool {
	out := map[string]bool{}
	for _, a := range u.touched {
		out[a.Path] = true
	}
	return out
}

// mayHold reports whether a file may hold a key of the source.
func (u *Upsert) mayHold(a *Add) bool {
	if len(u.src.Rows) == 0 {
		return false
	}
	s, _ := a.ParseStats()
	for _, r := range u.src.Ranges {
		if !mayHoldKey(r, a, s) {
			return false
		}
	}
	return true
}

// mayHoldKey reports whether a file may hold a key column's value of the range.
func mayHoldKey(r upsert.Range, a *Add, s Stats) bool {
	if v, ok := a.PartitionValues[r.Column]; ok {
		return holdsText(r, v)
	}
	lo, hi := s.MinValues[r.Column], s.MaxValues[r.Column]
	if lo == nil || hi == nil {
		return true
	}
	switch {
	case r.Ints:
		from, err1 := strconv.ParseInt(string(bytes.TrimSpace(lo)), 10, 64)
		to, err2 := strconv.ParseInt(string(bytes.TrimSpace(hi)), 10, 64)
		return err1 != nil || err2 != nil || (from <= r.MaxInt && to >= r.MinInt)
	case r.Strings:
		var from, to string
		if json.Unmarshal(lo, &from) != nil || json.Unmarshal(hi, &to) != nil {
			return true
		}
		// Other engines cut the upper bound in ways of their own.
		return from <= r.MaxStr && (to >= r.MinStr || len(to) >= statsStringMax)
	}
	return true
}

func holdsText(r upsert.Range, v *string) bool {
	switch {
	case v == nil:
		return false // a key is never null
	case r.Ints:
		n, err := strconv.ParseInt(*v, 10, 64)
		return err != nil || (n >= r.MinInt && n <= r.MaxInt)
	case r.Strings:
		return *v >= r.MinStr && *v <= r.MaxStr
	}
	return true
}
