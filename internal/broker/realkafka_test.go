package broker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/kafkatest"
)

// unsecuredToken is a JWS without signature, as Kafka's validator for tests
// takes it.
func unsecuredToken(t *testing.T, sub string) string {
	t.Helper()
	now := time.Now().Unix()
	claims, err := json.Marshal(map[string]any{"sub": sub, "iat": now - 60, "exp": now + 3600})
	if err != nil {
		t.Fatal(err)
	}
	enc := base64.RawURLEncoding
	return enc.EncodeToString([]byte(`{"alg":"none"}`)) + "." + enc.EncodeToString(claims) + "."
}

// roundTrip commits one record, aborts another, and reads what is committed.
func roundTrip(t *testing.T, c Config, topic string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	opts, err := ClientOptions(c)
	if err != nil {
		t.Fatal(err)
	}
	cl, err := kgo.NewClient(append(opts, kgo.TransactionalID(topic), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	made, err := kadm.NewClient(cl).CreateTopic(ctx, 1, 1, nil, topic)
	if err == nil {
		err = made.Err
	}
	if err != nil {
		t.Fatalf("create %s: %v", topic, err)
	}
	for value, end := range map[string]kgo.TransactionEndTry{"committed": kgo.TryCommit, "aborted": kgo.TryAbort} {
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := cl.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr(); err != nil {
			t.Fatalf("produce to %s: %v", topic, err)
		}
		if err := cl.EndTransaction(ctx, end); err != nil {
			t.Fatalf("end the transaction: %v", err)
		}
	}
	for {
		fs := cl.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			t.Fatalf("nothing was read from %s: %v", topic, err)
		}
		fs.EachError(func(_ string, _ int32, err error) { t.Errorf("read %s: %v", topic, err) })
		for _, r := range fs.Records() {
			if string(r.Value) != "committed" {
				t.Fatalf("a read_committed reader got %q", r.Value)
			}
			return
		}
	}
}

func TestARealKafkaIsReachedOverTLSWithALogIn(t *testing.T) {
	k := kafkatest.StartSecure(t)
	trust := TLS{Enabled: true, CAFile: k.CA}
	login := SASL{Mechanism: SASLScram512, Username: kafkatest.User, Password: k.Password}
	roundTrip(t, Config{BootstrapServers: []string{k.LoginTLS}, TLS: trust, SASL: login}, "events")
	login.Password = "wrong-secret"
	err := Contact(t.Context(), Config{BootstrapServers: []string{k.LoginTLS}, TLS: trust, SASL: login})
	if !failure.Is(err, failure.Config) || !strings.Contains(err.Error(), "kafka.sasl") {
		t.Fatalf("with a wrong password: %v, want a configuration error that names kafka.sasl", err)
	}
}

// envSecure runs the tests of every combination, which make secure does.
const envSecure = "WEIR_TEST_SECURE"

func TestARealKafkaIsReachedByEveryLogInWithAndWithoutTLS(t *testing.T) {
	if os.Getenv(envSecure) == "" {
		t.Skipf("every combination of TLS and log-in is part of make secure: set %s=1", envSecure)
	}
	k := kafkatest.StartSecure(t)
	trust := TLS{Enabled: true, CAFile: k.CA}
	mutual := trust
	mutual.CertFile, mutual.KeyFile = k.ClientCert, k.ClientKey
	logins := map[string]SASL{
		"oauth": {Mechanism: SASLOAuth, OAuth: &OAuth{Token: unsecuredToken(t, kafkatest.User)}},
	}
	for _, m := range []string{SASLPlain, SASLScram256, SASLScram512} {
		logins[strings.ToLower(m)] = SASL{Mechanism: m, Username: kafkatest.User, Password: k.Password}
	}
	t.Run("tls", func(t *testing.T) { roundTrip(t, Config{BootstrapServers: []string{k.TLS}, TLS: trust}, "tls") })
	t.Run("mtls", func(t *testing.T) { roundTrip(t, Config{BootstrapServers: []string{k.MTLS}, TLS: mutual}, "mtls") })
	for name, login := range logins {
		t.Run(name, func(t *testing.T) {
			roundTrip(t, Config{BootstrapServers: []string{k.Login}, SASL: login}, name)
		})
		t.Run(name+" over tls", func(t *testing.T) {
			roundTrip(t, Config{BootstrapServers: []string{k.LoginTLS}, TLS: trust, SASL: login}, name+"-tls")
		})
	}
	t.Run("wrong", func(t *testing.T) { wrongSettings(t, k) })
	t.Run("replaced certificate", func(t *testing.T) { replacedCertificate(t, k, mutual) })
	t.Run("replaced token file", func(t *testing.T) { replacedToken(t, k, trust) })
}

// wrongSettings tries what a real broker answers to settings that cannot work.
func wrongSettings(t *testing.T, k *kafkatest.Secure) {
	trust := TLS{Enabled: true, CAFile: k.CA}
	user := func(m, name, password string) SASL { return SASL{Mechanism: m, Username: name, Password: password} }
	forged := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(forged, []byte("no.token.at-all"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		c    Config
		want string
	}{
		{"plaintext to TLS", Config{BootstrapServers: []string{k.TLS}}, "speaks TLS"},
		{"plaintext to log-in over TLS", Config{BootstrapServers: []string{k.LoginTLS}, SASL: user(SASLScram512, kafkatest.User, k.Password)}, "speaks TLS"},
		{"TLS to plaintext", Config{BootstrapServers: []string{k.Bootstrap()}, TLS: trust}, "speaks plaintext"},
		{"TLS to log-in without TLS", Config{BootstrapServers: []string{k.Login}, TLS: trust, SASL: user(SASLPlain, kafkatest.User, k.Password)}, "speaks plaintext"},
		{"another authority", Config{BootstrapServers: []string{k.TLS}, TLS: TLS{Enabled: true, CAFile: k.OtherCA}}, "kafka.tls.caFile"},
		{"another name", Config{BootstrapServers: []string{k.TLS}, TLS: TLS{Enabled: true, CAFile: k.CA, ServerName: "kafka.example"}}, "serverName"},
		{"no client certificate", Config{BootstrapServers: []string{k.MTLS}, TLS: trust}, "kafka.tls.certFile"},
		{"no log-in", Config{BootstrapServers: []string{k.Login}}, "wants a log-in"},
		{"no log-in over TLS", Config{BootstrapServers: []string{k.LoginTLS}, TLS: trust}, "wants a log-in"},
		{"log-in where there is none", Config{BootstrapServers: []string{k.TLS}, TLS: trust, SASL: user(SASLPlain, kafkatest.User, k.Password)}, "remove kafka.sasl"},
		{"a mechanism that is not offered", Config{BootstrapServers: []string{k.LoginTLS}, TLS: trust, SASL: SASL{Mechanism: SASLMSKIAM}}, "does not offer"},
		{"wrong password, PLAIN", Config{BootstrapServers: []string{k.LoginTLS}, TLS: trust, SASL: user(SASLPlain, kafkatest.User, "wrong-secret")}, "kafka.sasl"},
		{"wrong password, SCRAM", Config{BootstrapServers: []string{k.LoginTLS}, TLS: trust, SASL: user(SASLScram512, kafkatest.User, "wrong-secret")}, "kafka.sasl"},
		{"unknown user", Config{BootstrapServers: []string{k.LoginTLS}, TLS: trust, SASL: user(SASLScram256, "nobody", "wrong-secret")}, "kafka.sasl"},
		{"not a token", Config{BootstrapServers: []string{k.LoginTLS}, TLS: trust, SASL: SASL{Mechanism: SASLOAuth, OAuth: &OAuth{TokenFile: forged}}}, "kafka.sasl"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // each waits until its first try is over
			err := Contact(t.Context(), tt.c)
			if !failure.Is(err, failure.Config) {
				t.Fatalf("%v, want a configuration error", err)
			}
			text := err.Error()
			if !strings.Contains(text, tt.want) || !strings.Contains(text, "hint:") {
				t.Errorf("want %q and a hint: %v", tt.want, err)
			}
			if strings.Contains(text, "wrong-secret") || strings.Contains(text, k.Password) {
				t.Errorf("the error holds the password: %v", err)
			}
		})
	}
}

// replacedCertificate replaces a running client's certificate by one that the
// broker does not trust and by another good one: what new connections do shows
// which they were made with.
func replacedCertificate(t *testing.T, k *kafkatest.Secure, mutual TLS) {
	dir := t.TempDir()
	put := func(from, name string) string {
		t.Helper()
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path+".new", b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	mutual.CertFile, mutual.KeyFile = put(k.ClientCert, "client.pem"), put(k.ClientKey, "client.key")
	opts, err := ClientOptions(Config{BootstrapServers: []string{k.MTLS}, TLS: mutual})
	if err != nil {
		t.Fatal(err)
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	reach := func(ok bool) {
		t.Helper()
		// New connections: the open ones would go on with the old certificate.
		cl.CloseAllowingRebalance()
		if cl, err = kgo.NewClient(opts...); err != nil {
			t.Fatal(err)
		}
		limit := 3 * time.Second
		if ok {
			limit = time.Minute
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		_, err := kadm.NewClient(cl).BrokerMetadata(ctx)
		if (err == nil) != ok {
			t.Fatalf("the broker let the client in: %v, want %v (%v)", err == nil, ok, err)
		}
	}
	reach(true)
	unknownCert, unknownKey := pairSignedByNobody(t)
	put(unknownCert, "client.pem")
	reach(true) // half replaced: certificate and key do not fit, the old pair serves
	put(unknownKey, "client.key")
	reach(false)
	cert, key := k.NewClientCert("client2")
	put(key, "client.key")
	put(cert, "client.pem")
	reach(true)
}

// pairSignedByNobody is a certificate that no broker trusts, as PEM files.
func pairSignedByNobody(t *testing.T) (cert, key string) {
	t.Helper()
	dir := t.TempDir()
	conf, ca := selfSigned(t, dir)
	key = filepath.Join(dir, "key.pem")
	if err := os.WriteFile(key, keyPEM(t, conf), 0o600); err != nil {
		t.Fatal(err)
	}
	return ca, key
}

// replacedToken replaces the token file of a running client: the next
// connection is made with the new token.
func replacedToken(t *testing.T, k *kafkatest.Secure, trust TLS) {
	path := filepath.Join(t.TempDir(), "token")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(unsecuredToken(t, kafkatest.User) + "\n")
	c := Config{BootstrapServers: []string{k.LoginTLS}, TLS: trust, SASL: SASL{Mechanism: SASLOAuth, OAuth: &OAuth{TokenFile: path}}}
	opts, err := ClientOptions(c)
	if err != nil {
		t.Fatal(err)
	}
	ask := func() error {
		cl, err := kgo.NewClient(opts...)
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = kadm.NewClient(cl).BrokerMetadata(ctx)
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	put("a.b.c")
	if err := ask(); !Misconfigured(err) {
		t.Fatalf("with a broken token: %v, want a refused log-in", err)
	}
	put(unsecuredToken(t, kafkatest.User))
	if err := ask(); err != nil {
		t.Fatal(fmt.Errorf("with a good token again: %w", err))
	}
}
