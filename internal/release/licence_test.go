package release

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryLinkedModuleHasAnAllowedLicence is the project's licence check.
func TestEveryLinkedModuleHasAnAllowedLicence(t *testing.T) {
	modules, err := Linked(t.Context(), "../..", "", "./...")
	if err != nil {
		t.Fatal(err)
	}
	if len(modules) < 20 {
		t.Fatalf("only %d modules are linked: the list is not the whole one", len(modules))
	}
	for _, m := range modules {
		if err := Check(m); err != nil {
			t.Error(err)
		}
	}
}

func TestALicenceIsToldByItsText(t *testing.T) {
	for text, want := range map[string]string{
		"Apache License\n   Version 2.0, January 2004": "Apache-2.0",
		"Permission is hereby granted, free of charge, to any\nperson obtaining a copy … The above copyright notice and this permission notice shall be included": "MIT",
		"Redistribution and use in source and binary forms … to endorse or promote products":                                                                      "BSD-3-Clause",
		"Redistribution and use in source and binary forms, with or without":                                                                                      "BSD-2-Clause",
		"Redistribution and use in source and binary forms … All advertising materials mentioning":                                                                "",
		"Mozilla Public License Version 2.0 … GNU General Public License, Version 2.0, the GNU Lesser General Public License":                                     "MPL-2.0",
		"GNU AFFERO GENERAL PUBLIC LICENSE":                                    "AGPL",
		"GNU LESSER GENERAL PUBLIC LICENSE":                                    "LGPL",
		"GNU GENERAL PUBLIC LICENSE":                                           "GPL",
		"Business Source License 1.1 … Apache License Version 2.0":             "BUSL-1.1",
		"“Commons Clause” License Condition v1.0 … Apache License Version 2.0": "Commons-Clause",
		"Everybody may do as I say":                                            "",
	} {
		if got := Classify(text); got != want {
			t.Errorf("%.40q is taken for %q, want %q", text, got, want)
		}
	}
}

func TestACopiedPackageWithARefusedLicenceOfItsOwnIsFound(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m := Module{Path: "example.org/m", Version: "v1.0.0", Dir: dir, Packages: []string{"", "internal/copied/deep"}}
	if err := Check(m); err == nil || !strings.Contains(err.Error(), "no licence file") {
		t.Fatalf("a module without a licence: %v", err)
	}
	write("LICENSE", "Apache License Version 2.0")
	write("internal/copied/deep/deep.go", "package deep")
	if err := Check(m); err != nil {
		t.Fatal(err)
	}
	write("unlinked/LICENSE", "GNU GENERAL PUBLIC LICENSE") // of a package that is not linked
	if err := Check(m); err != nil {
		t.Fatal(err)
	}
	write("internal/copied/COPYING", "GNU GENERAL PUBLIC LICENSE")
	if err := Check(m); err == nil || !strings.Contains(err.Error(), "internal/copied/COPYING is GPL") {
		t.Fatalf("a copied package under the GPL: %v", err)
	}
}
