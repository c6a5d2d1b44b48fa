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

// Store is how buckets are reached.
type Store struct {
	// Type is the kind of store: S3 and what is compatible, Google Cloud Storage,
	// or Azure Blob Storage.
	Type string `yaml:"type" weir:"enum=s3|gcs|azure"`
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

	// CredentialsFile is for gcs; Account, AccountKey and SASToken are for azure.
	CredentialsFile string `yaml:"credentialsFile" weir:"path"`
	Account         string `yaml:"account"`
	AccountKey      Secret `yaml:"accountKey"`
	SASToken        Secret `yaml:"sasToken"`
	// Anonymous sends no credentials to a gcs or azure store.
	Anonymous bool `yaml:"anonymous"`
}

// The values of Store.Type.
const (
	StoreS3    = "s3"
	StoreGCS   = "gcs"
	StoreAzure = "azure"
)

func (s *Store) setDefaults() { s.Type = StoreS3 }

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

var (
	bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	// s3Prefix has no character that another Iceberg engine would escape.
	s3Prefix = regexp.MustCompile(`^[A-Za-z0-9._~+@$&,:=/-]*$`)
)

// Remote reports whether a location of a loaded pipeline is in an object store.
func Remote(location string) bool {
	return strings.Contains(location, "://") && !strings.HasPrefix(location, "file:")
}

// OnS3 reports whether a location of a loaded pipeline is on S3.
func OnS3(location string) bool { return strings.HasPrefix(location, "s3://") }

// JoinLocation appends path elements to a location, local or not.
func JoinLocation(location string, elem ...string) string {
	if !Remote(location) {
		return filepath.Join(append([]string{location}, elem...)...)
	}
	return strings.TrimSuffix(location, "/") + "/" + path.Join(elem...)
}

// location resolves a local path, or checks s3://bucket/prefix and the like.
func (l *loader) location(text string) (string, error) {
	kind, rest := storeOf(text)
	if kind == "" {
		if m := scheme.FindString(text); m != "" && m != "file:" {
			return "", errors.New("is neither a local folder nor s3://bucket/prefix, gs://bucket/prefix or abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/prefix")
		}
		return l.path(text)
	}
	bucket, prefix, _ := strings.Cut(rest, "/")
	if err := checkBucket(kind, bucket); err != nil {
		return "", err
	}
	prefix = strings.Trim(prefix, "/")
	if !s3Prefix.MatchString(prefix) || (prefix != "" && path.Clean(prefix) != prefix) {
		return "", errors.New("has a prefix that other Iceberg engines would not read as it is written: want letters, digits and -_.~+@$&,:=, without empty or dotted parts")
	}
	return strings.TrimSuffix(storePrefixes[kind]+bucket+"/"+prefix, "/"), nil
}

// storePrefixes begin a location as Weir writes it.
var storePrefixes = map[string]string{StoreS3: "s3://", StoreGCS: "gs://", StoreAzure: "abfss://"}

// cloudSchemes begin a location on another cloud; Hadoop's spellings are made one.
var cloudSchemes = map[string]*regexp.Regexp{StoreGCS: regexp.MustCompile(`^gc?s://`), StoreAzure: regexp.MustCompile(`^(abfss?|wasbs?)://`)}

// storeOf gives the kind of store of a location, and what follows its scheme.
func storeOf(text string) (kind, rest string) {
	if rest := s3Schemes.ReplaceAllString(text, ""); rest != text {
		return StoreS3, rest
	}
	for kind, scheme := range cloudSchemes {
		if rest := scheme.ReplaceAllString(text, ""); rest != text {
			return kind, rest
		}
	}
	return "", text
}

var azureContainer = regexp.MustCompile(`^[a-z0-9$][a-z0-9-]{2,62}@[a-z0-9]{3,24}\.(dfs|blob)\.[a-z0-9.-]+$`)

func checkBucket(kind, bucket string) error {
	switch {
	case kind == StoreAzure && !azureContainer.MatchString(bucket):
		return errors.New("has no usable container and account: want abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/prefix; keys go into stores")
	case kind == StoreGCS && !bucketName.MatchString(strings.ReplaceAll(bucket, "_", "-")):
		return errors.New("has no usable bucket name: want gs://bucket/prefix; credentials go into stores")
	case kind == StoreS3 && !bucketName.MatchString(bucket):
		return errors.New("has no usable bucket name: want s3://bucket/prefix; endpoint and keys go into stores")
	}
	return nil
}

// checkStores checks how buckets are reached, and what cannot lie on S3.
func (l *loader) checkStores(p *Pipeline) {
	seen := map[string]bool{}
	for i, s := range p.Stores {
		key := fmt.Sprintf("stores[%d]", i)
		id := s.Type + "/" + s.Bucket + s.Account
		if seen[id] && !l.isBroken(key+".bucket") {
			switch {
			case s.Account != "":
				l.faultKey(key+".account", "account %q is named twice", s.Account)
			case s.Bucket == "":
				l.faultKey(key, "a second entry of stores without bucket; one is for every bucket that is not named")
			default:
				l.faultKey(key+".bucket", "bucket %q is named twice", s.Bucket)
			}
		}
		seen[id] = true
		l.checkStore(s, key)
	}
	if Remote(p.CheckpointLocation) {
		for i, in := range p.Ingest {
			if in.Position == "" && !l.isBroken(fmt.Sprintf("ingest[%d]", i)) {
				l.faultKey(fmt.Sprintf("ingest[%d].name", i), "ingest %s needs a position: the checkpoints are in an object store, and a stream's position is a local file", in.Name)
			}
		}
	}
}

// storeKeys are the keys of an entry of stores that not every type has.
var storeKeys = map[string][]string{
	StoreS3:    {"bucket", "region", "pathStyle", "accessKeyId", "secretAccessKey", "sessionToken", "assumeRole", "sse", "kmsKeyId"},
	StoreGCS:   {"bucket", "credentialsFile", "anonymous"},
	StoreAzure: {"account", "accountKey", "sasToken", "anonymous"},
}

func (l *loader) checkStore(s Store, key string) {
	if own, ok := storeKeys[s.Type]; ok {
		for _, other := range []string{StoreS3, StoreGCS, StoreAzure} {
			for _, k := range storeKeys[other] {
				if _, given := l.places[key+"."+k]; given && !slices.Contains(own, k) && !l.isBroken(key+"."+k) {
					l.faultKey(key+"."+k, "%s is not for a store of type %s", k, s.Type)
				}
			}
		}
	}
	if s.Type == StoreAzure {
		l.checkAzure(s, key)
	}
	l.mustExist(key+".credentialsFile", s.CredentialsFile)
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

func (l *loader) checkAzure(s Store, key string) {
	if !s.AccountKey.IsZero() && !s.SASToken.IsZero() && !l.isBroken(key+".accountKey") && !l.isBroken(key+".sasToken") {
		l.faultKey(key, "an azure store has accountKey or sasToken, not both")
	}
	if s.Account == "" && (!s.AccountKey.IsZero() || !s.SASToken.IsZero() || s.Endpoint != "") && !l.isBroken(key+".account") {
		l.faultKey(key, "accountKey, sasToken and endpoint go with account: they are those of one account")
	}
}
