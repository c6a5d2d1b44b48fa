package examples_test

import (
	"testing"

	"github.com/weirlake/weir/internal/pipeline"
)

func TestEveryExampleIsValid(t *testing.T) {
	for _, file := range []string{"cloud.yaml", "minimal.yaml", "outside.yaml"} {
		_, faults := pipeline.Load(file, func(string) (string, bool) { return "", false })
		for _, f := range faults {
			t.Errorf("%s", f)
		}
	}
}
