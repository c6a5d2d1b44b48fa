package operator_test

import (
	"testing"

	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/state/pebblestate"
)

func TestOperatorsBehaveTheSameOnPebble(t *testing.T) {
	operator.RunOnStore(t, func(_ testing.TB, dir string) func(string) operator.KeyStore {
		return pebblestate.New(pebblestate.Options{Dir: dir, Query: "q", CacheBytes: 8 << 20}).Store
	})
}
