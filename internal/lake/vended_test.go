package lake

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/failure"
)

// vending is a catalog that hands out keys with a life.
type vending struct {
	clock *jumping
	life  time.Duration // 0: it does not say
	asked int
	err   error
}

func (v *vending) props(n int) map[string]string {
	out := map[string]string{"s3.access-key-id": fmt.Sprintf("key-%d", n), "s3.secret-access-key": "secret", "s3.session-token": "session"}
	if v.life != 0 {
		out[propS3TokenEnd] = strconv.FormatInt(v.clock.now.Add(v.life).UnixMilli(), 10)
	}
	return out
}

func (v *vending) ask(context.Context) (map[string]string, error) {
	v.asked++
	if v.err != nil {
		return nil, v.err
	}
	return v.props(v.asked), nil
}

func newVending(life time.Duration) (*vending, *vendedTable) {
	v := &vending{clock: &jumping{now: time.UnixMilli(1_790_000_000_000)}, life: life}
	t := (&vendedTables{}).of("a.b", v.ask)
	t.clock = v.clock
	t.offer(v.props(0))
	return v, t
}

func TestVendedKeysAreUsedUntilTheyEndAndThenAskedFor(t *testing.T) {
	for _, tc := range []struct {
		name  string
		life  time.Duration
		keeps time.Duration // how long the SDK may keep what it is given
	}{
		{"an hour", time.Hour, time.Hour - renewEarly},
		{"a minute", time.Minute, 30 * time.Second},
		{"nobody knows", 0, renewUnknown},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v, table := newVending(tc.life)
			for n := range 3 {
				got, err := table.Retrieve(t.Context())
				if err != nil || got.AccessKeyID != fmt.Sprintf("key-%d", n) || !got.CanExpire || got.Expires.Sub(v.clock.now) != tc.keeps || v.asked != n {
					t.Fatalf("after %d: %s for %s, asked %d times, %v", n, got.AccessKeyID, got.Expires.Sub(v.clock.now), v.asked, err)
				}
				v.clock.now = got.Expires
			}
		})
	}
}

func TestVendedKeysOfALaterLoadAreTakenWithoutAsking(t *testing.T) {
	v, table := newVending(time.Hour)
	_, _ = table.Retrieve(t.Context())
	table.offer(v.props(7))
	if got, err := table.Retrieve(t.Context()); err != nil || got.AccessKeyID != "key-7" || v.asked != 0 {
		t.Errorf("%s, asked %d times, %v", got.AccessKeyID, v.asked, err)
	}
	// They ended before anybody wanted them.
	table.offer(v.props(8))
	v.clock.now = v.clock.now.Add(2 * time.Hour)
	if got, err := table.Retrieve(t.Context()); err != nil || got.AccessKeyID != "key-1" {
		t.Errorf("%s, %v", got.AccessKeyID, err)
	}
}

func TestVendedKeysThatTheCatalogExtendsLiveLonger(t *testing.T) {
	v, table := newVending(time.Hour)
	first, _ := table.Retrieve(t.Context())
	v.clock.now = first.Expires
	v.asked = -1 // it gives the same pair again
	got, err := table.Retrieve(t.Context())
	if err != nil || got.AccessKeyID != "key-0" || got.Expires.Sub(v.clock.now) != time.Hour-renewEarly {
		t.Errorf("%s for %s, %v", got.AccessKeyID, got.Expires.Sub(v.clock.now), err)
	}
}

func TestVendedKeysOfAnotherClockAreNotAskedForAllTheTime(t *testing.T) {
	v, table := newVending(-time.Minute)
	got, err := table.Retrieve(t.Context())
	if err != nil || v.asked != 1 || got.Expires.Sub(v.clock.now) != renewUnknown {
		t.Errorf("asked %d times, kept for %s, %v", v.asked, got.Expires.Sub(v.clock.now), err)
	}
}

func TestACatalogThatIsAwayEndsVendedKeysOnlyWithTheirLife(t *testing.T) {
	v, table := newVending(time.Hour)
	first, _ := table.Retrieve(t.Context())
	v.err = failure.New(failure.Unreachable, "away")
	v.clock.now = first.Expires
	if got, err := table.Retrieve(t.Context()); err != nil || got.AccessKeyID != "key-0" || !got.Expires.After(v.clock.now) {
		t.Errorf("keys that live are not used: %v until %s", err, got.Expires)
	}
	v.clock.now = v.clock.now.Add(renewEarly)
	var again interface{ RetryableError() bool }
	if _, err := table.Retrieve(t.Context()); !failure.Is(err, failure.Unreachable) || !errors.As(err, &again) || !again.RetryableError() {
		t.Errorf("the keys have ended: %v", err)
	}
	v.err = failure.New(failure.Config, "no permission")
	if _, err := table.Retrieve(t.Context()); !errors.As(err, &again) || again.RetryableError() || !strings.Contains(err.Error(), "a.b") {
		t.Errorf("no try changes this: %v", err)
	}
}

func TestTablesWithVendedKeysAreBounded(t *testing.T) {
	var all vendedTables
	for n := range 3 * vendedTablesMax {
		name := strconv.Itoa(n)
		if all.of(name, nil) != all.of(name, nil) || len(all.byName) > vendedTablesMax {
			t.Fatalf("%d tables", len(all.byName))
		}
	}
}
