package operator

import (
	"maps"
	"slices"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/marker"
)

// partitionTimes are the greatest event times by partition of one run of rows.
type partitionTimes struct {
	max map[batch.TopicPartition]int64
	// last is the entry that was raised last: neighbours share a partition.
	last    batch.TopicPartition
	lastMax int64
	open    bool
}

func (p *partitionTimes) reset() {
	clear(p.max)
	p.open = false
}

func (p *partitionTimes) see(topic string, partition int32, at int64) {
	if !p.open || p.last.Partition != partition || p.last.Topic != topic {
		p.settle()
		p.last, p.lastMax, p.open = batch.TopicPartition{Topic: topic, Partition: partition}, at, true
		return
	}
	p.lastMax = max(p.lastMax, at)
}

// settle puts the open entry into the map; the topic is copied, since its text
// belongs to a record.
func (p *partitionTimes) settle() {
	if !p.open {
		return
	}
	p.open = false
	if p.max == nil {
		p.max = map[batch.TopicPartition]int64{}
	}
	if before, ok := p.max[p.last]; ok {
		p.max[p.last] = max(before, p.lastMax)
		return
	}
	p.last.Topic = string([]byte(p.last.Topic))
	p.max[p.last] = p.lastMax
}

// merge takes another run's times in.
func (p *partitionTimes) merge(o *partitionTimes) {
	o.settle()
	if p.max == nil {
		p.max = map[batch.TopicPartition]int64{}
	}
	for tp, at := range o.max {
		if before, ok := p.max[tp]; !ok || at > before {
			p.max[tp] = at
		}
	}
}

// byPartition is the watermark after a batch where each partition has its own:
// the least of those that are not idle, less the delay. It never moves back.
//
// A partition is idle when it has delivered no event for the time-out, by the
// plans' batch times, so that a batch that is run again decides the same. One
// that has not delivered anything yet counts from the first batch that knew it.
// Where all are idle the watermark stays: nothing says how late it is.
func byPartition(w marker.Watermark, seen map[batch.TopicPartition]int64, assigned []string, batchTime, delay, idleAfter int64) marker.Watermark {
	greatest, since := maps.Clone(w.MaxEventMicros), maps.Clone(w.SeenMicros)
	if greatest == nil {
		greatest = map[string]int64{}
	}
	if since == nil {
		since = map[string]int64{}
	}
	delete(greatest, "") // of a time without per-partition watermarks
	for _, name := range assigned {
		if _, ok := since[name]; !ok {
			since[name] = batchTime
		}
	}
	for tp, at := range seen {
		name := tp.String()
		if before, ok := greatest[name]; !ok || at > before {
			greatest[name] = at
		}
		since[name] = batchTime
	}
	w.MaxEventMicros, w.SeenMicros, w.Idle = greatest, since, nil
	least, any, silent := int64(0), false, false
	for _, name := range slices.Sorted(maps.Keys(since)) {
		if idleAfter > 0 && batchTime-since[name] >= idleAfter {
			w.Idle = append(w.Idle, name)
			continue
		}
		at, ok := greatest[name]
		switch {
		case !ok:
			silent = true // it may begin anywhere
		case !any || at < least:
			least, any = at, true
		}
	}
	if any && !silent {
		w.Micros = max(w.Micros, least-delay)
	}
	return w
}
