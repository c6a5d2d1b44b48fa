package release

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
)

// Allowed are the licences, by SPDX id, under which code may be linked: all let
// a binary be given away under the Apache licence with their notices beside it.
var Allowed = []string{
	"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MPL-2.0", "Unlicense", "Zlib",
	publicDomain,
}

// publicDomain is what SPDX has no id for: SQLite's own words.
const publicDomain = "LicenseRef-Public-Domain"

// Licence is one licence file of a module.
type Licence struct {
	// ID is the SPDX id, or empty where the text is none that is known.
	ID string
	// File is its path below the module's folder.
	File string
	Text string
}

// fileBytesMax bounds what is read of a licence file.
const fileBytesMax = 1 << 20

// mark recognises a licence: its text, in lower case with single spaces, holds
// all of has and none of not.
type mark struct {
	id       string
	has, not []string
}

// marks are tried in order; a refused licence comes before the one whose words
// it repeats.
var marks = []mark{
	{id: "AGPL", has: []string{"gnu affero general public license"}, not: []string{"mozilla public license"}},
	{id: "LGPL", has: []string{"gnu lesser general public license"}, not: []string{"mozilla public license"}},
	{id: "GPL", has: []string{"gnu general public license"}, not: []string{"mozilla public license"}},
	{id: "BUSL-1.1", has: []string{"business source license"}},
	{id: "SSPL-1.0", has: []string{"server side public license"}},
	{id: "Elastic-2.0", has: []string{"elastic license"}},
	{id: "Commons-Clause", has: []string{"commons clause"}},
	{id: "CC-BY-NC", has: []string{"noncommercial"}},
	{id: "MPL-2.0", has: []string{"mozilla public license", "2.0"}},
	{id: "Apache-2.0", has: []string{"apache license", "version 2.0"}},
	{id: "MIT", has: []string{"permission is hereby granted, free of charge, to any person obtaining a copy",
		"the above copyright notice and this permission notice shall be included"}},
	{id: "BSD-3-Clause", has: []string{"redistribution and use in source and binary forms", "endorse or promote products"}},
	{id: "BSD-2-Clause", has: []string{"redistribution and use in source and binary forms"}, not: []string{"advertising materials"}},
	{id: "ISC", has: []string{"permission to use, copy, modify, and/or distribute this software for any purpose with or without fee",
		"provided that the above copyright notice"}},
	{id: "ISC", has: []string{"permission to use, copy, modify, and distribute this software for any purpose with or without fee",
		"provided that the above copyright notice"}},
	{id: "0BSD", has: []string{"permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby granted."}},
	{id: "Unlicense", has: []string{"this is free and unencumbered software released into the public domain"}},
	{id: publicDomain, has: []string{"has been dedicated to the public domain by the authors"}},
	{id: "CC0-1.0", has: []string{"cc0 1.0 universal"}},
	{id: "Zlib", has: []string{"this software is provided 'as-is', without any express or implied warranty", "altered source versions must be plainly marked"}},
}

// Classify names a licence text, empty where it is none of those known.
func Classify(text string) string {
	plain := strings.Join(strings.Fields(strings.ToLower(text)), " ")
	for _, m := range marks {
		holds := func(s string) bool { return strings.Contains(plain, s) }
		if !slices.ContainsFunc(m.has, func(s string) bool { return !holds(s) }) && !slices.ContainsFunc(m.not, holds) {
			return m.id
		}
	}
	return ""
}

// Licences reads the licence files of a module: those at its root and in every
// folder between it and a linked package, since some modules carry other
// people's code with a licence of its own. Files that only name copyright
// holders (NOTICE, AUTHORS) are not licences; see Notices.
func Licences(m Module) ([]Licence, error) {
	var out []Licence
	for _, rel := range folders(m) {
		names, err := filesLike(filepath.Join(m.Dir, rel), "license", "licence", "copying", "unlicense")
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			text, err := readFile(filepath.Join(m.Dir, rel, name))
			if err != nil {
				return nil, err
			}
			out = append(out, Licence{ID: Classify(text), File: filepath.ToSlash(filepath.Join(rel, name)), Text: text})
		}
	}
	return out, nil
}

// Notices are the texts of the module's NOTICE files, which the Apache licence
// wants handed on.
func Notices(m Module) ([]string, error) {
	names, err := filesLike(m.Dir, "notice")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, name := range names {
		text, err := readFile(filepath.Join(m.Dir, name))
		if err != nil {
			return nil, err
		}
		out = append(out, text)
	}
	return out, nil
}

// Check says what forbids linking m, nil where nothing does.
func Check(m Module) error {
	licences, err := Licences(m)
	if err != nil {
		return err
	}
	root := false
	for _, l := range licences {
		root = root || !strings.Contains(l.File, "/")
		switch {
		case l.ID == "":
			return fmt.Errorf("%s %s: %s is no licence that this check knows: read it, then add what is typical of it to marks", m.Path, m.Version, l.File)
		case !slices.Contains(Allowed, l.ID):
			return fmt.Errorf("%s %s: %s is %s, which is not allowed", m.Path, m.Version, l.File, l.ID)
		}
	}
	if !root {
		return fmt.Errorf("%s %s has no licence file", m.Path, m.Version)
	}
	return nil
}

// folders are the module's root, the folders of its linked packages and those
// between.
func folders(m Module) []string {
	seen := map[string]bool{".": true}
	for _, p := range m.Packages {
		for ; p != "." && p != ""; p = filepath.Dir(p) {
			seen[p] = true
		}
	}
	out := make([]string, 0, len(seen))
	for p := range seen {
		out = append(out, p)
	}
	sort.Strings(out)
	return out
}

// filesLike are the plain files of dir whose names begin with one of the words,
// in any case, with no extension or a text's.
func filesLike(dir string, words ...string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for licences: %w", err)
	}
	var out []string
	for _, e := range entries {
		name := strings.ToLower(e.Name())
		if name == "license-logo" { // of a picture in a readme
			continue
		}
		if e.IsDir() || slices.Contains([]string{".go", ".tmpl", ".json", ".yaml", ".yml", ".sh", ".py"}, filepath.Ext(name)) {
			continue
		}
		if slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(name, w) }) {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

func readFile(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("read a licence: %w", err)
	}
	if info.Size() > fileBytesMax {
		return "", fmt.Errorf("read a licence: %s has %d bytes, more than %d", path, info.Size(), fileBytesMax)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read a licence: %w", err)
	}
	return string(text), nil
}
