package pipeline

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

func TestLocationsOnS3ReachTheirFields(t *testing.T) {
	p := load(t, "testdata/valid/s3.yaml")
	for what, got := range map[string][2]string{
		"warehouse":            {p.Warehouse, "s3://lake/warehouse"},
		"checkpoints":          {p.CheckpointLocation, "s3://weir/checkpoints"},
		"the query's own":      {p.Queries[0].CheckpointLocation, "s3://weir/checkpoints/bronze"},
		"another query's":      {p.Queries[1].CheckpointLocation, filepath.Join(mustAbs(t, "testdata/valid"), "elsewhere/other")},
		"role":                 {p.Stores[0].AssumeRole.RoleARN, "arn:aws:iam::123456789012:role/lake"},
		"external id":          {p.Stores[0].AssumeRole.ExternalID.Reveal(), "alice"},
		"encryption":           {p.Stores[0].SSE + " " + p.Stores[0].KMSKeyID, "aws:kms alias/lake"},
		"secret":               {p.Stores[1].SecretAccessKey.Reveal(), "hunter2"},
		"endpoint":             {p.Stores[1].Endpoint, "http://127.0.0.1:9000"},
		"joined on S3":         {JoinLocation("s3://b", "x", "y"), "s3://b/x/y"},
		"joined under a slash": {JoinLocation("s3://b/p", "x"), "s3://b/p/x"},
	} {
		if got[0] != got[1] {
			t.Errorf("%s is %q, want %q", what, got[0], got[1])
		}
	}
	if text := fmt.Sprintf("%+v", p.Stores); strings.Contains(text, "hunter2") || strings.Contains(text, "alice") {
		t.Errorf("a secret is printed: %s", text)
	}
}

func TestFaultsOfStoresAreNamed(t *testing.T) {
	const tail = "\ncatalog: {uri: 'sqlite:/d/c.db'}\nkafka: {bootstrapServers: [b:9092]}\nqueries: [{name: q, from: {kafka: {topics: [a]}}, to: {iceberg: {table: a.b}}}]\n"
	const places = "name: x\nwarehouse: s3://lake/wh\ncheckpointLocation: s3://lake/ck\n"
	for text, want := range map[string]string{
		places: "",
		"name: x\nwarehouse: hdfs://lake/wh\ncheckpointLocation: /d/c":                                                                 "is neither a local folder nor",
		"name: x\nwarehouse: gs://lake_1/wh\ncheckpointLocation: gs://lake_1/ck":                                                       "",
		"name: x\nwarehouse: gs://Lake/wh\ncheckpointLocation: /d/c":                                                                   "bucket name",
		"name: x\nwarehouse: abfss://lake@acct.dfs.core.windows.net/wh\ncheckpointLocation: abfss://lake@acct.dfs.core.windows.net/ck": "",
		"name: x\nwarehouse: abfss://lake/wh\ncheckpointLocation: /d/c":                                                                "no usable container and account",
		places + "stores: [{type: gcs, region: a}]":                                                                                    "region is not for a store of type gcs",
		places + "stores: [{account: a}]":                                                                                              "account is not for a store of type s3",
		places + "stores: [{type: azure, accountKey: a2V5}]":                                                                           "go with account",
		places + "stores: [{type: azure, account: a, accountKey: a2V5, sasToken: b}]":                                                  "not both",
		places + "stores: [{type: azure, account: a}, {type: azure, account: a}]":                                                      "named twice",
		places + "stores: [{bucket: lake}, {type: gcs, bucket: lake, anonymous: true}]":                                                "",
		places + "stores: [{type: gcs, credentialsFile: /no/such/file}]":                                                               "no such file",
		"name: x\nwarehouse: s3://Lake_1/wh\ncheckpointLocation: /d/c":                                                                 "bucket name",
		"name: x\nwarehouse: 's3://lake/a b'\ncheckpointLocation: /d/c":                                                                "other Iceberg engines",
		"name: x\nwarehouse: s3://lake/a/../b\ncheckpointLocation: /d/c":                                                               "dotted parts",
		"name: x\nwarehouse: s3://lake\ncheckpointLocation: s3://lake/ck":                                                              "lie inside each other",
		"name: x\nwarehouse: s3://lake/wh\ncheckpointLocation: s3a://lake/wh/ck":                                                       "lie inside each other",
		places + "stores: [{accessKeyId: a}]":                                                                                          "go together",
		places + "stores: [{sessionToken: a}]":                                                                                         "sessionToken goes with",
		places + "stores: [{kmsKeyId: a}]":                                                                                             "kmsKeyId goes with",
		places + "stores: [{sse: DES}]":                                                                                                "is not one of AES256, aws:kms",
		places + "stores: [{region: a}, {region: b}]":                                                                                  "second entry",
		places + "stores: [{bucket: lake}, {bucket: lake}]":                                                                            "named twice",
		places + "stores: [{caFile: /no/such/file}]":                                                                                   "no such file",
		places + "stores: [{endpoint: 'ftp://x'}]":                                                                                     "not an http or https URL",
		places + "stores: [{endpoint: 'http://user:pw@x'}]":                                                                            "user name or a password",
		places + "ingest: [{name: i, topic: a, sse: {url: 'http://127.0.0.1/s'}}]":                                                     "a stream's position is a local file",
		places + "ingest: [{name: i, topic: a, position: s3://lake/p.json, sse: {url: 'http://127.0.0.1/s'}}]":                         "has to be a local path",
		"name: x\nwarehouse: /d/w\ncheckpointLocation: s3://lake/ck\nstores: [{assumeRole: {sessionName: just-a-name}}]":               "roleArn",
	} {
		_, faults := LoadBytes("p.yaml", "/d", []byte(text+tail), func(string) (string, bool) { return "", false })
		all := fmt.Sprint(faults)
		if (want == "") != (len(faults) == 0) || !strings.Contains(all, want) {
			t.Errorf("%s\nfaults %s\nwant %q", text, all, want)
		}
	}
	p, faults := LoadBytes("p.yaml", "/d", []byte(places+"stores: [{endpoint: 'http://far:9000'}]"+tail), nil)
	if len(faults) > 0 || len(p.Warnings) != 1 || !strings.Contains(p.Warnings[0].Error(), "in clear") {
		t.Errorf("http over a network: %v, %v", faults, p)
	}
}
