package objstore

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
)

// ProbePrefix begins the keys that a probe leaves if it is killed half-way.
const ProbePrefix = "probe-"

// probeWriters race for one key in a probe.
const probeWriters = 4

// ProbeCreateOnce tries what the protocol stands on: of several writers of one
// key exactly one creates it, and everybody else is told what is there. A store
// that ignores the condition (some gateways accept and drop If-None-Match)
// would let two runs plan the same batch, so it is refused.
func ProbeCreateOnce(ctx context.Context, s Store) error {
	key := ProbePrefix + clock.Nonce()
	defer func() { _ = s.Delete(context.WithoutCancel(ctx), key) }()

	type answer struct {
		created  bool
		existing []byte
		err      error
	}
	answers := make([]answer, probeWriters)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			a := &answers[i]
			a.created, a.existing, a.err = s.CreateOnce(ctx, key, probeData(i))
		})
	}
	wg.Wait()
	winner := -1
	for i, a := range answers {
		if a.err != nil {
			return fmt.Errorf("probe create-once in %s: %w", s.Location(), a.err)
		}
		if !a.created {
			continue
		}
		if winner >= 0 {
			return refuse(s, "two writers of one key were both told that they created it")
		}
		winner = i
	}
	if winner < 0 {
		return refuse(s, "no writer of a new key was told that it created it")
	}
	for _, a := range answers {
		if !a.created && !bytes.Equal(a.existing, probeData(winner)) {
			return refuse(s, "a writer was not given the contents that are there")
		}
	}
	// Once more, one after the other, and the contents must still stand.
	created, existing, err := s.CreateOnce(ctx, key, []byte("late"))
	if err != nil {
		return fmt.Errorf("probe create-once in %s: %w", s.Location(), err)
	}
	got, err := s.Get(ctx, key)
	if err != nil {
		return fmt.Errorf("probe create-once in %s: %w", s.Location(), err)
	}
	if created || !bytes.Equal(existing, probeData(winner)) || !bytes.Equal(got, probeData(winner)) {
		return refuse(s, "an object was overwritten")
	}
	return nil
}

func probeData(i int) []byte { return fmt.Appendf(nil, "writer %d", i) }

func refuse(s Store, what string) error {
	return failure.New(failure.Config, "the store %s ignores the create-once condition: %s", s.Location(), what).
		WithHint("checkpoints need conditional writes (link(2) on a file system, If-None-Match: * on an object store); use another store or gateway for the checkpoint location")
}
