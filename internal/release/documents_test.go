package release

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestTheDocumentsOfAReleaseNameEveryComponentAndRepeatByteForByte(t *testing.T) {
	modules, err := Linked(t.Context(), "../..", "", "./cmd/weir")
	if err != nil {
		t.Fatal(err)
	}
	write := func() (string, string) {
		components, err := Components(modules, "")
		if err != nil {
			t.Fatal(err)
		}
		var sbom, notices bytes.Buffer
		if err := WriteSBOM(&sbom, Binary{Version: "1.2.3", Platform: "linux/amd64", Built: time.Unix(1, 0)}, components); err != nil {
			t.Fatal(err)
		}
		if err := WriteNotices(&notices, components); err != nil {
			t.Fatal(err)
		}
		return sbom.String(), notices.String()
	}
	sbom, notices := write()
	again, noticesAgain := write()
	if sbom != again || notices != noticesAgain {
		t.Error("the same input gave other documents")
	}
	var doc struct {
		Components []struct {
			Name, Version, PURL string
			Licenses            []any
			Hashes              []any
		}
	}
	if err := json.Unmarshal([]byte(sbom), &doc); err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, c := range doc.Components {
		named[c.Name] = true
		if c.Version == "" || c.PURL == "" || len(c.Licenses) == 0 {
			t.Errorf("the bill of materials says too little of %s: %+v", c.Name, c)
		}
		if !strings.Contains(notices, c.Name) {
			t.Errorf("the notices do not name %s", c.Name)
		}
	}
	for _, m := range modules {
		if !m.Main && !named[m.Path] {
			t.Errorf("the bill of materials lacks %s", m.Path)
		}
	}
	for _, name := range []string{"std", "github.com/apache/iceberg-go", "modernc.org/sqlite"} {
		if !named[name] {
			t.Errorf("the bill of materials lacks %s", name)
		}
	}
	if !strings.Contains(notices, "dedicated to the public\ndomain by the authors") {
		t.Error("the notices lack SQLite's words")
	}
}
