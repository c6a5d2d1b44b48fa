package pipeline

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Store is how buckets of S3, or of a compatible store, are reached.
type Store struct {
	// Bucket limits the entry to one bucket; empty is every bucket that no other
	// entry names.
	Bucket string `yaml:"bucket" weir:"bucket"`
	// Endpoint is the URL of a compatible store; empty is AWS.
	Endpoint  string `yaml:"endpoint" weir:"url"`
	Region    string `yaml:"region"`
	PathStyle bool   `yaml:"pathStyle"`
	CAFile    string `yaml:"caFile" weir:"path"`
	// AccessKeyID and SecretAccessKey are empty where the SDK's default chain
	// gives the credentials.
	AccessKeyID     Secret      `yaml:"accessKeyId"`
	SecretAccessKey Secret      `yaml:"secretAccessKey"`
	SessionToken    Secret      `yaml:"sessionToken"`
	AssumeRole      *AssumeRole `yaml:"assumeRole"`
	// SSE is the server-side encryption to ask for; empty leaves it to the
	// bucket. KMSKeyID goes with aws:kms.
	SSE      string `yaml:"sse" weir:"enum=AES256|aws:kms"`
	KMSKeyID string `yaml:"kmsKeyId"`
}

// AssumeRole asks STS for the credentials of a role.
type AssumeRole struct {
	RoleARN     string `yaml:"roleArn" weir:"required"`
	ExternalID  Secret `yaml:"externalId"`
	SessionName string `yaml:"sessionName"`
}

// sseKMS is the value of Store.SSE that takes a key.
const sseKMS = "aws:kms"

// s3Schemes begin a location on S3; Hadoop's spellings are made s3.
var s3Schemes = regexp.MustCompile(`^s3[an]?://`)

// otherStores are refused by their names.
var otherStores = map[string]string{
	"gs": "Google Cloud Storage", "gcs": "Google Cloud Storage", "abfs": "Azure Blob Storage", "abfss": "Azure Blob Storage",
	"wasb": "Azure Blob Storage", "wasbs": "Azure Blob Storage", "hdfs": "HDFS",
}

var (
	bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	// s3Prefix has no character that another Iceberg engine would escape.
	s3Prefix = regexp.MustCompile(`^[A-Za-z0-9._~+@$&,:=/-]*$`)
)

// OnS3 reports whether a location of a loaded pipeline is on S3.
func OnS3(location string) bool { return strings.HasPrefix(location, "s3://") }

// JoinLocation appends path elements to a location, on S3 or local.
func JoinLocation(location string, elem ...string) string {
	if !OnS3(location) {
		return filepath.Join(append([]string{location}, elem...)...)
	}
	return strings.TrimSuffix(location, "/") + "/" + path.Join(elem...)
}

// location resolves a local path, or checks s3://bucket/prefix.
func (l *loader) location(text string) (string, error) {
	rest := s3Schemes.ReplaceAllString(text, "")
	if rest == text {
		if m := scheme.FindString(text); m != "" && m != "file:" {
			if name, ok := otherStores[strings.TrimSuffix(m, ":")]; ok {
				return "", fmt.Errorf("is on %s, which this build does not support: want a local folder or s3://bucket/prefix", name)
			}
			return "", errors.New("is neither a local folder nor s3://bucket/prefix")
		}
		return l.path(text)
	}
	bucket, prefix, _ := strings.Cut(rest, "/")
	if !bucketName.MatchString(bucket) {
		return "", errors.New("has no usable bucket name: want s3://bucket/prefix; endpoint and keys go into stores")
	}
	prefix = strings.Trim(prefix, "/")
	if !s3Prefix.MatchString(prefix) || (prefix != "" && path.Clean(prefix) != prefix) {
		return "", errors.New("has a prefix that other Iceberg engines would not read as it is written: want letters, digits and -_.~+@$&,:=, without empty or dotted parts")
	}
	return strings.TrimSuffix("s3://"+bucket+"/"+prefix, "/"), nil
}

// checkStores checks how buckets are reached, and what cannot lie on S3.
func (l *loader) checkStores(p *Pipeline) {
	seen := map[string]bool{}
	for i, s := range p.Stores {
		key := fmt.Sprintf("stores[%d]", i)
		if seen[s.Bucket] && !l.isBroken(key+".bucket") {
			if s.Bucket == "" {
				l.faultKey(key, "a second entry of stores without bucket; one is for every bucket that is not named")
			} else {
				l.faultKey(key+".bucket", "bucket %q is named twice", s.Bucket)
			}
		}
		seen[s.Bucket] = true
		l.checkStore(s, key)
	}
	if OnS3(p.CheckpointLocation) {
		for i, in := range p.Ingest {
			if in.Position == "" && !l.isBroken(fmt.Sprintf("ingest[%d]", i)) {
				l.faultKey(fmt.Sprintf("ingest[%d].name", i), "ingest %s needs a position: the checkpoints are on S3, and a stream's position is a local file", in.Name)
			}
		}
	}
}

func (l *loader) checkStore(s Store, key string) {
	if s.AccessKeyID.IsZero() != s.SecretAccessKey.IsZero() && !l.isBroken(key+".accessKeyId") && !l.isBroken(key+".secretAccessKey") {
		l.faultKey(key, "accessKeyId and secretAccessKey go together")
	}
	if !s.SessionToken.IsZero() && s.AccessKeyID.IsZero() && !l.isBroken(key+".accessKeyId") {
		l.faultKey(key+".sessionToken", "sessionToken goes with accessKeyId and secretAccessKey")
	}
	if s.KMSKeyID != "" && s.SSE != sseKMS {
		l.faultKey(key+".kmsKeyId", "kmsKeyId goes with sse: %s", sseKMS)
	}
	l.mustExist(key+".caFile", s.CAFile)
	if u, err := url.Parse(s.Endpoint); err == nil && u.Scheme == "http" && !slices.Contains([]string{"127.0.0.1", "localhost", "::1"}, u.Hostname()) {
		l.warn(key+".endpoint", "endpoint is http: requests are signed, and the data goes in clear")
	}
}
