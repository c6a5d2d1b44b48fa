package replay

import (
	"strings"

	"github.com/weirlake/weir/internal/failure"
)

// configError makes one error of all that is wrong with a configuration.
func configError(what string, errs []error) error {
	var all []string
	for _, e := range errs {
		all = append(all, e.Error())
	}
	return failure.New(failure.Config, "%s is not configured rightly: %s", what, strings.Join(all, "; "))
}
