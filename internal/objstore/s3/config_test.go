package s3

import "testing"

func TestAnEndpointWithoutSubdomainsIsReachedByPath(t *testing.T) {
	for endpoint, want := range map[string]bool{
		"http://127.0.0.1:9000": true, "http://localhost:9000": true, "http://[::1]:9000": true,
		"https://s3.example.com": false, "": false,
	} {
		if got := hasNoSubdomains(endpoint, nil); got != want {
			t.Errorf("%q: %v", endpoint, got)
		}
		if got := hasNoSubdomains("", &endpoint); got != want {
			t.Errorf("%q from the environment: %v", endpoint, got)
		}
	}
}
