package external

import (
	"fmt"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
)

// Judge compares the marker that the store holds, cur, with what the batch of m
// may follow. found: the batch is in the store already. who names the sink in
// messages.
//
// It must be asked within the step that makes the batch visible, under whatever
// keeps others from moving the marker meanwhile.
func Judge(who string, cur, prev, m *marker.Marker, p sink.Permit) (found bool, err error) {
	epoch := p.Epoch()
	switch {
	case cur == nil:
		return false, rewound(who, m, "it holds no marker of the query any more")
	case cur.QueryID != m.QueryID:
		return false, fenced(who, cur, m, "another lineage (query id "+cur.QueryID+")")
	case cur.Epoch.Newer(epoch) || (cur.Epoch.Number == epoch.Number && cur.Epoch != epoch):
		return false, fenced(who, cur, m, "a newer start")
	case cur.BatchID == m.BatchID && cur.PlanHash == m.PlanHash:
		return true, nil
	case cur.BatchID >= m.BatchID:
		// The end of this batch is not after what is stored: its rows are there, or
		// rows of another plan are in their place. It is never applied.
		return false, fenced(who, cur, m, fmt.Sprintf("another run that committed batch %d", cur.BatchID))
	case cur.BatchID != prev.BatchID:
		return false, rewound(who, m, fmt.Sprintf("its marker is of batch %d, batch %d was committed", cur.BatchID, prev.BatchID))
	case !prev.Position.SameOffsets(cur.Position):
		return false, rewound(who, m, fmt.Sprintf("its marker stands at %s, batch %d begins at %s", cur.Position, m.BatchID, prev.Position))
	}
	return false, nil
}

func fenced(who string, cur, m *marker.Marker, why string) error {
	return failure.New(failure.Fenced, "%s: batch %d of query %s is fenced by %s (epoch %s, instance %s)",
		who, m.BatchID, m.QueryName, why, cur.Epoch, cur.Instance).
		WithHint("another instance runs the query; stop one of them")
}

func rewound(who string, m *marker.Marker, why string) error {
	return failure.New(failure.Checkpoint, "%s went backwards under query %s: %s", who, m.QueryName, why).
		WithHint("weir checkpoint show tells how far the query was; restore the store, or start over with: weir checkpoint reset")
}

// ClaimFollows refuses a claim that does not follow the marker in the store: an
// epoch that is not newer, a lineage that does not name the one before it, or
// batch ids that start again, under which new rows would pass for old ones.
func ClaimFollows(who string, cur, m *marker.Marker) error {
	if cur == nil {
		return nil
	}
	switch {
	case !m.Epoch.Newer(cur.Epoch):
		return failure.New(failure.Fenced, "%s: epoch %s of query %s does not come after %s", who, m.Epoch, m.QueryName, cur.Epoch)
	case m.QueryID != cur.QueryID && m.Predecessor != cur.QueryID:
		return failure.New(failure.Checkpoint, "%s holds query %s under the query id %s; %s does not say that it replaces it", who, m.QueryName, cur.QueryID, m.QueryID).
			WithHint("the checkpoint was made anew without the store's marker being read: start with onLostCheckpoint: adopt, or start over with: weir checkpoint reset")
	case m.BatchID < cur.BatchID:
		return failure.New(failure.Checkpoint, "%s holds batch %d of query %s; batch ids never start again, and this claim stands at %d", who, cur.BatchID, m.QueryName, m.BatchID).
			WithHint("start with onLostCheckpoint: adopt, or start over with: weir checkpoint reset")
	}
	return nil
}
