package broker

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"
)

// authErrors are the broker's answers that only another configuration changes.
var authErrors = []error{
	kerr.SaslAuthenticationFailed,
	kerr.UnsupportedSaslMechanism,
	kerr.IllegalSaslState,
	kerr.TopicAuthorizationFailed,
	kerr.GroupAuthorizationFailed,
	kerr.ClusterAuthorizationFailed,
	kerr.TransactionalIDAuthorizationFailed,
}

func isAuthError(err error) bool {
	for _, e := range authErrors {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
