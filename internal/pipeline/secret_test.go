package pipeline

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

func TestSecretsAreNeverPrinted(t *testing.T) {
	p := load(t, "testdata/valid/everything.yaml")
	outs := map[string]string{}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x", "%X", "%t", "%o", "%c"} {
		outs["pipeline "+verb] = fmt.Sprintf(verb, *p)
		outs["pointer "+verb] = fmt.Sprintf(verb, p)
		outs["kafka "+verb] = fmt.Sprintf(verb, *p.Kafka.SASL)
		outs["secret "+verb] = fmt.Sprintf(verb, p.Kafka.SASL.Password)
		outs["secret pointer "+verb] = fmt.Sprintf(verb, &p.Kafka.SASL.Password)
		outs["in any "+verb] = fmt.Sprintf(verb, map[string]any{"x": []any{p.Kafka.SASL.Password}})
	}
	for _, v := range []any{p, p.Kafka.SASL, p.Kafka.SASL.Password, map[string]any{"p": p.Kafka.SASL.Password}} {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		outs["json"] += string(b)
		if b, err = yaml.Marshal(v); err != nil {
			t.Fatal(err)
		}
		outs["yaml"] += string(b)
	}
	if b, err := xml.Marshal(p.Kafka.SASL); err == nil {
		outs["xml"] = string(b)
	}
	var log bytes.Buffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
		slog.New(h).Info("x", "pipeline", p, "sasl", p.Kafka.SASL, "password", p.Kafka.SASL.Password, "value", *p)
	}
	outs["slog"] = log.String()
	for how, out := range outs {
		for _, secret := range []string{"hunter2", "alice", "68756e74", "catalog.db"} {
			if strings.Contains(strings.ToLower(out), secret) {
				t.Errorf("%s shows %s", how, secret)
			}
		}
	}
	for _, how := range []string{"json", "yaml", "slog", "secret %v", "pipeline %+v"} {
		if !strings.Contains(outs[how], Redacted) {
			t.Errorf("%s does not say that something is redacted", how)
		}
	}
}

func TestFaultsNeverQuoteWhatAVariableOrAFileHolds(t *testing.T) {
	_, faults := LoadBytes("x.yaml", "testdata/valid", []byte(`
name: ${PASSWORD} ${PASSWORD}
catalog: {type: "${PASSWORD}", uri: "postgres://weir:${PASSWORD}@h/db"}
warehouse: s3://${PASSWORD}
checkpointLocation: ${file:secret.txt}
kafka:
  bootstrapServers: "${PASSWORD}"
  sasl: {mechanism: "${PASSWORD}", username: sesame, password: [sesame]}
  topics: [{name: "${PASSWORD}!", partitions: "${PASSWORD}", config: {a: "${file:secret.txt}"}}]
queries:
  - name: q
    from: {kafka: {topics: "${PASSWORD}!,b", partitions: "${PASSWORD}", startingOffsets: "${PASSWORD}", startingTimestamp: "${PASSWORD}", failOnDataLoss: "${PASSWORD}"}}
    trigger: {processingTime: "1 ${PASSWORD}"}
    to: {iceberg: {table: "${PASSWORD}", partitionBy: ["${PASSWORD}(timestamp)"]}}
`), testEnv)
	if len(faults) < 14 {
		t.Errorf("only %d faults: %v", len(faults), faults)
	}
	for _, f := range faults {
		if strings.Contains(f.Message, "sesame") || strings.Contains(f.Message, "hunter2") {
			t.Error(f)
		}
	}
}
