package lake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/apache/iceberg-go"
	icebergglue "github.com/apache/iceberg-go/catalog/glue"
	"github.com/apache/iceberg-go/table"
	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/glue"
	"github.com/aws/aws-sdk-go-v2/service/glue/types"
	"github.com/aws/smithy-go"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore/s3"
)

const (
	// glueCallTimeout bounds one look-up or one swap with its repetitions.
	glueCallTimeout = 60 * time.Second
	// glueSwapAttempts bounds how often a swap is sent that Glue certainly did
	// not make: throttled, or in conflict with a change that left the metadata's
	// location alone (statistics, permissions).
	glueSwapAttempts = 6
	glueSwapPause    = 200 * time.Millisecond
)

// The parameters by which Glue's tables are Iceberg's, in every engine.
const (
	glueTableType        = "table_type"
	glueIceberg          = "iceberg"
	glueMetadataLocation = "metadata_location"
	gluePreviousLocation = "previous_metadata_location"
)

// Glue is how a Glue Data Catalog is reached.
type Glue struct {
	// CatalogID is the account's catalog; empty is the caller's own.
	CatalogID string
	// AWS has region, endpoint, credentials, role and authorities; what it says
	// of buckets is not used.
	AWS s3.Config
	// Archive keeps every version of a table's entry in Glue. Each commit makes
	// one, and an account may keep a million.
	Archive bool
}

// gluePointer holds the table locations in a Glue Data Catalog. Making, listing
// and dropping is the library's; the swap is our own, because the library reads
// the table a second time for it, and lets the SDK repeat an update whose answer
// was lost: the repetition then meets the version that the first one made, and
// is told of a conflict that was its own commit.
type gluePointer struct {
	api       *glue.Client
	catalogID *string
	archive   bool
	clock     clock.Clock
}

func openGlue(ctx context.Context, cfg Config, props iceberg.Properties) (*Catalog, error) {
	conf, err := s3.AWS(ctx, cfg.Glue.AWS)
	if err != nil {
		return nil, err
	}
	if conf.Region == "" {
		return nil, failure.New(failure.Config, "no AWS region for the Glue catalog").WithHint("set catalog.glue.region, or AWS_REGION")
	}
	own := icebergglue.AwsProperties(maps.Clone(props))
	p := &gluePointer{api: glue.NewFromConfig(conf), archive: cfg.Glue.Archive, clock: clock.System{}}
	if cfg.Glue.CatalogID != "" {
		p.catalogID = &cfg.Glue.CatalogID
		own[icebergglue.CatalogIdKey] = cfg.Glue.CatalogID
	}
	inner, err := icebergglue.NewCatalog(icebergglue.WithAwsConfig(conf), icebergglue.WithAwsProperties(own))
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "open the Glue catalog")
	}
	where := "the Glue catalog in " + conf.Region
	if e := aws.ToString(conf.BaseEndpoint); e != "" {
		where += " at " + e
	}
	c := &Catalog{
		inner: inner, pointer: p, props: props, parsed: &parsed{byTable: map[string]parsedMetadata{}}, closers: []io.Closer{inner},
		classify: func(err error) error { return glueFailure(err, where) },
	}
	err = cfg.wait(ctx, where, func(ctx context.Context) error {
		// The cheapest question that shows whether we may ask at all.
		_, err := p.api.GetDatabases(ctx, &glue.GetDatabasesInput{CatalogId: p.catalogID, MaxResults: aws.Int32(1)})
		return glueFailure(err, where)
	})
	if err != nil {
		_ = inner.Close()
		return nil, err
	}
	return c, nil
}

// glueName checks what Glue would change or refuse: it has one level of
// namespaces, and folds names to lower case, after which they are not found.
func glueName(ident table.Identifier) (database, name string, err error) {
	if len(ident) != 2 {
		return "", "", failure.New(failure.Config, "table %s: Glue has databases and tables in them, and nothing deeper", Name(ident)).
			WithHint("write it as database.table")
	}
	if full := Name(ident); strings.ToLower(full) != full {
		return "", "", failure.New(failure.Config, "table %s: Glue keeps names in lower case only", full).WithHint("write it as %s", strings.ToLower(full))
	}
	return ident[0], ident[1], nil
}

func (p *gluePointer) get(ctx context.Context, ident table.Identifier) (*types.Table, error) {
	database, name, err := glueName(ident)
	if err != nil {
		return nil, err
	}
	out, err := p.api.GetTable(ctx, &glue.GetTableInput{CatalogId: p.catalogID, DatabaseName: &database, Name: &name})
	if isGlueMissing(err) {
		return nil, fmt.Errorf("%w: %s", ErrNoTable, Name(ident))
	}
	if err != nil {
		return nil, fmt.Errorf("look up %s in Glue: %w", Name(ident), glueFailure(err, "Glue"))
	}
	if out.Table == nil || !strings.EqualFold(out.Table.Parameters[glueTableType], glueIceberg) || out.Table.Parameters[glueMetadataLocation] == "" {
		return nil, failure.New(failure.Config, "%s in Glue is not an Iceberg table", Name(ident)).
			WithHint("a table of another format, or a view, has this name: drop it or write to another table")
	}
	return out.Table, nil
}

func (p *gluePointer) location(ctx context.Context, ident table.Identifier) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, glueCallTimeout)
	defer cancel()
	t, err := p.get(ctx, ident)
	if err != nil {
		return "", err
	}
	return t.Parameters[glueMetadataLocation], nil
}

func (p *gluePointer) swap(ctx context.Context, ident table.Identifier, from, to string) error {
	ctx, cancel := context.WithTimeout(ctx, glueCallTimeout)
	defer cancel()
	for attempt := 1; ; attempt++ {
		t, err := p.get(ctx, ident)
		if errors.Is(err, ErrNoTable) {
			return fmt.Errorf("%w: %s was dropped", ErrConflict, Name(ident))
		}
		if err != nil {
			return err
		}
		if t.Parameters[glueMetadataLocation] != from {
			return fmt.Errorf("%w: another commit to %s came first", ErrConflict, Name(ident))
		}
		if aws.ToString(t.VersionId) == "" {
			return failure.New(failure.Config, "Glue gives no version of %s, so that a commit cannot be made conditional", Name(ident)).
				WithHint("this is not AWS Glue, or an emulation that is too old")
		}
		err = p.update(ctx, t, to)
		switch {
		case err == nil:
			return nil
		case isGlueMissing(err):
			return fmt.Errorf("%w: %s was dropped", ErrConflict, Name(ident))
		case !gluePassing(err):
			if glueRefused(err) {
				return fmt.Errorf("update %s in Glue: %w", Name(ident), glueFailure(err, "Glue"))
			}
			return fmt.Errorf("%w: commit of %s in Glue: %w", ErrUnknown, Name(ident), err)
		case attempt == glueSwapAttempts:
			return fmt.Errorf("update %s in Glue, %d times: %w", Name(ident), attempt, glueFailure(err, "Glue"))
		}
		if err := p.clock.Sleep(ctx, time.Duration(attempt)*glueSwapPause); err != nil {
			return err
		}
	}
}

// update points the table at other metadata, on condition that its entry is
// still the version that was read. It is sent once: only then does Glue's
// "concurrent modification" mean that this very request was not carried out.
//
// Everything else in the entry stays as whoever wrote it last left it. Columns
// are for consoles; engines read the metadata.
func (p *gluePointer) update(ctx context.Context, t *types.Table, to string) error {
	params := maps.Clone(t.Parameters)
	params[gluePreviousLocation], params[glueMetadataLocation] = t.Parameters[glueMetadataLocation], to
	_, err := p.api.UpdateTable(ctx, &glue.UpdateTableInput{
		CatalogId: p.catalogID, DatabaseName: t.DatabaseName, VersionId: t.VersionId, SkipArchive: aws.Bool(!p.archive),
		TableInput: &types.TableInput{
			Name: t.Name, Parameters: params, TableType: t.TableType, StorageDescriptor: t.StorageDescriptor, Description: t.Description,
			Owner: t.Owner, PartitionKeys: t.PartitionKeys, Retention: t.Retention, LastAccessTime: t.LastAccessTime,
			LastAnalyzedTime: t.LastAnalyzedTime, TargetTable: t.TargetTable, ViewExpandedText: t.ViewExpandedText, ViewOriginalText: t.ViewOriginalText,
		},
	}, func(o *glue.Options) { o.Retryer = aws.NopRetryer{} })
	return err
}

func isGlueMissing(err error) bool { return errors.As(err, new(*types.EntityNotFoundException)) }

func glueCode(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

func glueStatus(err error) int {
	var re *awshttp.ResponseError
	if errors.As(err, &re) {
		return re.HTTPStatusCode()
	}
	return 0
}

// gluePassing: not carried out, and worth another look: the entry has another
// version, or Glue has no time.
func gluePassing(err error) bool {
	switch glueCode(err) {
	case "ConcurrentModificationException", "ThrottlingException", "Throttling", "RequestLimitExceeded", "TooManyRequestsException",
		"ResourceNotReadyException", "ExpiredTokenException": // the next one is signed by what the chain gives then
		return true
	}
	return false
}

// glueRefused: Glue said no before it did anything. A time-out inside Glue is
// no such word.
func glueRefused(err error) bool {
	s := glueStatus(err)
	return s >= 400 && s < 500 && s != http.StatusRequestTimeout && glueCode(err) != "OperationTimeoutException"
}

// glueFailure says what a user can do about an error of Glue's.
func glueFailure(err error, where string) error {
	var known *failure.Error
	if err == nil || errors.As(err, &known) || isGlueMissing(err) {
		return err
	}
	wrap := func(class failure.Class, hint string) error {
		return failure.Wrap(class, err, "%s", where).WithHint("%s", hint)
	}
	switch code := glueCode(err); code {
	case "AccessDeniedException", "AccessDenied":
		return wrap(failure.Config, "these credentials need glue:GetDatabase(s), glue:CreateDatabase, glue:GetTable(s), glue:CreateTable and glue:UpdateTable on the catalog, its databases and their tables (and Lake Formation's permissions, where it is in charge)")
	case "UnrecognizedClientException", "InvalidSignatureException", "InvalidClientTokenId", "ExpiredTokenException", "SignatureDoesNotMatch",
		"MissingAuthenticationTokenException", "IncompleteSignatureException":
		return wrap(failure.Config, "check the AWS_* variables, the profile or the role that gives the credentials, and catalog.glue.region")
	case "InvalidInputException":
		return wrap(failure.Config, "check catalog.glue.catalogId (an account's number) and the names of tables")
	case "GlueEncryptionException":
		return wrap(failure.Config, "the catalog's metadata is encrypted with a key that these credentials may not use")
	case "ResourceNumberLimitExceededException":
		return wrap(failure.Config, "a quota of Glue's is used up; catalog.glue.archive: false keeps no versions")
	}
	switch s := glueStatus(err); {
	case s == http.StatusForbidden || s == http.StatusUnauthorized:
		return wrap(failure.Config, "check the credentials and catalog.glue.region")
	case s == http.StatusTooManyRequests || s >= 500 || gluePassing(err):
		return wrap(failure.Unreachable, "Glue answered with errors for longer than the attempts lasted; it is safe to start again")
	case s == http.StatusNotFound || s == http.StatusMethodNotAllowed:
		return wrap(failure.Config, "there is no Glue at this address: correct catalog.glue.endpoint")
	case s != 0:
		return err
	}
	switch text := err.Error(); {
	case strings.Contains(text, "no EC2 IMDS role found"), strings.Contains(text, "failed to retrieve credentials"), strings.Contains(text, "get credentials"):
		return wrap(failure.Config, "no credentials were found: use the SDK's default chain (AWS_ACCESS_KEY_ID, profile, web identity, role)")
	case strings.Contains(text, "x509: "), strings.Contains(text, "HTTP response to HTTPS client"):
		return wrap(failure.Config, "the server's certificate is not trusted, or it does not speak TLS: correct catalog.glue.endpoint, or set catalog.glue.caFile")
	}
	return wrap(failure.Unreachable, "check that "+cmp.Or(where, "Glue")+" answers, catalog.glue.region and catalog.glue.endpoint; it is safe to start again")
}
