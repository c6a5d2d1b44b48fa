package status

import (
	"context"
	"maps"
	"slices"
	"time"
)

// What a reader wants to be looked up.
type depth int

const (
	nothing depth = iota // what is at hand
	lags                 // how far the queries are behind
	all                  // tables and samples too
)

// lagOld is the age from which a lag that cannot be looked up again is unknown.
const lagOld = 10 * time.Second

// ingestSamplesKept bounds the samples that rates are computed from.
const (
	ingestSamplesKept = 8
	rateWindow        = rateBuckets * bucketWidth
)

// sampleIngests records the ingestions' counters, at most once a step; b.mu is
// held.
func (b *Board) sampleIngests(now time.Time) {
	for _, in := range b.ingests {
		if n := len(in.samples); n > 0 && now.Sub(in.samples[n-1].at) < bucketWidth {
			continue
		}
		s := in.info.Stats()
		in.samples = append(in.samples, ingestSample{at: now, received: s.Received, published: s.Published})
		if n := len(in.samples); n > ingestSamplesKept {
			in.samples = slices.Delete(in.samples, 0, n-ingestSamplesKept)
		}
	}
}

// rates are means over the samples of the last seconds.
func (in *ingest) rates(now time.Time, s IngestStats) IngestRates {
	for _, old := range in.samples {
		if took := now.Sub(old.at); took <= rateWindow+bucketWidth && took >= bucketWidth/2 {
			return IngestRates{
				Received:  float64(s.Received-old.received) / took.Seconds(),
				Published: float64(s.Published-old.published) / took.Seconds(),
			}
		}
	}
	return IngestRates{}
}

// model is the state of everything, looked up as deep as wanted.
func (b *Board) model(ctx context.Context, d depth) Model {
	broker, tables, samples, proof := b.broker.peek(), b.tables.peek(), b.samples.peek(), b.proof.peek()
	if d >= lags {
		broker = b.broker.get(ctx)
	}
	if d >= all {
		tables, samples, proof = b.tables.get(ctx), b.samples.get(ctx), b.proof.get(ctx)
	}
	now := b.o.Clock.Now()
	m := Model{
		Pipeline: b.o.Pipeline, Version: b.o.Version, Now: now, StartedAt: b.began, UptimeSeconds: now.Sub(b.began).Seconds(),
		Ingests: []Ingest{}, Queries: []Query{}, Alerts: []Alert{},
		Topics: list(broker.value.Topics), Tables: list(tables.value), DeadLetters: list(samples.value),
		SetAside: []SetAside{}, Proof: proof.value,
	}
	for _, e := range []error{broker.err, tables.err, samples.err, proof.err} {
		if e != nil {
			m.Errors = append(m.Errors, e.Error())
		}
	}
	b.mu.Lock()
	b.sampleIngests(now)
	for _, in := range b.ingests {
		m.Ingests = append(m.Ingests, in.model(now))
	}
	for _, q := range b.queries {
		m.Queries = append(m.Queries, q.model(now, broker))
		m.SetAside = append(append(m.SetAside, q.setAside[LateRow]...), q.setAside[DuplicateRow]...)
	}
	m.Alerts = append(m.Alerts, b.alerts...)
	m.AlertsTotal = b.alertsTotal
	b.mu.Unlock()
	if b.o.Jobs != nil {
		m.Jobs = b.o.Jobs()
	}
	if b.o.Lineage != nil {
		m.Lineage = b.o.Lineage()
	}
	slices.Reverse(m.Alerts)
	slices.SortStableFunc(m.SetAside, func(x, y SetAside) int { return y.At.Compare(x.At) })
	var failing time.Duration
	if !broker.failing.IsZero() {
		failing = now.Sub(broker.failing)
	}
	m.Health = judge(m.Queries, m.Ingests, failing, broker.err)
	m.Warnings = warn(m.Tables, m.Jobs, m.Proof)
	return m
}

// list is a copy that is never null in JSON.
func list[T any](in []T) []T { return append([]T{}, in...) }

func (in *ingest) model(now time.Time) Ingest {
	s := in.info.Stats()
	out := Ingest{
		Name: in.info.Name, Source: in.info.Source, Topic: in.info.Topic, DeadLetterTopic: in.info.DeadLetterTopic,
		Delivery: in.info.Delivery, State: in.state, Stats: s, Rates: in.rates(now, s), Violations: maps.Clone(s.Violations),
	}
	out.Error, _ = errorText(in.err)
	return out
}

func (q *query) model(now time.Time, broker answer[Broker]) Query {
	i := q.info
	out := Query{
		Name: i.Name, Level: i.Level, Source: i.Source, SourceKind: i.SourceKind, Table: i.Table, DeadLetterTable: i.DeadLetterTable,
		TriggerSeconds: i.Trigger.Seconds(), Watermarked: i.Watermarked, State: q.state, BatchID: -1, Totals: q.totals, Alerts: q.alerts,
	}
	out.Error, out.ErrorClass = errorText(q.err)
	if r := q.restored; r != nil {
		out.QueryID, out.Epoch, out.BatchID, out.Watermark = r.QueryID, r.Epoch, r.BatchID, r.Watermark
		if !r.CommittedAt.IsZero() {
			out.CommittedAt = &r.CommittedAt
		}
	}
	if n := len(q.batches); n > 0 {
		last := q.batches[n-1]
		last.Position = nil
		out.Last = &last
		out.QueryID, out.Epoch, out.BatchID, out.Watermark = last.QueryID, last.Epoch, last.BatchID, last.Watermark
		out.CommittedAt, out.Freshness = &last.CommittedAt, q.fresh
		out.StateKeys, out.StateBytes = last.StateKeys, last.StateBytes
		out.LagOffsets = &last.LagOffsets
	}
	// What was looked up after the last batch knows better than that batch.
	if lag, ok := broker.value.Lag[i.Name]; ok && (out.Last == nil || !broker.got.Before(out.Last.CommittedAt)) {
		out.LagOffsets = &lag
	}
	// A broker that does not answer makes both of them old.
	if !broker.failing.IsZero() && now.Sub(broker.got) > lagOld && now.Sub(q.moved) > lagOld {
		out.LagOffsets = nil
	}
	if q.state == Running && out.LagOffsets != nil && *out.LagOffsets > 0 && !q.moved.IsZero() {
		out.StalledSeconds = max(now.Sub(q.moved).Seconds(), 0)
	}
	out.Series = q.history.series(now)
	out.Rates = out.Series.rates()
	if out.Last != nil && len(out.Series.Input) <= 1 {
		// A run that is younger than a step.
		if took := now.Sub(q.batches[0].StartedAt).Seconds(); took > 0 {
			out.Rates = Rates{Input: float64(q.totals.InputRows) / took, Output: float64(q.totals.OutputRows) / took}
		}
	}
	return out
}
