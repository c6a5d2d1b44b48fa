package ingest

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/kafkatest"
)

// TestARealKafkaHoldsEveryEventAfterKillsOfTheProducerAndOfTheBroker is the
// oracle next to the embedded broker.
func TestARealKafkaHoldsEveryEventAfterKillsOfTheProducerAndOfTheBroker(t *testing.T) {
	broker := kafkatest.Start(t)
	brokers := []string{broker.Bootstrap()}
	t.Run("producer", func(t *testing.T) {
		for _, d := range []Delivery{AtLeastOnce, ExactlyOnce} {
			for i, point := range pointsOf(d) {
				fs, _, _ := frames(uint64(30+i), 120, 8000)
				s := &stream{frames: fs}
				cfg := testConfig(t, serve(t, s), brokers, d)
				cfg.Topic = fmt.Sprintf("kill.%s.%d", d, i)
				kills := 0
				for _, n := range countsOf(point) {
					s.mu.Lock()
					s.cuts = []int{13, 31, 47, 60, 80, 101}
					s.mu.Unlock()
					if process(t, cfg, fmt.Sprintf("ingest/%s:%d", point, n)) {
						kills++
					}
				}
				finish(t, cfg, s, 20, 40)
				extra := checkDeliveryOf(t, cfg.Topic, fs, brokers, d == ExactlyOnce)
				t.Logf("%s/%s: %d kills, %d events sent again", d, point, kills, extra)
				if kills == 0 {
					t.Errorf("%s/%s: never reached", d, point)
				}
			}
		}
	})
	for _, d := range []Delivery{AtLeastOnce, ExactlyOnce} {
		t.Run("broker/"+string(d), func(t *testing.T) {
			fs, _, _ := frames(40, 2000, 8000)
			s := &stream{frames: fs}
			for c := 100; c < 2000; c += 100 {
				s.cuts = append(s.cuts, c)
			}
			cfg := testConfig(t, serve(t, s), brokers, d)
			cfg.Topic = "broker." + string(d)
			cfg.DeliveryTimeout = time.Minute
			var hit atomic.Bool
			deps := Deps{StopWhen: func(st Stats) bool {
				if st.Received > 500 && !hit.Swap(true) {
					broker.Kill9()
					broker.Restart()
				}
				return false
			}}
			for try := 0; ; try++ {
				st, err := Run(context.Background(), cfg, deps)
				t.Logf("try %d: %v %s", try, err, mustJSON(t, st))
				if err == nil {
					break
				}
				// An exactly-once run may stop; it must then go on by a restart.
				if c := failure.ClassOf(err); try > 3 || (c != failure.Runtime && c != failure.Unreachable && c != failure.Fenced) {
					t.Fatal(err)
				}
				s.mu.Lock()
				s.cuts = nil
				s.mu.Unlock()
			}
			if !hit.Load() {
				t.Error("the broker was never killed")
			}
			extra := checkDeliveryOf(t, cfg.Topic, fs, brokers, d == ExactlyOnce)
			t.Logf("%d events sent again", extra)
		})
	}
	t.Run("a large record", func(t *testing.T) {
		big := strings.Replace(event(2), `"awiki"`, `"`+strings.Repeat("w", 3<<20)+`"`, 1)
		huge := strings.Replace(event(3), `"awiki"`, `"`+strings.Repeat("w", 20<<20)+`"`, 1)
		cfg := testConfig(t, serve(t, body("id: 1\ndata: "+big+"\n\nid: 2\ndata: "+huge+"\n\nid: 3\ndata: "+event(4)+"\n\n")), brokers, ExactlyOnce)
		cfg.Topic = "large"
		st, err := Run(context.Background(), cfg, Deps{})
		if err != nil || st.Published != 2 || st.Violations[string(ReasonTooLarge)] != 1 {
			t.Fatalf("%v %s", err, mustJSON(t, st))
		}
	})
}
