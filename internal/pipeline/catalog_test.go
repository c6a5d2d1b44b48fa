package pipeline

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestRESTCatalogReachesItsFieldsAndShowsNoSecret(t *testing.T) {
	p := load(t, "testdata/valid/rest.yaml")
	c := p.Catalog
	for what, got := range map[string][2]string{
		"type": {c.Type, CatalogREST}, "uri": {c.URI.Reveal(), "https://catalog.example/iceberg"}, "warehouse": {c.Warehouse, "main"},
		"credential": {c.Credential.Reveal(), "alice:hunter2"}, "scope": {c.Scope, "PRINCIPAL_ROLE:ALL"},
		"server": {c.OAuth2ServerURI, "https://login.example/oauth/tokens"}, "header": {c.Headers["X-Tenant"].Reveal(), "a"},
		"secret header": {c.Headers["X-Key"].Reveal(), "hunter2"}, "the pipeline's warehouse": {p.Warehouse, ""},
	} {
		if got[0] != got[1] {
			t.Errorf("%s is %q, want %q", what, got[0], got[1])
		}
	}
	if c.StartTimeout != 5*time.Second || c.IsSQLite() {
		t.Errorf("timeout %s, a file %v", c.StartTimeout, c.IsSQLite())
	}
	body, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprintf("%+v", *p), fmt.Sprintf("%#v", p.Catalog), string(body)} {
		if strings.Contains(text, "hunter2") || strings.Contains(text, "alice") {
			t.Errorf("a secret is printed: %s", text)
		}
	}
}

func TestPostgresCatalogKeepsItsAddressAndShowsNone(t *testing.T) {
	p, faults := LoadBytes("p.yaml", "/d", []byte("name: x\ncatalog: {uri: 'postgresql+psycopg2://weir:hunter2@h:5433/lake?sslmode=verify-full', newName: true}\nwarehouse: /d/w\n"+
		"checkpointLocation: /d/c\nkafka: {bootstrapServers: [b:9092]}\nqueries: [{name: q, from: {kafka: {topics: [a]}}, to: {iceberg: {table: a.b}}}]\n"), testEnv)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	if !strings.HasSuffix(p.Catalog.URI.Reveal(), "hunter2@h:5433/lake?sslmode=verify-full") || !p.Catalog.NewName || p.Catalog.IsSQLite() {
		t.Errorf("%v", p.Catalog.URI.Reveal())
	}
	if text := fmt.Sprintf("%+v", p); strings.Contains(text, "hunter2") {
		t.Error("the password is printed")
	}
}

func TestFaultsOfCatalogsAreNamed(t *testing.T) {
	const tail = "\nname: x\ncheckpointLocation: /d/c\nkafka: {bootstrapServers: [b:9092]}\nqueries: [{name: q, from: {kafka: {topics: [a]}}, to: {iceberg: {table: a.b}}}]\n"
	const rest = "catalog: {type: rest, uri: 'https://h', "
	for text, want := range map[string]string{
		"catalog: {uri: 'sqlite:/d/c.db'}":                                   `missing key "warehouse"`,
		"warehouse: ''\ncatalog: {uri: 'sqlite:/d/c.db'}":                    "warehouse is empty",
		"warehouse: /d/w\ncatalog: {uri: 'mysql://weir:hunter2@h/db'}":       "sqlite:PATH",
		"warehouse: /d/w\ncatalog: {uri: 'postgres://weir:hunter2@h'}":       "DATABASE",
		"warehouse: /d/w\ncatalog: {uri: 'postgres://weir:hunter2%zz@h/db'}": "DATABASE",
		"warehouse: /d/w\ncatalog: {uri: 'sqlite:/d/c.db', token: hunter2}":  "token is for a rest catalog",
		"warehouse: /d/w\ncatalog: {uri: 'sqlite:/d/c.db', warehouse: w}":    "warehouse is for a rest catalog",
		"warehouse: /d/w\ncatalog: {type: hive, uri: 'sqlite:/d/c.db'}":      "is not one of sql, rest, glue",
		"warehouse: /d/w\ncatalog: {type: glue, uri: 'sqlite:/d/c.db'}":      "a glue catalog is found by catalog.glue.region",
		"warehouse: /d/w\ncatalog: {type: glue, scope: x}":                   "scope is for a rest catalog; this one is of type glue",
		"catalog: {type: glue}":                                              `missing key "warehouse"`,
		"warehouse: /d/w\ncatalog: {uri: 'sqlite:/d/c.db', glue: {}}":        "glue is for a catalog of type glue",
		"warehouse: /d/w\ncatalog: {type: glue, glue: {catalogId: 'a b'}}":   "the number of the account",
		"warehouse: /d/w\ncatalog: {type: sql}":                              `catalog: missing key "uri"`,
		"warehouse: /d/w\n" + rest + "}":                                     "decides where tables lie",
		"catalog: {type: rest, uri: 'sqlite:/d/c.db'}":                       "http or https URL",
		"catalog: {type: rest, uri: 'https://weir:hunter2@h'}":               "catalog.credential",
		rest + "token: hunter2, credential: 'a:hunter2'}":                    "more than one of",
		rest + "token: hunter2, sigv4: {region: r}}":                         "more than one of",
		rest + "scope: s}":      "goes with credential",
		rest + "newName: true}": "newName is for a sql catalog",
		rest + "oauth2ServerUri: 'ftp://x', credential: 'a:hunter2'}":                 "not an http or https URL",
		rest + "startTimeout: 10ms}":                                                  "less than 1s",
		rest + "credential: 'a:hunter2'}":                                             "",
		"catalog: {type: rest, uri: 'http://127.0.0.1:8181', sigv4: {service: glue}}": "",
	} {
		_, faults := LoadBytes("p.yaml", "/d", []byte(text+tail), testEnv)
		all := fmt.Sprint(faults)
		if (want == "") != (len(faults) == 0) || !strings.Contains(all, want) || strings.Contains(all, "hunter2") {
			t.Errorf("%s\n got %s\nwant %q", text, all, want)
		}
		if len(faults) > 1 {
			t.Errorf("%s: %d faults for one mistake: %s", text, len(faults), all)
		}
	}
}

func TestGlueCatalogReachesItsFieldsAndNeedsNoAddress(t *testing.T) {
	p, faults := LoadBytes("p.yaml", "/d", []byte("name: x\ncatalog: {type: glue, glue: {region: eu-central-1, endpoint: 'https://glue.internal', catalogId: '123456789012', "+
		"assumeRole: {roleArn: 'arn:aws:iam::1:role/lake', externalId: hunter2}, archive: true}}\nwarehouse: s3://lake/w\n"+
		"checkpointLocation: /d/c\nkafka: {bootstrapServers: [b:9092]}\nqueries: [{name: q, from: {kafka: {topics: [a]}}, to: {iceberg: {table: a.b}}}]\n"), testEnv)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	g := p.Catalog.Glue
	if g == nil || g.Region != "eu-central-1" || g.Endpoint != "https://glue.internal" || g.CatalogID != "123456789012" || !g.Archive ||
		g.AssumeRole.RoleARN != "arn:aws:iam::1:role/lake" || p.Catalog.IsSQLite() {
		t.Errorf("%+v", g)
	}
	if text := fmt.Sprintf("%+v", p); strings.Contains(text, "hunter2") {
		t.Error("the external id is printed")
	}
}
