package lake

import (
	"context"
	"errors"
	"io/fs"
	"testing"
	"time"

	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/failure"
)

// answers is a catalog that gives one error after the other, the last for ever.
type answers struct {
	errs  []error
	asked int
}

func (a *answers) location(context.Context, table.Identifier) (string, error) {
	err := a.errs[min(a.asked, len(a.errs)-1)]
	a.asked++
	return "", err
}

func (a *answers) swap(context.Context, table.Identifier, string, string) error { return nil }

// jumping is a clock on which a pause is over at once.
type jumping struct{ now time.Time }

func (j *jumping) Now() time.Time { return j.now }

func (j *jumping) Sleep(ctx context.Context, d time.Duration) error {
	j.now = j.now.Add(d)
	return ctx.Err()
}

func TestAReaderWaitsForACatalogThatIsAway(t *testing.T) {
	reset := errors.New("connection reset by peer")
	for _, c := range []struct {
		name string
		errs []error
		last error
		// asked is how often the catalog is asked, 0 for more than twenty times.
		asked int
		class failure.Class
	}{
		{"it comes back and has no such table", []error{reset, reset, reset, ErrNoTable}, ErrNoTable, 4, 0},
		{"it comes back and refuses", []error{reset, failure.New(failure.Config, "password rejected")}, nil, 2, failure.Config},
		{"the metadata file is gone", []error{fs.ErrNotExist}, fs.ErrNotExist, 1, 0},
		{"it says that it is away", []error{failure.New(failure.Unreachable, "starting up"), ErrNoTable}, ErrNoTable, 2, 0},
		{"it never comes back", []error{reset}, reset, 0, failure.Unreachable},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := &answers{errs: c.errs}
			clk := &jumping{}
			_, err := (&Catalog{pointer: a}).LoadTablePatiently(t.Context(), table.Identifier{"db", "t"}, clk)
			if c.last != nil && !errors.Is(err, c.last) {
				t.Errorf("got %v, want %v", err, c.last)
			}
			if c.class != 0 && !failure.Is(err, c.class) {
				t.Errorf("class of %v is not %v", err, c.class)
			}
			if a.asked != c.asked && (c.asked != 0 || a.asked < 20) {
				t.Errorf("asked %d times", a.asked)
			}
		})
	}
}

func TestAReaderThatIsStoppedDoesNotWaitOn(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a := &answers{errs: []error{errors.New("away")}}
	if _, err := (&Catalog{pointer: a}).LoadTablePatiently(ctx, table.Identifier{"db", "t"}, &jumping{}); err == nil || a.asked > 1 {
		t.Errorf("asked %d times: %v", a.asked, err)
	}
}
