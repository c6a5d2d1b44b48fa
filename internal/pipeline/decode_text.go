package pipeline

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// text checks a string by its rules and gives the value to keep: a path
// becomes absolute, everything else stays.
func (l *loader) text(s scalar, f *field, owner string) (string, error) {
	if s.text == "" {
		// Saying "none" is a choice for optional text; a variable may be empty.
		if f.rules.required {
			return "", fmt.Errorf("%s is empty", f.key)
		}
		return "", nil
	}
	if len(f.rules.enum) > 0 && !slices.Contains(f.rules.enum, s.text) {
		return s.text, errors.New(notOneOf(owner, f.key, s, f.rules.enum))
	}
	if f.rules.kind == "path" {
		abs, err := l.path(s.text)
		if err != nil {
			return "", fmt.Errorf("%s: %s %w", f.key, s.shown(), err)
		}
		return abs, nil
	}
	if f.rules.kind == "location" {
		at, err := l.location(s.text)
		if err != nil {
			return "", fmt.Errorf("%s: %s %w", f.key, s.shown(), err)
		}
		return at, nil
	}
	if f.rules.kind == kindColumnType {
		return l.columnType(s, f, owner)
	}
	if err := checkKind(s.text, f.rules.kind); err != nil {
		return s.text, fmt.Errorf("%s: %s %w", f.key, s.shown(), err)
	}
	if f.rules.kind == "instant" && len(s.text) == len(time.DateOnly) && strings.Contains(s.text, "-") {
		return s.text + "T00:00:00Z", nil
	}
	return s.text, nil
}

var (
	fileName  = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)
	topicName = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)
	scheme    = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]+:`)
)

// Longest names: file systems take 255 bytes, of which the checkpoint's own
// names need some; Kafka takes 249.
const (
	nameMax  = 128
	topicMax = 249
)

// checkKind checks a text by the kind of its key.
func checkKind(text, kind string) error {
	switch kind {
	case "name":
		if !fileName.MatchString(text) || strings.HasSuffix(text, ".") || len(text) > nameMax {
			return fmt.Errorf("is not a name that is also a file name: letters, digits, . _ - (at most %d), no . at either end", nameMax)
		}
	case "topic":
		if !topicName.MatchString(text) || len(text) > topicMax || text == "." || text == ".." {
			return fmt.Errorf("is not a topic name: letters, digits, . _ - (at most %d)", topicMax)
		}
	case "table":
		ns, name, ok := strings.Cut(text, ".")
		if !ok || !identifier.MatchString(ns) || !identifier.MatchString(name) {
			return errors.New("is not a table name: want namespace.table, each of letters, digits and _")
		}
	case "bucket":
		if !bucketName.MatchString(text) {
			return errors.New("is not the name of a bucket")
		}
	case "column":
		if !identifier.MatchString(text) {
			return errors.New("is not a column name: letters, digits and _, no digit first")
		}
	case "jsonpath":
		return checkJSONPath(text)
	case "instant":
		_, err := parseInstant(text)
		return err
	case "regexp":
		if _, err := regexp.Compile(text); err != nil {
			return errors.New("is not a regular expression (RE2)")
		}
	case "url":
		u, err := url.Parse(text)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return errors.New("is not an http or https URL")
		}
		if u.User != nil {
			return errors.New("holds a user name or a password, which would end up in logs; remove it")
		}
	}
	return nil
}

// path resolves a local path against the pipeline file's folder.
func (l *loader) path(text string) (string, error) {
	if rest, ok := strings.CutPrefix(text, "file:"); ok {
		text = strings.TrimPrefix(rest, "//")
	} else if m := scheme.FindString(text); m != "" {
		return "", fmt.Errorf("has to be a local path, not %s", m)
	}
	if text == "" {
		return "", errors.New("names no folder")
	}
	if !filepath.IsAbs(text) {
		text = filepath.Join(l.dir, text)
	}
	return filepath.Clean(text), nil
}

// words gives the texts of a list, or of one comma-separated text.
func (l *loader) words(n ast.Node, key string, add func(s scalar, at place, key string)) bool {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		s, at, ok := l.scalar(n, key)
		if !ok {
			return false
		}
		for _, term := range strings.Split(s.text, ",") {
			one := s
			one.text = strings.TrimSpace(term)
			if !s.interpolated {
				one.raw = one.text
			}
			add(one, at, key)
		}
		return true
	}
	for i, item := range seq.Values {
		path := fmt.Sprintf("%s[%d]", key, i)
		l.places[path] = placeOf(item)
		val := l.unwrap(item, path)
		if val == nil {
			continue
		}
		if s, at, ok := l.scalar(val, path); ok {
			add(s, at, path)
		}
	}
	return true
}

// decodeWords fills a list of names.
func (l *loader) decodeWords(n ast.Node, out *[]string, key string, f *field) {
	*out = []string{}
	ok := l.words(n, key, func(s scalar, at place, key string) {
		switch {
		case s.file:
			l.fault(at, key, "%s is not a secret, so it cannot come from ${file:…}; use a variable", f.key)
		case s.text == "":
			l.fault(at, key, "%s: an empty name", f.key)
		default:
			if err := checkKind(s.text, f.rules.kind); err != nil {
				l.fault(at, key, "%s: %s %s", f.key, s.shown(), err)
			} else if slices.Contains(*out, s.text) {
				l.fault(at, key, "%s: %s is named twice", f.key, s.shown())
			}
		}
		*out = append(*out, s.text)
	})
	if ok && len(*out) == 0 {
		l.faultKey(key, "%s is empty", f.key)
	}
}

// decodeText fills a mapping of free texts (table properties, topic settings).
func (l *loader) decodeText(n ast.Node, out *map[string]string, key string) {
	pairs, ok := l.mapping(n, key, key)
	if !ok {
		return
	}
	*out = map[string]string{}
	for _, p := range pairs {
		path := child(key, p.key)
		l.places[path] = p.at
		val := l.unwrap(p.value, path)
		if val == nil {
			continue
		}
		s, at, ok := l.scalar(val, path)
		if !ok {
			continue
		}
		if s.file {
			l.fault(at, path, "%s is not a secret, so it cannot come from ${file:…}; use a variable", p.key)
			continue
		}
		(*out)[p.key] = s.text
	}
}

// decodeSecrets fills a mapping of secrets (headers).
func (l *loader) decodeSecrets(n ast.Node, out *map[string]Secret, key string) {
	pairs, ok := l.mapping(n, key, key)
	if !ok {
		return
	}
	*out = map[string]Secret{}
	for _, p := range pairs {
		path := child(key, p.key)
		l.places[path] = p.at
		val := l.unwrap(p.value, path)
		if val == nil {
			continue
		}
		if s, _, ok := l.scalar(val, path); ok {
			(*out)[p.key] = NewSecret(s.text)
		}
	}
}

// decodePartitions fills 0-15, a number, or a list of both.
func (l *loader) decodePartitions(n ast.Node, out *Partitions, key string) {
	l.words(n, key, func(s scalar, at place, key string) {
		ps, err := parsePartitions(s.text)
		if err != nil {
			l.fault(at, key, "partitions: %s %s", s.shown(), err)
			return
		}
		*out = append(*out, ps...)
	})
	sorted, err := out.normalise()
	if err != nil {
		l.faultKey(key, "partitions: the set %s", err)
		return
	}
	*out = sorted
}

// decodePartitionBy fills the terms of a table's partitioning. A comma may
// stand inside bucket(16, key), so this is always a list.
func (l *loader) decodePartitionBy(n ast.Node, out *[]PartitionField, key string) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		l.fault(placeOf(n), key, `%s has to be a list: ["day(timestamp)"]`, key)
		return
	}
	for i, item := range seq.Values {
		path := fmt.Sprintf("%s[%d]", key, i)
		l.places[path] = placeOf(item)
		val := l.unwrap(item, path)
		if val == nil {
			continue
		}
		s, at, ok := l.scalar(val, path)
		if !ok {
			continue
		}
		pf, err := ParsePartitionField(s.text)
		if err != nil {
			l.fault(at, path, "partitionBy: %s %s", s.shown(), err)
		}
		*out = append(*out, pf)
	}
}

// decodeStarting fills earliest, latest, or offsets by topic and partition.
func (l *loader) decodeStarting(n ast.Node, out *StartingOffsets, key string) {
	if _, ok := n.(*ast.StringNode); ok {
		s, at, ok := l.scalar(n, key)
		if !ok {
			return
		}
		l.places[key] = at
		switch s.text {
		case Earliest, Latest:
			out.Mode = s.text
			return
		}
		if !strings.HasPrefix(strings.TrimSpace(s.text), "{") {
			l.fault(at, key, `startingOffsets: %s is not one of earliest, latest, {"topic":{"0":23,"1":-2}}`, s.shown())
			return
		}
	}
	if m := l.offsets(n, key, false); m != nil {
		*out = StartingOffsets{Mode: Specific, Offsets: m}
	}
}

// offsets reads topic → partition → number, as a mapping or as Spark's JSON
// text. times says that the numbers are points in time.
func (l *loader) offsets(n ast.Node, key string, times bool) map[string]map[int32]int64 {
	if n.Type() == ast.StringType || n.Type() == ast.LiteralType {
		s, at, ok := l.scalar(n, key)
		if !ok {
			return nil
		}
		m, err := parseOffsetsJSON(s.text)
		if err != nil {
			l.fault(at, key, "%s: %s %s", key, s.shown(), err)
			return nil
		}
		return m
	}
	pairs, ok := l.mapping(n, key, key)
	if !ok {
		return nil
	}
	out := map[string]map[int32]int64{}
	for _, p := range pairs {
		path := child(key, p.key)
		l.places[path] = p.at
		out[p.key] = map[int32]int64{}
		val := l.unwrap(p.value, path)
		if val == nil {
			continue
		}
		parts, ok := l.mapping(val, path, path)
		if !ok {
			continue
		}
		for _, q := range parts {
			l.offset(q, child(path, q.key), times, out[p.key])
		}
	}
	if len(out) == 0 {
		l.faultKey(key, "%s names no topic", key)
		return nil
	}
	return out
}

// offset reads one partition's entry.
func (l *loader) offset(q pair, path string, times bool, into map[int32]int64) {
	l.places[path] = q.at
	part, err := strconv.ParseInt(q.key, 10, 32)
	if err != nil || part < 0 || part > maxPartition {
		l.fault(q.at, path, "%q is not a partition number", clip(q.key))
		return
	}
	val := l.unwrap(q.value, path)
	if val == nil {
		return
	}
	s, at, ok := l.scalar(val, path)
	if !ok {
		return
	}
	var v int64
	if times {
		var ms Millis
		ms, err = parseInstant(s.text)
		v = int64(ms)
	} else {
		v, err = parseInt(s.text, 64)
	}
	if err != nil {
		l.fault(at, path, "partition %d: %s %s", part, s.shown(), err)
		return
	}
	into[int32(part)] = v
}
