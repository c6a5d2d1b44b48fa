package s3

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"strings"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore"
)

// errNotExist is in the chain of every "no such object": the checkpoint asks
// for objstore's word, the Iceberg library for the file system's.
var errNotExist = notExist{}

type notExist struct{}

func (notExist) Error() string { return objstore.ErrNotExist.Error() }
func (notExist) Is(target error) bool {
	return target == objstore.ErrNotExist || target == fs.ErrNotExist //nolint:errorlint // this is the comparison
}

// codeOf is the store's own word for an error, empty where it gave none.
func codeOf(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

// statusOf is the HTTP status of an answer, 0 where there was none.
func statusOf(err error) int {
	var re *awshttp.ResponseError
	if errors.As(err, &re) {
		return re.HTTPStatusCode()
	}
	return 0
}

func isNoObject(err error) bool {
	switch codeOf(err) {
	case "NoSuchKey", "NotFound":
		return true
	case "", "UnknownError", "NoSuchUpload", "NoSuchVersion":
		return statusOf(err) == http.StatusNotFound
	}
	return false // NoSuchBucket, and what else is answered with 404
}

// isTaken: the condition says that something is there, or another conditional
// write of the key is under way.
func isTaken(err error) bool {
	s := statusOf(err)
	return s == http.StatusPreconditionFailed || s == http.StatusConflict
}

// classify says what a user can do about an error, and names the object.
func classify(err error, doing, location string) error {
	if err == nil {
		return nil
	}
	var known *failure.Error
	if errors.As(err, &known) {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return failure.Wrap(failure.Runtime, err, "%s %s", doing, location)
	}
	wrap := func(c failure.Class, hint string) error {
		return failure.Wrap(c, err, "%s %s", doing, location).WithHint("%s", hint)
	}
	switch codeOf(err) {
	case "NoSuchBucket":
		return wrap(failure.Config, "make the bucket, or correct its name: Weir makes none")
	case "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken",
		"XAdminUserNotFound": // versitygw's word for an unknown key
		return wrap(failure.Config, "check the store's accessKeyId, secretAccessKey and sessionToken, or the AWS_* variables")
	case "PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException":
		return wrap(failure.Config, "set the bucket's own region in the pipeline's stores (or AWS_REGION)")
	case "RequestTimeTooSkewed":
		return wrap(failure.Config, "set this machine's clock")
	case "NotImplemented":
		return wrap(failure.Config, "the store does not implement this request; checkpoints need If-None-Match: * on PUT")
	}
	switch s := statusOf(err); {
	case s == http.StatusForbidden || s == http.StatusUnauthorized:
		return wrap(failure.Config, "these credentials need s3:GetObject, s3:PutObject, s3:DeleteObject, s3:ListBucket and s3:AbortMultipartUpload here (and the KMS key's permissions, where there is one)")
	case s == http.StatusTooManyRequests || s >= 500:
		return wrap(failure.Unreachable, "the store answered with errors for longer than the attempts lasted; it is safe to start again")
	case s != 0:
		return failure.Wrap(failure.Runtime, err, "%s %s", doing, location)
	}
	var dns *net.DNSError
	if errors.As(err, &dns) && dns.IsNotFound {
		return wrap(failure.Unreachable, "no such host: check endpoint and region; a store of one's own usually needs pathStyle: true")
	}
	// The end of the chain is the instance's role; the SDK has no type for "nobody
	// had any".
	if strings.Contains(err.Error(), "no EC2 IMDS role found") {
		return wrap(failure.Config, "no credentials were found: set accessKeyId and secretAccessKey in the pipeline's stores, or use the SDK's default chain (AWS_ACCESS_KEY_ID, profile, role)")
	}
	return wrap(failure.Unreachable, "check that the endpoint answers; it is safe to start again")
}
