package cloud

import (
	"strings"

	"github.com/weirlake/weir/internal/failure"
)

// Kind is a kind of store.
type Kind string

// The kinds.
const (
	GCS   Kind = "gcs"
	Azure Kind = "azure"
)

// schemes are those that are read, with the kind; the first of a kind is what
// Weir writes.
var schemes = []struct {
	prefix string
	kind   Kind
}{
	{"gs://", GCS}, {"gcs://", GCS},
	{"abfss://", Azure}, {"abfs://", Azure}, {"wasbs://", Azure}, {"wasb://", Azure},
}

// Location is a bucket and a key or prefix in it, without slashes at its ends.
type Location struct {
	Kind Kind
	// Bucket is a bucket of GCS, or container@account.dfs.core.windows.net.
	Bucket string
	Key    string
}

// String is the location as a URI.
func (l Location) String() string {
	prefix := "gs://"
	if l.Kind == Azure {
		prefix = "abfss://"
	}
	if l.Key == "" {
		return prefix + l.Bucket
	}
	return prefix + l.Bucket + "/" + l.Key
}

// container splits an Azure bucket.
func (l Location) container() (container, host string) {
	container, host, _ = strings.Cut(l.Bucket, "@")
	return container, host
}

// Account is the storage account of a location on Azure, empty on GCS.
func (l Location) Account() string {
	_, host := l.container()
	account, _, _ := strings.Cut(host, ".")
	return account
}

// IsLocation reports whether the text is a location of this package.
func IsLocation(text string) bool {
	for _, s := range schemes {
		if strings.HasPrefix(text, s.prefix) {
			return true
		}
	}
	return false
}

// ParseLocation splits gs://bucket/key and
// abfss://container@account.dfs.core.windows.net/key. The key is taken as it
// stands: nothing is decoded, because writers put percent signs into names.
func ParseLocation(text string) (Location, error) {
	for _, s := range schemes {
		rest, ok := strings.CutPrefix(text, s.prefix)
		if !ok {
			continue
		}
		bucket, key, _ := strings.Cut(rest, "/")
		l := Location{Kind: s.kind, Bucket: bucket, Key: strings.Trim(key, "/")}
		if l.Kind == GCS && (bucket == "" || strings.ContainsAny(bucket, "@:?#")) {
			return Location{}, failure.New(failure.Config, "location %q: no usable bucket name", text).WithHint("write it as gs://bucket/prefix")
		}
		if container, host := l.container(); l.Kind == Azure && (container == "" || !strings.Contains(host, ".") || strings.ContainsAny(bucket, ":?#")) {
			return Location{}, failure.New(failure.Config, "location %q: container or account is missing", text).
				WithHint("write it as abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/prefix")
		}
		if l.Kind == Azure { // the Blob API is what is spoken; Hadoop's names of it name the same objects
			l.Bucket = strings.Replace(l.Bucket, ".blob.", ".dfs.", 1)
		}
		return l, nil
	}
	return Location{}, failure.New(failure.Config, "location %q is neither on Google Cloud Storage nor on Azure", text).
		WithHint("write it as gs://bucket/prefix or abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/prefix")
}
