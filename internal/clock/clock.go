// Package clock is the only place that reads the wall clock or the global
// random source. Everything else receives a Clock, so that a test can hold
// time still and a simulation can replay it.
package clock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"time"
)

// Clock tells the time and waits.
type Clock interface {
	// Now is the current time in UTC, microsecond resolution.
	Now() time.Time
	// Sleep waits for d or until ctx is done, and returns ctx's error then.
	Sleep(ctx context.Context, d time.Duration) error
}

// System is the machine's own clock.
type System struct{}

// Now implements Clock.
func (System) Now() time.Time { return time.Now().Add(shift()).UTC().Truncate(time.Microsecond) }

// Sleep implements Clock.
func (System) Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// Nonce returns 16 random hexadecimal characters. It names epochs, attempts
// and temporary files; it is never used as a secret.
func Nonce() string {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic(err) // the kernel's random source does not fail on a running system
	}
	return hex.EncodeToString(b[:])
}
