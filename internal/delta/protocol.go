package delta

import (
	"strconv"
	"strings"
	"time"

	"github.com/weirlake/weir/internal/failure"
)

// The protocol that new tables get.
const (
	readerVersion = 1
	writerVersion = 2
)

// Table properties that this package reads.
const (
	PropAppendOnly           = "delta.appendOnly"
	PropCheckpointInterval   = "delta.checkpointInterval"
	PropLogRetention         = "delta.logRetentionDuration"
	PropFileRetention        = "delta.deletedFileRetentionDuration"
	PropLogCleanup           = "delta.enableExpiredLogCleanup"
	PropTxnRetention         = "delta.setTransactionRetentionDuration"
	propColumnMapping        = "delta.columnMapping.mode"
	propChangeDataFeed       = "delta.enableChangeDataFeed"
	propConstraintPrefix     = "delta.constraints."
	fieldInvariants          = "delta.invariants"
	fieldGeneration          = "delta.generationExpression"
	fieldIdentityStart       = "delta.identity.start"
	defaultCheckpointEvery   = 10
	defaultLogRetention      = 30 * 24 * time.Hour
	defaultFileRetention     = 7 * 24 * time.Hour
	transactionRetentionMin  = 30 * 24 * time.Hour
	readerVersionKnown       = 3
	writerVersionKnown       = 7
	readerVersionWithFeature = 3
	writerVersionWithFeature = 7
)

// harmless are features that ask nothing of this package, or nothing as long as
// the table does not use them, which checkUse looks at.
var harmless = map[string]bool{
	"appendOnly": true, "invariants": true, "checkConstraints": true, "changeDataFeed": true,
	"generatedColumns": true, "identityColumns": true, "columnMapping": true, "vacuumProtocolCheck": true,
}

func refused(location, feature string) error {
	return failure.New(failure.SchemaConflict, "Delta table %s uses %s, which weir does not know", location, feature).
		WithHint("weir reads and writes protocol (1, 2); drop the feature from the table, or write to another one")
}

// checkProtocol refuses tables whose features are not known, by name.
func checkProtocol(location string, p *Protocol, m *Metadata) error {
	switch {
	case p.MinReaderVersion > readerVersionKnown:
		return refused(location, "reader version "+strconv.Itoa(p.MinReaderVersion))
	case p.MinWriterVersion > writerVersionKnown:
		return refused(location, "writer version "+strconv.Itoa(p.MinWriterVersion))
	}
	var features []string
	if p.MinReaderVersion >= readerVersionWithFeature {
		features = append(features, p.ReaderFeatures...)
	}
	if p.MinWriterVersion >= writerVersionWithFeature {
		features = append(features, p.WriterFeatures...)
	}
	for _, f := range features {
		if !harmless[f] {
			return refused(location, "the feature "+f)
		}
	}
	return checkUse(location, m)
}

// checkUse refuses settings whose duties a writer of protocol (1, 2) would
// break.
func checkUse(location string, m *Metadata) error {
	if mode := m.Configuration[propColumnMapping]; mode != "" && mode != "none" {
		return refused(location, "the feature columnMapping (mode "+mode+")")
	}
	if m.Configuration[propChangeDataFeed] == "true" {
		return refused(location, "the feature changeDataFeed")
	}
	for k := range m.Configuration {
		if strings.HasPrefix(k, propConstraintPrefix) {
			return refused(location, "the feature checkConstraints ("+strings.TrimPrefix(k, propConstraintPrefix)+")")
		}
	}
	for key, feature := range map[string]string{fieldInvariants: "invariants", fieldGeneration: "generatedColumns", fieldIdentityStart: "identityColumns"} {
		if strings.Contains(m.SchemaString, `"`+key+`"`) {
			return refused(location, "the feature "+feature)
		}
	}
	if m.Format.Provider != "parquet" {
		return refused(location, "the file format "+m.Format.Provider)
	}
	return nil
}

// checkSettings refuses table properties under which the table would forget
// what it remembers of its writers. Readers do not care.
func checkSettings(location string, m *Metadata) error {
	d, err := m.duration(PropTxnRetention, 0)
	if err != nil {
		return failure.Wrap(failure.Config, err, "Delta table %s", location)
	}
	if _, set := m.Configuration[PropTxnRetention]; set && d < transactionRetentionMin {
		return failure.New(failure.Config, "Delta table %s: %s is %s: a query that stands still for longer would be forgotten and start over",
			location, PropTxnRetention, m.Configuration[PropTxnRetention]).
			WithHint("unset the property, or set it to \"interval 30 days\" or more")
	}
	for key, min := range map[string]time.Duration{PropLogRetention: 0, PropFileRetention: 0} {
		if _, err := m.duration(key, min); err != nil {
			return failure.Wrap(failure.Config, err, "Delta table %s", location)
		}
	}
	return nil
}

// duration reads a property such as "interval 30 days".
func (m *Metadata) duration(key string, def time.Duration) (time.Duration, error) {
	v, ok := m.Configuration[key]
	if !ok {
		return def, nil
	}
	words := strings.Fields(strings.ToLower(v))
	if len(words) > 0 && words[0] == "interval" {
		words = words[1:]
	}
	if len(words) == 0 || len(words)%2 != 0 {
		return 0, failure.New(failure.Config, "property %s: %q is not an interval", key, v)
	}
	var d time.Duration
	for i := 0; i < len(words); i += 2 {
		n, err := strconv.ParseInt(words[i], 10, 64)
		unit, known := intervalUnits[strings.TrimSuffix(words[i+1], "s")]
		if err != nil || !known || n < 0 || n > int64(1<<62)/int64(unit) {
			return 0, failure.New(failure.Config, "property %s: %q is not an interval", key, v)
		}
		d += time.Duration(n) * unit
	}
	return d, nil
}

var intervalUnits = map[string]time.Duration{
	"microsecond": time.Microsecond, "millisecond": time.Millisecond, "second": time.Second, "minute": time.Minute,
	"hour": time.Hour, "day": 24 * time.Hour, "week": 7 * 24 * time.Hour,
}

// interval reads a duration whose faults checkSettings has reported.
func (m *Metadata) interval(key string, def time.Duration) time.Duration {
	d, err := m.duration(key, def)
	if err != nil {
		return def
	}
	return d
}

func (m *Metadata) checkpointInterval() int64 {
	n, err := strconv.ParseInt(m.Configuration[PropCheckpointInterval], 10, 64)
	if err != nil || n < 1 {
		return defaultCheckpointEvery
	}
	return n
}
