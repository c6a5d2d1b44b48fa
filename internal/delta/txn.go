package delta

import (
	"math"
	"strings"

	"github.com/weirlake/weir/internal/failure"
)

// ReusedPolicy says what happens when a lineage comes with an app id that
// belongs to another one.
type ReusedPolicy int

// The policies.
const (
	// FailOnReused refuses the write and says so.
	FailOnReused ReusedPolicy = iota
	// RebindReused gives the app id to the new lineage, whose versions count from
	// now on; the old lineage is refused from then on.
	RebindReused
)

// bindingPrefix + app id + "/" + lineage is the txn app id that binds an app id
// to a lineage; its version is the ordinal of the binding, the greatest counts.
const bindingPrefix = "weir/lineage/"

// Transaction is one idempotent write of an application.
type Transaction struct {
	AppID   string
	Version int64
	// Lineage and OnReused: see AppendOptions.
	Lineage  string
	OnReused ReusedPolicy
}

// actions judges the transaction against a snapshot: errSkip where the table
// remembers it, an error where its app id belongs to somebody else, else the
// txn actions to commit with the rows.
func (x Transaction) actions(t *Table, s *Snapshot) (out []Action, rebound bool, err error) {
	if x.AppID == "" {
		if x.Lineage != "" {
			return nil, false, failure.New(failure.Config, "an append with a lineage needs a transaction app id")
		}
		return nil, false, nil
	}
	if strings.HasPrefix(x.AppID, "weir/") {
		return nil, false, failure.New(failure.Config, "transaction app id %q: ids that begin with weir/ are the engine's own", x.AppID)
	}
	if x.Version == math.MinInt64 {
		return nil, false, failure.New(failure.Config, "transaction version of %q is not set", x.AppID)
	}
	bind, rebound, err := x.bind(t, s)
	if err != nil {
		return nil, false, err
	}
	if last, ok := s.Txn(x.AppID); ok && !rebound && x.Version <= last.Version {
		return nil, false, errSkip
	}
	now := t.nowMillis()
	out = append(out, Action{Txn: &Txn{AppID: x.AppID, Version: x.Version, LastUpdated: now}})
	if bind != nil {
		bind.LastUpdated = now
		out = append(out, Action{Txn: bind})
	}
	return out, rebound, nil
}

// bind finds out whether the app id is the lineage's own. bind is the action
// that makes it so, nil where it already is.
func (x Transaction) bind(t *Table, s *Snapshot) (bind *Txn, rebound bool, err error) {
	if x.Lineage == "" {
		return nil, false, nil
	}
	owner, ordinal := OwnerOf(s, x.AppID)
	if owner == x.Lineage {
		return nil, false, nil
	}
	mine := &Txn{AppID: bindingPrefix + x.AppID + "/" + x.Lineage, Version: ordinal + 1}
	last, used := s.Txn(x.AppID)
	switch {
	case !used && owner == "":
		return mine, false, nil
	case owner == "" && x.Version > last.Version:
		// Used without a lineage so far, and nothing would be dropped.
		return mine, false, nil
	}
	// A lineage that once owned the app id and lost it is a zombie: it never gets
	// it back by the policy of others.
	if _, had := s.Txn(mine.AppID); had {
		return nil, false, failure.New(failure.Fenced, "Delta table %s: transaction app id %q was taken over by lineage %s; lineage %s may not write with it any more",
			t.Location(), x.AppID, owner, x.Lineage).
			WithHint("stop the old query, or give it an app id of its own")
	}
	if x.OnReused == RebindReused {
		return mine, true, nil
	}
	whose := "lineage " + owner
	if owner == "" {
		whose = "a writer that did not say its lineage"
	}
	return nil, false, failure.New(failure.Checkpoint, "Delta table %s: transaction app id %q belongs to %s, which has reached version %d; lineage %s starts at version %d, and every version up to %d would be dropped in silence",
		t.Location(), x.AppID, whose, last.Version, x.Lineage, x.Version, last.Version).
		WithHint("give the new query an app id of its own, or set onReusedAppID: rebind to hand this one over")
}

// OwnerOf is the lineage that an app id is bound to, "" where it is not, and the
// ordinal of the binding.
func OwnerOf(s *Snapshot, appID string) (lineage string, ordinal int64) {
	prefix := bindingPrefix + appID + "/"
	s.Txns(prefix, func(b Txn) bool {
		l := strings.TrimPrefix(b.AppID, prefix)
		if b.Version > ordinal && !strings.Contains(l, "/") {
			lineage, ordinal = l, b.Version
		}
		return true
	})
	return lineage, ordinal
}

// Bind is the part of a transaction that a sink writes with its own markers: the
// actions that set appID to version for a lineage. Versions at or below the
// remembered one are the sink's business.
func Bind(t *Table, s *Snapshot, appID string, version int64, lineage string, onReused ReusedPolicy) ([]Action, error) {
	x := Transaction{AppID: appID, Version: version, Lineage: lineage, OnReused: onReused}
	bind, rebound, err := x.bind(t, s)
	if err != nil {
		return nil, err
	}
	now := t.nowMillis()
	var out []Action
	if last, ok := s.Txn(appID); !ok || rebound || last.Version < version {
		out = append(out, Action{Txn: &Txn{AppID: appID, Version: version, LastUpdated: now}})
	}
	if bind != nil {
		bind.LastUpdated = now
		out = append(out, Action{Txn: bind})
	}
	return out, nil
}
