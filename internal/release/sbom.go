package release

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// Binary is what the bill of materials is of.
type Binary struct {
	Version  string
	Revision string
	Platform string // linux/amd64
	Built    time.Time
}

// The parts of CycloneDX 1.5 that are written.
type (
	bom struct {
		Schema      string         `json:"$schema"`
		Format      string         `json:"bomFormat"`
		SpecVersion string         `json:"specVersion"`
		Version     int            `json:"version"`
		Metadata    bomMetadata    `json:"metadata"`
		Components  []bomComponent `json:"components"`
	}
	bomMetadata struct {
		Timestamp string       `json:"timestamp"`
		Component bomComponent `json:"component"`
	}
	bomComponent struct {
		Type       string        `json:"type"`
		Ref        string        `json:"bom-ref"`
		Name       string        `json:"name"`
		Version    string        `json:"version,omitempty"`
		PURL       string        `json:"purl,omitempty"`
		Hashes     []bomHash     `json:"hashes,omitempty"`
		Licences   []bomLicence  `json:"licenses,omitempty"`
		Properties []bomProperty `json:"properties,omitempty"`
	}
	bomHash struct {
		Alg     string `json:"alg"`
		Content string `json:"content"`
	}
	bomLicence struct {
		Licence bomLicenceID `json:"license"`
	}
	bomLicenceID struct {
		ID   string `json:"id,omitempty"`
		Name string `json:"name,omitempty"`
	}
	bomProperty struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
)

// WriteSBOM writes the bill of materials of b as CycloneDX JSON. The same input
// gives the same bytes: there is no serial number, and the time is the build's.
func WriteSBOM(w io.Writer, b Binary, components []Component) error {
	doc := bom{
		Schema: "http://cyclonedx.org/schema/bom-1.5.schema.json", Format: "CycloneDX", SpecVersion: "1.5", Version: 1,
		Metadata: bomMetadata{Timestamp: b.Built.UTC().Format(time.RFC3339), Component: bomComponent{
			Type: "application", Ref: "weir", Name: "weir", Version: b.Version,
			Licences:   []bomLicence{{bomLicenceID{ID: "Apache-2.0"}}},
			Properties: []bomProperty{{"weir:platform", b.Platform}, {"weir:revision", b.Revision}},
		}},
	}
	for _, c := range components {
		entry := bomComponent{Type: "library", Ref: c.Name + "@" + c.Version, Name: c.Name, Version: c.Version, PURL: c.PURL}
		if c.Version == "" {
			entry.Ref = c.Name
		}
		if sum, ok := strings.CutPrefix(c.Sum, "h1:"); ok {
			raw, err := base64.StdEncoding.DecodeString(sum)
			if err != nil {
				return fmt.Errorf("checksum of %s: %w", c.Name, err)
			}
			entry.Hashes = []bomHash{{"SHA-256", hex.EncodeToString(raw)}}
		}
		for _, id := range c.ids() {
			if strings.HasPrefix(id, "LicenseRef-") {
				entry.Licences = append(entry.Licences, bomLicence{bomLicenceID{Name: strings.TrimPrefix(id, "LicenseRef-")}})
			} else {
				entry.Licences = append(entry.Licences, bomLicence{bomLicenceID{ID: id}})
			}
		}
		doc.Components = append(doc.Components, entry)
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(doc); err != nil {
		return fmt.Errorf("write the bill of materials: %w", err)
	}
	return nil
}
