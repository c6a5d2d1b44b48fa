package broker

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/aws"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
)

// OAuth says where the token of OAUTHBEARER comes from: exactly one of Token,
// TokenFile and TokenURL is set.
type OAuth struct {
	// Token is the same for every connection.
	Token string
	// TokenFile is read for every connection, and again when the broker asks for
	// a new log-in: whoever keeps it fresh may replace it at any time.
	TokenFile string
	// TokenURL is an OAuth 2.0 token endpoint that is asked with the client
	// credentials grant.
	TokenURL     string
	ClientID     string
	ClientSecret string
	Scope        string
	// CAFile replaces the system's roots for TokenURL.
	CAFile string
	// Extensions go to the broker beside the token (RFC 7628).
	Extensions map[string]string
}

// AWS says whose signature AWS_MSK_IAM carries. The credentials come from the
// SDK's default chain; the region from the broker's host name, or AWS_REGION.
type AWS struct {
	// Profile is one of the SDK's configuration files.
	Profile string
	// RoleARN is a role to assume with those credentials.
	RoleARN, SessionName string
}

// mechanisms that are supported, for messages.
var mechanisms = strings.Join([]string{SASLPlain, SASLScram256, SASLScram512, SASLOAuth, SASLMSKIAM}, ", ")

// Faults names what does not fit together.
func (s SASL) Faults(encrypted bool) []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	switch s.Mechanism {
	case "":
		if s.Username != "" || s.Password != "" {
			add("sasl credentials are given without a mechanism")
		}
	case SASLPlain, SASLScram256, SASLScram512:
		if s.Username == "" || s.Password == "" {
			add("sasl %s needs a username and a password", s.Mechanism)
		}
	case SASLOAuth:
		out = append(out, s.OAuth.faults()...)
	case SASLMSKIAM:
		if !encrypted {
			add("sasl %s needs tls: MSK signs in over TLS only", s.Mechanism)
		}
	default:
		add("sasl mechanism %q is not supported: use one of %s", s.Mechanism, mechanisms)
	}
	switch s.Mechanism {
	case SASLOAuth, SASLMSKIAM:
		if s.Username != "" || s.Password != "" {
			add("sasl %s takes no username and no password", s.Mechanism)
		}
	}
	if s.OAuth != nil && s.Mechanism != SASLOAuth {
		add("sasl oauth goes with mechanism %s", SASLOAuth)
	}
	if s.AWS != nil && s.Mechanism != SASLMSKIAM {
		add("sasl aws goes with mechanism %s", SASLMSKIAM)
	}
	return out
}

func (o *OAuth) faults() []string {
	if o == nil {
		return []string{"sasl OAUTHBEARER needs oauth with token, tokenFile or tokenUrl"}
	}
	var out []string
	given := 0
	for _, v := range []string{o.Token, o.TokenFile, o.TokenURL} {
		if v != "" {
			given++
		}
	}
	if given != 1 {
		out = append(out, "sasl oauth needs exactly one of token, tokenFile and tokenUrl")
	}
	switch {
	case o.TokenURL != "" && (o.ClientID == "" || o.ClientSecret == ""):
		out = append(out, "sasl oauth tokenUrl needs clientId and clientSecret")
	case o.TokenURL == "" && (o.ClientID != "" || o.ClientSecret != "" || o.Scope != "" || o.CAFile != ""):
		out = append(out, "sasl oauth clientId, clientSecret, scope and caFile go with tokenUrl")
	}
	if u, err := url.Parse(o.TokenURL); o.TokenURL != "" && (err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http")) {
		out = append(out, "sasl oauth tokenUrl is not an http or https URL")
	}
	return out
}

// mechanism is nil without a log-in.
func (s SASL) mechanism() (sasl.Mechanism, error) {
	switch s.Mechanism {
	case SASLPlain:
		return plain.Auth{User: s.Username, Pass: s.Password}.AsMechanism(), nil
	case SASLScram256:
		return scram.Auth{User: s.Username, Pass: s.Password}.AsSha256Mechanism(), nil
	case SASLScram512:
		return scram.Auth{User: s.Username, Pass: s.Password}.AsSha512Mechanism(), nil
	case SASLOAuth:
		return s.OAuth.mechanism()
	case SASLMSKIAM:
		return s.AWS.mechanism(), nil
	}
	return nil, nil //nolint:nilnil // no log-in is a choice
}

func (o *OAuth) mechanism() (sasl.Mechanism, error) {
	token := func(context.Context) (string, error) { return o.Token, nil }
	switch {
	case o.TokenFile != "":
		token = o.readToken
		if _, err := o.readToken(context.Background()); err != nil {
			return nil, err
		}
	case o.TokenURL != "":
		client, err := o.httpClient()
		if err != nil {
			return nil, err
		}
		token = (&tokenEndpoint{o: *o, client: client, clk: clock.System{}}).token
	}
	return oauth.Oauth(func(ctx context.Context) (oauth.Auth, error) {
		t, err := token(ctx)
		return oauth.Auth{Token: t, Extensions: o.Extensions}, err
	}), nil
}

func (o *OAuth) readToken(context.Context) (string, error) {
	b, err := os.ReadFile(o.TokenFile)
	if err != nil {
		return "", failure.Wrap(failure.Config, err, "read the token of kafka.sasl.oauth")
	}
	if t := strings.TrimSpace(string(b)); t != "" {
		return t, nil
	}
	return "", failure.New(failure.Config, "the token file %s of kafka.sasl.oauth is empty", o.TokenFile)
}

func (o *OAuth) httpClient() (*http.Client, error) {
	t := TLS{Enabled: true, CAFile: o.CAFile}
	conf, err := t.config()
	if err != nil {
		return nil, err
	}
	return &http.Client{Timeout: tokenMax, Transport: &http.Transport{
		TLSClientConfig: conf, Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: dialTimeout,
	}}, nil
}

// mechanism signs with the default chain's credentials; the SDK keeps and
// refreshes them.
func (a *AWS) mechanism() sasl.Mechanism {
	var s AWS
	if a != nil {
		s = *a
	}
	provider := &awsCredentials{s: s}
	return aws.ManagedStreamingIAM(func(ctx context.Context) (aws.Auth, error) {
		c, err := provider.retrieve(ctx)
		if err != nil {
			return aws.Auth{}, failure.Wrap(failure.Config, err, "find AWS credentials for kafka.sasl %s", SASLMSKIAM).
				WithHint("the SDK's default chain is used: environment, shared files, web identity, instance role")
		}
		return aws.Auth{AccessKey: c.AccessKeyID, SecretKey: c.SecretAccessKey, SessionToken: c.SessionToken, UserAgent: clientName}, nil
	})
}

// awsCredentials is the default chain, opened with the first connection.
type awsCredentials struct {
	s      AWS
	opened lazy[awssdk.CredentialsProvider]
}

func (p *awsCredentials) retrieve(ctx context.Context) (awssdk.Credentials, error) {
	provider, err := p.opened.get(func() (awssdk.CredentialsProvider, error) { return p.s.open(ctx) })
	if err != nil {
		return awssdk.Credentials{}, err
	}
	return provider.Retrieve(ctx)
}

func (a AWS) open(ctx context.Context) (awssdk.CredentialsProvider, error) {
	var opts []func(*awsconfig.LoadOptions) error
	if a.Profile != "" {
		opts = append(opts, awsconfig.WithSharedConfigProfile(a.Profile))
	}
	conf, err := awsconfig.LoadDefaultConfig(ctx, opts...)
	if err != nil {
		return nil, err
	}
	if a.RoleARN == "" {
		return conf.Credentials, nil
	}
	role := stscreds.NewAssumeRoleProvider(sts.NewFromConfig(conf), a.RoleARN, func(o *stscreds.AssumeRoleOptions) {
		if o.RoleSessionName = a.SessionName; o.RoleSessionName == "" {
			o.RoleSessionName = clientName
		}
	})
	return awssdk.NewCredentialsCache(role), nil
}
