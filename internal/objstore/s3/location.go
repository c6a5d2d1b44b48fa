package s3

import (
	"fmt"
	"strings"

	"github.com/weirlake/weir/internal/failure"
)

// Scheme begins the locations that Weir writes.
const Scheme = "s3://"

// schemes are those that are read: Hadoop's spellings name the same objects.
var schemes = []string{Scheme, "s3a://", "s3n://"}

// unsupported are stores that a user may well expect, and that are refused by
// name.
var unsupported = map[string]string{
	"hdfs": "HDFS", "oss": "Alibaba OSS under its own scheme",
}

// Location is a bucket and a key or prefix in it, without slashes at its ends.
type Location struct{ Bucket, Key string }

// String is the location as a URI.
func (l Location) String() string {
	if l.Key == "" {
		return Scheme + l.Bucket
	}
	return Scheme + l.Bucket + "/" + l.Key
}

// IsLocation reports whether the text is a location on S3.
func IsLocation(text string) bool {
	for _, s := range schemes {
		if strings.HasPrefix(text, s) {
			return true
		}
	}
	return false
}

// ParseLocation splits s3://bucket/key. The key is taken as it stands: nothing
// is decoded, because writers put percent signs into names.
func ParseLocation(text string) (Location, error) {
	for _, s := range schemes {
		rest, ok := strings.CutPrefix(text, s)
		if !ok {
			continue
		}
		bucket, key, _ := strings.Cut(rest, "/")
		if bucket == "" || strings.ContainsAny(bucket, "@:?#") {
			return Location{}, failure.New(failure.Config, "location %q: no usable bucket name", text).
				WithHint("write it as s3://bucket/prefix; credentials and endpoints go into the pipeline's stores")
		}
		return Location{Bucket: bucket, Key: strings.Trim(key, "/")}, nil
	}
	return Location{}, Unsupported(text)
}

// Unsupported is the error for a location in a store that is not known.
func Unsupported(location string) error {
	scheme, _, _ := strings.Cut(location, ":")
	if name, ok := unsupported[scheme]; ok {
		return failure.New(failure.Config, "location %q: %s is not supported by this build", location, name).
			WithHint("use a local folder, or s3://bucket/prefix (S3 or compatible), gs://bucket/prefix, abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/prefix")
	}
	return failure.New(failure.Config, "location %q: the scheme %s is not supported by this build", location, fmt.Sprintf("%q", scheme)).
		WithHint("use a local folder, or s3://bucket/prefix (S3 or compatible), gs://bucket/prefix, abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/prefix")
}
