package ingest

import (
	"context"
	"testing"
)

// checkDelivery compares the topics with the stream: every good event in the
// topic, every violation in the dead-letter topic; exactly once where asked.
func checkDelivery(t *testing.T, fs []frame, brokers []string, exact bool) (extra int) {
	t.Helper()
	return checkDeliveryOf(t, "wiki.recentchange", fs, brokers, exact)
}

func checkDeliveryOf(t *testing.T, topic string, fs []frame, brokers []string, exact bool) (extra int) {
	t.Helper()
	wantGood, wantBad := map[string]int{}, map[string]int{}
	for _, f := range fs {
		switch {
		case isCanary(f.data):
		case isGood(f.data):
			wantGood[f.data]++
		default:
			wantBad[f.data]++
		}
	}
	for topic, want := range map[string]map[string]int{topic: wantGood, topic + ".dlq": wantBad} {
		got := tally(consume(t, brokers, topic))
		for v, n := range want {
			if got[v] < n {
				t.Errorf("%s: %d of %d: missing %.120s", topic, got[v], n, v)
			}
			extra += max(got[v]-n, 0)
			if exact && got[v] > n {
				t.Errorf("%s: %d instead of %d: doubled %.120s", topic, got[v], n, v)
			}
		}
		for v := range got {
			if want[v] == 0 {
				t.Errorf("%s: unexpected %.120s", topic, v)
			}
		}
	}
	return extra
}

func TestACutAfterEveryEventLosesNothingAndDoublesNothing(t *testing.T) {
	for _, d := range []Delivery{AtLeastOnce, ExactlyOnce} {
		t.Run(string(d), func(t *testing.T) {
			fs, _, _ := frames(3, 60, 7000)
			s := &stream{frames: fs}
			for i := range fs {
				s.cuts = append(s.cuts, i+1)
			}
			brokers := fakeKafka(t)
			st, err := Run(context.Background(), testConfig(t, serve(t, s), brokers, d), Deps{})
			if err != nil {
				t.Fatal(err)
			}
			// One process remembers what it sent, in either mode.
			checkDelivery(t, fs, brokers, true)
			if st.Reconnects() < int64(len(fs))-1 {
				t.Errorf("%d reconnects for %d cuts", st.Reconnects(), len(fs))
			}
			if st.InFlight != 0 || st.Dropped == 0 {
				t.Errorf("stats do not add up: %s", mustJSON(t, st))
			}
		})
	}
}

func TestARestartAfterEveryEventLosesNothingAndInExactlyOnceModeDoublesNothing(t *testing.T) {
	for _, d := range []Delivery{AtLeastOnce, ExactlyOnce} {
		t.Run(string(d), func(t *testing.T) {
			fs, _, _ := frames(4, 40, 9000)
			s := &stream{frames: fs}
			brokers := fakeKafka(t)
			cfg := testConfig(t, serve(t, s), brokers, d)
			for i := range fs {
				s.mu.Lock()
				s.cuts = []int{i + 1, -1}
				s.mu.Unlock()
				if _, err := Run(context.Background(), cfg, Deps{}); err != nil {
					t.Fatal(err)
				}
			}
			s.mu.Lock()
			s.cuts = nil
			s.mu.Unlock()
			if _, err := Run(context.Background(), cfg, Deps{}); err != nil {
				t.Fatal(err)
			}
			// A graceful stop keeps the ids as well, so nothing doubles in either mode.
			checkDelivery(t, fs, brokers, true)
		})
	}
}

func isCanary(data string) bool { return contains(data, `"domain":"canary"`) }
func isGood(data string) bool   { return contains(data, `"$schema"`) }
