package marker

import (
	"encoding/json"
	"fmt"
	"time"
)

// RebuiltKey is the table property that says that a table's rows were exchanged
// for those of a rebuild. It is set in the commit that exchanges them.
const RebuiltKey = "weir.rebuilt"

// Rebuilt is a rebuild that a table holds the rows of.
type Rebuilt struct {
	ID string    `json:"id"`
	At time.Time `json:"at"`
	// Since are, by query, the first batch that counts: the rows of those before
	// it are gone. Replays into the table are queries of their own.
	Since map[string]int64 `json:"since"`
}

// RebuiltOf is the newest rebuild of a table, nil where its rows were never
// exchanged.
func RebuiltOf(props map[string]string) (*Rebuilt, error) {
	raw, ok := props[RebuiltKey]
	if !ok {
		return nil, nil //nolint:nilnil // never
	}
	out := &Rebuilt{}
	if err := json.Unmarshal([]byte(raw), out); err != nil {
		return nil, fmt.Errorf("table property %s: %w", RebuiltKey, err)
	}
	return out, nil
}
