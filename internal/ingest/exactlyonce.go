package ingest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/ingest/position"
)

const (
	// txnSlack is how much longer the broker waits than we do, so that we are
	// the first to give up.
	txnSlack = 10 * time.Second
	// ringSlots is how many transactions' event ids are kept: older ones are
	// overwritten in their slot, so that a compacted topic stays small.
	ringSlots = 4096
	// txnBytesShare of what may be in flight is one transaction; the rest is
	// being read and checked meanwhile.
	txnBytesShare = 2
	maxSplits     = 8 // tries of one transaction under ever smaller limits
)

// savedPosition is the record at <transactional id>/position.
type savedPosition struct {
	position.State
	Txn int64 `json:"txn"`
	// FirstTxn is the oldest transaction whose events are still remembered,
	// Remembered the number of events from there to Txn.
	FirstTxn   int64 `json:"first_txn"`
	Remembered int64 `json:"remembered"`
}

// savedEvents is the record at <transactional id>/events/<slot>.
type savedEvents struct {
	Txn    int64           `json:"txn"`
	Recent position.Recent `json:"recent"`
}

// exactlyOnce publishes groups of batches in transactions. Each transaction
// holds the events, the dead letters, the position after them and the ids by
// which a resume recognises what the server sends again.
//
// Ordering invariants: the position is read only after InitProducerID has
// fenced the transactional id (a zombie can then add nothing to it). A
// transaction that fails is never followed by another: the run ends, and the
// next one goes on from the position that was committed, whichever way an
// unconfirmed commit went.
// Rejected: beginning a new transaction after a failed one. The client may heal
// a producer id by taking a new epoch, and a fenced producer would fence back.
type exactlyOnce struct {
	in    *Ingester
	ticks chan struct{}

	open    bool
	batches []*batch
	records int
	bytes   int64
	added   int64 // remembered events that earlier transactions stored

	txn   int64
	spans []span // remembered transactions, oldest first
}

// span is a transaction's stretch of the remembered events, counted from the
// start of the process.
type span struct {
	txn      int64
	from, to int64
}

// restored is what open found for the delivery to go on from.
type restored struct {
	txn   int64
	spans []span
	// stored is how many of the remembered events the topic holds; those of a
	// file come into it with the first transaction.
	stored int64
}

func newExactlyOnce(in *Ingester) *exactlyOnce {
	return &exactlyOnce{in: in, ticks: make(chan struct{}), txn: in.restored.txn, spans: in.restored.spans, added: in.restored.stored}
}

// tick paces the transactions.
func (e *exactlyOnce) tick(ctx context.Context) {
	for e.in.deps.Clock.Sleep(ctx, e.in.cfg.TxnInterval) == nil {
		select {
		case e.ticks <- struct{}{}:
		case <-ctx.Done():
			return
		}
	}
}

func (e *exactlyOnce) run() {
	in := e.in
	for {
		var err error
		select {
		case b, ok := <-in.ordered:
			if !ok {
				if err := e.commit(); err != nil {
					in.fail(err)
				}
				return
			}
			select {
			case <-b.checked:
				err = e.add(b)
			case <-in.runCtx.Done():
			}
		case <-e.ticks:
			err = e.commit()
		case <-in.runCtx.Done():
		}
		if err != nil {
			in.fail(err)
		}
		if in.runCtx.Err() != nil {
			return
		}
	}
}

// add puts a batch into the open transaction.
func (e *exactlyOnce) add(b *batch) error {
	in := e.in
	in.prepare(b)
	in.enqueue(b)
	n := int(b.nEvents + b.nDead)
	if e.open && e.records+n > in.cfg.TxnMaxRecords {
		if err := e.commit(); err != nil {
			return err
		}
	}
	if !e.open {
		if err := in.kafka.BeginTransaction(); err != nil {
			return classify(err, in.cfg, "begin a transaction")
		}
		e.open = true
		fault.Reach(scope, fault.IngestTxnBegin)
	}
	e.batches = append(e.batches, b)
	e.records += n
	e.bytes += b.weight
	e.shrink(b)
	e.produce(b)
	if e.records >= in.cfg.TxnMaxRecords || e.bytes >= in.cfg.MaxInFlightBytes/txnBytesShare {
		return e.commit()
	}
	return nil
}

func (e *exactlyOnce) produce(b *batch) {
	for _, r := range b.records() {
		e.in.kafka.Produce(e.in.runCtx, r, b.promise)
		fault.Reach(scope, fault.IngestProduced)
	}
}

// promise keeps the first error of a batch's records.
func (b *batch) promise(_ *kgo.Record, err error) {
	if err == nil {
		b.in.acks.Add(1)
		return
	}
	b.errMu.Lock()
	defer b.errMu.Unlock()
	// Too large is the one error that we can answer; it must not hide behind
	// what it causes.
	if b.err == nil || errors.Is(err, kerr.MessageTooLarge) {
		b.err = err
	}
}

func (b *batch) takeErr() error {
	b.errMu.Lock()
	defer b.errMu.Unlock()
	err := b.err
	b.err = nil
	return err
}

// commit ends the open transaction.
func (e *exactlyOnce) commit() error {
	if !e.open {
		return nil
	}
	in := e.in
	ctx, cancel := context.WithTimeout(in.runCtx, in.cfg.DeliveryTimeout)
	defer cancel()
	last := e.batches[len(e.batches)-1]
	for try := 0; ; try++ {
		err := e.flush(ctx, last.end)
		if err == nil {
			break
		}
		if !errors.Is(err, kerr.MessageTooLarge) || try >= maxSplits {
			return classify(err, in.cfg, last.describe())
		}
		if err := e.again(ctx); err != nil {
			return classify(err, in.cfg, "produce a transaction again")
		}
	}
	fault.Reach(scope, fault.IngestAcked)
	if err := in.kafka.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return classify(err, in.cfg, "commit transaction "+strconv.FormatInt(e.txn+1, 10))
	}
	fault.Reach(scope, fault.IngestTxnCommit)
	in.c.txns.Add(1)
	in.acks.Add(1)
	e.txn++
	e.spans = append(e.spans, span{e.txn, e.added, last.end.added})
	e.added = last.end.added
	e.open = false
	for _, b := range e.batches {
		in.acknowledged(b)
	}
	clear(e.batches)
	e.batches, e.records, e.bytes = e.batches[:0], 0, 0
	return nil
}

// flush adds the position to the transaction and waits until Kafka has it all.
func (e *exactlyOnce) flush(ctx context.Context, end place) error {
	own, err := e.positionRecords(end)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var first error
	for _, r := range own {
		e.in.kafka.Produce(e.in.runCtx, r, func(_ *kgo.Record, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err != nil && first == nil {
				first = err
			}
		})
	}
	if err := e.in.kafka.Flush(ctx); err != nil {
		return err
	}
	for _, b := range e.batches {
		if err := b.takeErr(); err != nil {
			first = err
			if errors.Is(err, kerr.MessageTooLarge) {
				break
			}
		}
	}
	return first
}

// again aborts the transaction, lowers the limit on a record and produces the
// same batches in a new one.
func (e *exactlyOnce) again(ctx context.Context) error {
	in := e.in
	if err := in.kafka.EndTransaction(ctx, kgo.TryAbort); err != nil {
		return err
	}
	limit := in.eventMax.Load()
	largest := int64(0)
	for _, b := range e.batches {
		for i := range b.events {
			if b.out[i].kind == kindEvent {
				largest = max(largest, int64(recordSize(b.out[i].key, b.events[i].Data)))
			}
		}
	}
	limit = max(min(limit, largest)/2, smallestLimit)
	in.eventMax.Store(limit)
	in.log.Warn("the broker refuses a record as too large; lowering the limit", "bytes", limit)
	if err := in.kafka.BeginTransaction(); err != nil {
		return err
	}
	in.deadMax = limit
	for _, b := range e.batches {
		_ = b.takeErr()
		e.shrink(b)
		e.produce(b)
	}
	return nil
}

// shrink makes dead letters of what a limit that was lowered no longer admits.
func (e *exactlyOnce) shrink(b *batch) {
	in, limit := e.in, e.in.eventMax.Load()
	for i := range b.events {
		o, ev := &b.out[i], &b.events[i]
		if o.kind == kindEvent && int64(recordSize(o.key, ev.Data)) > limit {
			ident := o.ident // it is remembered by this one
			*o = dead(ev, o.key, ReasonTooLarge, "refused by the broker: "+describeBytes(ev.Size, int(limit)))
			o.ident = ident
			b.nEvents--
			b.nDead++
			in.c.violation(string(ReasonTooLarge))
		}
	}
}

// positionRecords are the position after the transaction and the events in it.
func (e *exactlyOnce) positionRecords(end place) ([]*kgo.Record, error) {
	in := e.in
	txn := e.txn + 1
	in.mu.Lock()
	total := in.current.added
	in.trim(in.durable)
	e.forget(txn, total)
	fresh := in.window.Tail(int(end.added-e.added), int(total-end.added))
	recent := in.window.Store(fresh)
	s := savedPosition{State: *in.state(end), Txn: txn, FirstTxn: txn}
	s.Low = in.window.LowParts()
	s.Remembered = end.added - e.added
	if len(e.spans) > 0 {
		s.FirstTxn = e.spans[0].txn
		s.Remembered = end.added - e.spans[0].from
	}
	in.mu.Unlock()

	topic := in.cfg.Topic + PositionSuffix
	var out []*kgo.Record
	if len(fresh) > 0 {
		b, err := json.Marshal(savedEvents{Txn: txn, Recent: recent})
		if err != nil {
			return nil, fmt.Errorf("encode event ids: %w", err)
		}
		out = append(out, &kgo.Record{Topic: topic, Key: eventsKey(in.cfg.TransactionalID, txn), Value: b})
	}
	b, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode the position: %w", err)
	}
	return append(out, &kgo.Record{Topic: topic, Key: positionKey(in.cfg.TransactionalID), Value: b}), nil
}

// forget drops transactions of which nothing is remembered, and the events of
// one whose slot is about to be used again.
func (e *exactlyOnce) forget(next, total int64) {
	for len(e.spans) > 0 {
		oldest := total - int64(e.in.window.Len())
		first := e.spans[0]
		if first.to > oldest {
			if next-first.txn < ringSlots {
				return
			}
			e.in.window.Forget(int(first.to - oldest))
		}
		e.spans = e.spans[1:]
	}
}

func positionKey(id string) []byte { return []byte(id + "/position") }

func eventsKey(id string, txn int64) []byte {
	return []byte(id + "/events/" + strconv.FormatInt(txn%ringSlots, 10))
}

// load begins at the newer of the two positions that may exist, the file's and
// the position topic's: a pipeline may have changed from one delivery to the
// other, and what the other one did must be neither skipped nor done again.
// In exactly-once mode the transactional id is taken first.
func (in *Ingester) load(ctx context.Context, file *position.State) error {
	ctx, cancel := context.WithTimeout(ctx, in.cfg.DeliveryTimeout)
	defer cancel()
	topic := in.cfg.Topic + PositionSuffix
	if in.cfg.Delivery == ExactlyOnce {
		if _, _, err := in.kafka.ProducerID(ctx); err != nil {
			return classify(err, in.cfg, "take transactional id "+in.cfg.TransactionalID)
		}
	}
	found, err := in.readPositions(ctx, topic)
	if err != nil {
		return err
	}
	raw, ok := found[string(positionKey(in.cfg.TransactionalID))]
	if !ok {
		if file == nil {
			return nil
		}
		return in.restore(file)
	}
	st, err := position.Decode(raw, "topic "+topic)
	if err == nil {
		err = st.Belongs(in.cfg.URL, in.cfg.Topic, "topic "+topic)
	}
	if err != nil {
		return err
	}
	var s savedPosition
	if err := json.Unmarshal(raw, &s); err != nil {
		return failure.Wrap(failure.Checkpoint, err, "the position in topic %s", topic).WithHint(beginAnew)
	}
	if file != nil && file.After(&s.State) {
		in.log.Info("the position of the file is newer than the topic's", "file", in.file.Path(), "topic", topic)
		in.restored.txn = s.Txn
		return in.restore(file)
	}
	return in.restoreTxn(topic, s, found)
}

const beginAnew = "set sse.since and another transactionalId to begin anew"

func (in *Ingester) restoreTxn(topic string, s savedPosition, found map[string][]byte) error {
	if err := in.restore(&s.State); err != nil {
		return err
	}
	in.restored = restored{txn: s.Txn}
	for txn := s.FirstTxn; txn <= s.Txn; txn++ {
		var ev savedEvents
		b, ok := found[string(eventsKey(in.cfg.TransactionalID, txn))]
		if !ok {
			continue // it held no events
		}
		if err := json.Unmarshal(b, &ev); err != nil {
			return failure.Wrap(failure.Checkpoint, err, "the event ids of transaction %d in topic %s", txn, topic).WithHint(beginAnew)
		}
		if ev.Txn != txn {
			continue // an older use of the slot: this one held no events
		}
		before := int64(in.window.Len()) + in.window.Overflow
		if err := in.window.Load(ev.Recent); err != nil {
			return failure.Wrap(failure.Checkpoint, err, "the event ids of transaction %d in topic %s", txn, topic).WithHint(beginAnew)
		}
		in.restored.spans = append(in.restored.spans, span{txn, before, int64(in.window.Len()) + in.window.Overflow})
	}
	if have := int64(in.window.Len()) + in.window.Overflow; have < s.Remembered {
		return failure.New(failure.Checkpoint, "topic %s holds the ids of %d events; the position counts on %d", topic, have, s.Remembered).
			WithHint("were records of the topic deleted? Its cleanup.policy must be compact. %s", beginAnew)
	}
	in.window.SetLow(s.Low)
	in.current.added = int64(in.window.Len()) + in.window.Overflow
	in.durable.added = in.current.added
	in.restored.stored = in.current.added
	return nil
}

// readPositions reads the position topic to its end, committed records only:
// the newest value of each key. The end is the high watermark as of now; the
// fence before it has ended every transaction of this id.
func (in *Ingester) readPositions(ctx context.Context, topic string) (map[string][]byte, error) {
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(in.cfg.Brokers...),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		// Markers are records too: without them the end could not be seen.
		kgo.KeepControlRecords(),
	}, in.deps.Kafka...)...)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "the Kafka client of ingest %s", in.cfg.Name)
	}
	defer cl.Close()
	there, err := kadm.NewClient(cl).ListTopics(ctx, topic)
	if err != nil {
		return nil, unreachable(err, in.cfg, "look for topic "+topic)
	}
	if errors.Is(there[topic].Err, kerr.UnknownTopicOrPartition) {
		return nil, nil
	}
	ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, unreachable(err, in.cfg, "find the end of topic "+topic)
	}
	starts, err := kadm.NewClient(cl).ListStartOffsets(ctx, topic)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return nil, unreachable(err, in.cfg, "find the start of topic "+topic)
	}
	end, _ := ends.Lookup(topic, 0)
	start, _ := starts.Lookup(topic, 0)
	out := map[string][]byte{}
	for next := start.Offset; next < end.Offset; {
		fs := cl.PollFetches(ctx)
		if err := fs.Err(); err != nil {
			return nil, unreachable(err, in.cfg, "read topic "+topic)
		}
		fs.EachRecord(func(r *kgo.Record) {
			next = r.Offset + 1
			if !r.Attrs.IsControl() {
				out[string(r.Key)] = r.Value
			}
		})
	}
	return out, nil
}
