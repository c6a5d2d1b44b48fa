package lake

import (
	"bytes"
	"encoding/json"
	"slices"
	"sync"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"
)

// metadataTexts write the metadata of tables as JSON. A snapshot never changes and
// a commit adds one, so the texts of the others are kept from the commit before:
// with 200 snapshots, writing them anew was most of a commit's processor time.
type metadataTexts struct {
	mu      sync.Mutex
	byTable map[uuid.UUID]map[int64]snapshotText
}

type snapshotText struct {
	of   table.Snapshot
	text []byte
}

// metadataHead is a table's metadata of format version 2 but for its snapshots, as
// the Iceberg specification names it (Table Metadata Fields).
type metadataHead struct {
	FormatVersion      int                             `json:"format-version"`
	UUID               uuid.UUID                       `json:"table-uuid"`
	Location           string                          `json:"location"`
	LastSequenceNumber int64                           `json:"last-sequence-number"`
	LastUpdatedMS      int64                           `json:"last-updated-ms"`
	LastColumnID       int                             `json:"last-column-id"`
	Schemas            []*iceberg.Schema               `json:"schemas"`
	CurrentSchemaID    int                             `json:"current-schema-id"`
	Specs              []iceberg.PartitionSpec         `json:"partition-specs"`
	DefaultSpecID      int                             `json:"default-spec-id"`
	LastPartitionID    *int                            `json:"last-partition-id,omitempty"`
	Properties         iceberg.Properties              `json:"properties,omitempty"`
	CurrentSnapshotID  *int64                          `json:"current-snapshot-id,omitempty"`
	SnapshotLog        []table.SnapshotLogEntry        `json:"snapshot-log,omitempty"`
	MetadataLog        []table.MetadataLogEntry        `json:"metadata-log,omitempty"`
	SortOrders         []table.SortOrder               `json:"sort-orders"`
	DefaultSortOrderID int                             `json:"default-sort-order-id"`
	Refs               map[string]table.SnapshotRef    `json:"refs,omitempty"`
	Statistics         []table.StatisticsFile          `json:"statistics,omitempty"`
	PartitionStats     []table.PartitionStatisticsFile `json:"partition-statistics,omitempty"`
	EncryptionKeys     []table.EncryptionKey           `json:"encryption-keys,omitempty"`
}

// of gives the metadata as JSON.
func (m *metadataTexts) of(meta table.Metadata) ([]byte, error) {
	if meta.Version() != 2 {
		// What other versions hold is the library's to know.
		if own, ok := meta.(json.Marshaler); ok {
			return own.MarshalJSON()
		}
		return json.Marshal(meta)
	}
	h := metadataHead{
		FormatVersion: meta.Version(), UUID: meta.TableUUID(), Location: meta.Location(), LastSequenceNumber: meta.LastSequenceNumber(),
		LastUpdatedMS: meta.LastUpdatedMillis(), LastColumnID: meta.LastColumnID(), Schemas: meta.Schemas(), CurrentSchemaID: meta.CurrentSchema().ID,
		Specs: meta.PartitionSpecs(), DefaultSpecID: meta.DefaultPartitionSpec(), LastPartitionID: meta.LastPartitionSpecID(),
		Properties: meta.Properties(), SnapshotLog: slices.Collect(meta.SnapshotLogs()), MetadataLog: slices.Collect(meta.PreviousFiles()),
		SortOrders: meta.SortOrders(), DefaultSortOrderID: meta.DefaultSortOrder(), Refs: map[string]table.SnapshotRef{},
		Statistics: slices.Collect(meta.Statistics()), PartitionStats: slices.Collect(meta.PartitionStatistics()),
		EncryptionKeys: slices.Collect(meta.EncryptionKeys()),
	}
	if s := meta.CurrentSnapshot(); s != nil {
		h.CurrentSnapshotID = &s.SnapshotID
	}
	for name, ref := range meta.Refs() {
		h.Refs[name] = ref
	}
	head, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	snapshots, err := m.snapshots(meta)
	if err != nil || len(snapshots) == 0 {
		return head, err
	}
	size := len(head) + 32
	for _, s := range snapshots {
		size += len(s) + 1
	}
	out := append(make([]byte, 0, size), head[:len(head)-1]...)
	out = append(out, `,"snapshots":[`...)
	out = append(out, bytes.Join(snapshots, []byte{','})...)
	return append(out, "]}"...), nil
}

// snapshots are the texts of a table's snapshots, in their order.
func (m *metadataTexts) snapshots(meta table.Metadata) ([][]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := meta.TableUUID()
	before := m.byTable[id]
	all := meta.Snapshots()
	now, out := make(map[int64]snapshotText, len(all)), make([][]byte, 0, len(all))
	for _, s := range all {
		// A commit that is tried again may use the same id for another snapshot.
		kept, ok := before[s.SnapshotID]
		if !ok || !kept.of.Equals(s) {
			text, err := s.MarshalJSON()
			if err != nil {
				return nil, err
			}
			kept = snapshotText{s, text}
		}
		now[s.SnapshotID] = kept
		out = append(out, kept.text)
	}
	if m.byTable == nil || before == nil && len(m.byTable) >= maxParsed {
		m.byTable = map[uuid.UUID]map[int64]snapshotText{}
	}
	m.byTable[id] = now
	return out, nil
}
