package delta_test

import (
	"context"
	"time"

	"github.com/weirlake/weir/internal/clock"
)

// hasty does not wait.
type hasty struct{ clock.System }

func (hasty) Sleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

// later is a year ahead.
type later struct{ hasty }

func (later) Now() time.Time { return clock.System{}.Now().AddDate(1, 0, 0) }
