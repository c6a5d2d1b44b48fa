package app

import (
	"github.com/weirlake/weir/internal/maintain"
	"github.com/weirlake/weir/internal/status"
)

// careOf is how this process looks after a table, nil where it does not.
func (w *watch) careOf(name string) *status.Care {
	if c := w.a.opsCare[name]; c != nil {
		out := careStatus(c.Health())
		next := w.a.opsCareFrom.Add(opsCareEvery)
		if out.At != nil {
			next = out.At.Add(opsCareEvery)
		}
		out.NextAt = &next
		return out
	}
	for _, n := range w.a.nodes {
		for _, o := range n.query.Outputs {
			s, ok := o.Sink.(interface{ Health() maintain.Health })
			if !ok || o.Sink.Name() != name {
				continue
			}
			out := careStatus(s.Health())
			if id, known := w.board.LastBatch(n.query.Name); known {
				next := n.query.BatchesToCare(id)
				out.NextInBatches = &next
			}
			return out
		}
	}
	return nil
}

func careStatus(h maintain.Health) *status.Care {
	out := &status.Care{
		Steps: int64(h.Steps), Failures: int64(h.Failures), Error: h.Error, Skipped: h.Compacted.Skipped,
		SmallFiles: int64(h.SmallFiles), SmallFilesMax: int64(h.SmallFilesMax), Manifests: int64(h.Manifests), ManifestBytes: h.ManifestBytes,
		WaitingFiles: int64(h.WaitingFiles), CompactedFiles: int64(h.Compacted.FilesRemoved), ExpiredSnapshots: int64(h.Expired),
		MergedManifests: int64(h.Merged), RemovedFiles: int64(h.Removed),
	}
	if !h.At.IsZero() {
		at := h.At
		out.At = &at
	}
	return out
}
