package sink

import (
	"fmt"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
)

// CheckCommit refuses what a correct engine never asks a table sink for: a
// commit without this sink's own permit, or with a marker that does not follow
// prev. issuer is the sink itself, claimed whether it has been claimed, table
// and query its names.
func CheckCommit(issuer any, claimed bool, table, query string, p Permit, prev, m *marker.Marker) error {
	switch {
	case !p.IssuedBy(issuer) || !claimed:
		return fmt.Errorf("table %s: commit without a permit of this sink", table)
	case m.Epoch != p.Epoch():
		return fmt.Errorf("table %s: the marker has epoch %s, the permit %s", table, m.Epoch, p.Epoch())
	case m.QueryName != query || prev == nil || prev.QueryID != m.QueryID:
		return fmt.Errorf("table %s: the markers are of different queries", table)
	case m.BatchID != prev.BatchID+1:
		return failure.New(failure.Checkpoint, "table %s: batch %d cannot follow batch %d", table, m.BatchID, prev.BatchID)
	case m.Claim || m.Attempt == "" || m.PlanHash == "":
		return fmt.Errorf("table %s: the marker of batch %d is not that of a planned batch", table, m.BatchID)
	}
	return nil
}
