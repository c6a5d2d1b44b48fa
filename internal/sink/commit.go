package sink

import (
	"fmt"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
)

// CheckCommit refuses what a correct engine never asks a sink for: a commit
// without this sink's own permit, or with a marker that does not follow prev.
// issuer is the sink itself, claimed whether it has been claimed, who its name
// in messages ("table silver.edits"), query the query that it belongs to.
func CheckCommit(issuer any, claimed bool, who, query string, p Permit, prev, m *marker.Marker) error {
	switch {
	case !p.IssuedBy(issuer) || !claimed:
		return fmt.Errorf("%s: commit without a permit of this sink", who)
	case m.Epoch != p.Epoch():
		return fmt.Errorf("%s: the marker has epoch %s, the permit %s", who, m.Epoch, p.Epoch())
	case m.QueryName != query || prev == nil || prev.QueryID != m.QueryID:
		return fmt.Errorf("%s: the markers are of different queries", who)
	case m.BatchID != prev.BatchID+1:
		return failure.New(failure.Checkpoint, "%s: batch %d cannot follow batch %d", who, m.BatchID, prev.BatchID)
	case m.Claim || m.Attempt == "" || m.PlanHash == "":
		return fmt.Errorf("%s: the marker of batch %d is not that of a planned batch", who, m.BatchID)
	}
	return nil
}
