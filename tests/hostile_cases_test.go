package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// hostile is one record that nobody should send, and where silver must put it.
type hostile struct {
	name    string
	key     []byte
	value   []byte
	headers []kgo.RecordHeader
	stamp   time.Time // the record's; zero is now
	place   string    // silver, filtered, duplicate, or dead + reason
	// want are columns of the silver row.
	want row
}

// dead stands before the reason of a dead letter of silver.
const dead = "dead "

// wide is a number of bytes that no terminal should ever see.
const wide = 20 << 20

// edit is an edit that silver keeps, with one member more or put in place of
// another: extra is JSON text, "name":value, or empty.
func edit(n int, dt string, extra string) []byte {
	members := []string{
		fmt.Sprintf(`"meta":{"id":%q,"dt":%q,"domain":"a.example.org"}`, hostileID(n), dt),
		`"type":"edit"`, `"title":"T"`, `"wiki":"awiki"`,
	}
	if extra != "" {
		name, _, _ := strings.Cut(extra, ":")
		kept := members[:0]
		for _, m := range members {
			if !strings.HasPrefix(m, name+":") {
				kept = append(kept, m)
			}
		}
		members = append(kept, extra)
	}
	return []byte("{" + strings.Join(members, ",") + "}")
}

func hostileID(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

// hostileRecords are the records of one hostile producer; now is about the time
// of the batches that will read them.
func hostileRecords(now time.Time) []hostile {
	at := now.UTC().Format(time.RFC3339)
	n := 0
	next := func(extra string) []byte { n++; return edit(n, at, extra) }
	timed := func(dt string) []byte { n++; return edit(n, dt, "") }
	micros := func(s string) int64 {
		t, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			panic(err)
		}
		return t.UnixMicro()
	}
	cases := []hostile{
		{name: "an ordinary edit", value: next(""), place: silver, want: row{"title": "T", "minor": nil}},

		// Bytes that are not text.
		{name: "invalid UTF-8", value: next("\"title\":\"\xff\xfe\""), place: dead + "invalid_utf8"},
		{name: "a surrogate in UTF-8", value: next("\"title\":\"\xed\xa0\x80\""), place: dead + "invalid_utf8"},
		{name: "an overlong NUL", value: next("\"title\":\"\xc0\x80\""), place: dead + "invalid_utf8"},
		{name: "a lone high surrogate", value: next(`"title":"\ud800"`), place: dead + "lone_surrogate"},
		{name: "a lone low surrogate in a field nobody reads", value: next(`"x":"\udc00\ud800"`), place: dead + "lone_surrogate"},
		{name: "a NUL byte in a text", value: next("\"title\":\"a\x00b\""), place: dead + "invalid_json"},
		{name: "a NUL byte after the text", value: append(next(""), 0), place: dead + "invalid_json"},
		{name: "an escaped NUL", value: next(`"title":"a\u0000b"`), place: silver, want: row{"title": "a\x00b"}},
		{name: "a byte order mark", value: append([]byte("\xef\xbb\xbf"), next("")...), place: dead + "invalid_json"},
		{name: "direction marks and joiners", value: next("\"title\":\"\u200e\u200f\u200cع\u202e\""), place: silver, want: row{"title": "\u200e\u200f\u200cع\u202e"}},
		{name: "UTF-16", value: []byte("\xff\xfe{\x00}\x00"), place: dead + "invalid_json"},

		// Not one JSON text.
		{name: "duplicate keys", value: next(`"title":"a","title":"b"`), place: dead + "duplicate_key"},
		{name: "duplicate keys, one escaped, deep inside", value: next(`"x":{"a":[{"k":1,"\u006b":2}]}`), place: dead + "duplicate_key"},
		{name: "half a document", value: next("")[:40], place: dead + "invalid_json"},
		{name: "two documents", value: append(next(""), []byte("{}")...), place: dead + "invalid_json"},
		{name: "a line end after the document", value: append(next(""), '\r', '\n'), place: silver},
		{name: "NaN", value: next(`"x":NaN`), place: dead + "invalid_json"},
		{name: "10,000 arrays deep", value: next(`"x":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000)), place: dead + "too_deep"},
		{name: "10,000 objects deep", value: next(`"x":` + strings.Repeat(`{"a":`, 10_000) + "1" + strings.Repeat("}", 10_000)), place: dead + "too_deep"},
		{name: "a million brackets", value: bytes.Repeat([]byte("["), 1_000_000), place: dead + "too_deep"},

		// JSON, and no event.
		{name: "null", value: []byte("null"), place: filtered},
		{name: "an array", value: []byte("[]"), place: filtered},
		{name: "a number", value: []byte("1e999999"), place: filtered},
		{name: "an object without anything", value: []byte("{}"), place: filtered},
		{name: "keys of another case", value: []byte(`{"Meta":{},"TYPE":"edit"}`), place: filtered},
		{name: "a type that is a number", value: []byte(`{"type":142}`), place: dead + "type_mismatch"},
		{name: "meta is an array", value: next(`"meta":["id","dt"]`), place: dead + "missing_required"},
		{name: "meta is null", value: next(`"meta":null`), place: dead + "missing_required"},
		{name: "an id that is a number", value: next(`"meta":{"id":7,"dt":"` + at + `"}`), place: dead + "type_mismatch"},

		// Numbers.
		{name: "2^53+1", value: next(`"revision":{"old":9007199254740993,"new":-9007199254740993}`), place: silver, want: row{"revision_old": int64(1<<53 + 1), "revision_new": int64(-1<<53 - 1)}},
		{name: "2^63-1 and -2^63", value: next(`"revision":{"old":9223372036854775807,"new":-9223372036854775808}`), place: silver, want: row{"revision_old": int64(1<<63 - 1), "revision_new": int64(-1 << 63)}},
		{name: "2^63", value: next(`"revision":{"new":9223372036854775808}`), place: dead + "number_out_of_range"},
		{name: "20 digits", value: next(`"length":{"new":12345678901234567890}`), place: dead + "number_out_of_range"},
		{name: "20 digits in a field nobody reads", value: next(`"x":12345678901234567890`), place: silver},
		{name: "1e400 in a field nobody reads", value: next(`"x":-1E+400`), place: silver},
		{name: "a whole number with an exponent", value: next(`"length":{"new":12.50e2}`), place: silver, want: row{"length_new": int64(1250)}},
		{name: "a fraction where a whole number belongs", value: next(`"length":{"new":1.5}`), place: dead + "type_mismatch"},
		{name: "a namespace beyond 32 bits", value: next(`"namespace":2147483648`), place: dead + "number_out_of_range"},
		{name: "a leading zero", value: next(`"namespace":01`), place: dead + "invalid_json"},
		{name: "a number in a text", value: next(`"namespace":"1"`), place: dead + "type_mismatch"},
		{name: "a boolean in a text", value: next(`"minor":"true"`), place: dead + "type_mismatch"},

		// Values of other sizes.
		{name: "an empty value", value: []byte{}, place: dead + "empty_value"},
		{name: "a null value", value: nil, key: []byte("tombstone"), place: dead + "null_value"},
		{name: "white space", value: []byte(" \t\r\n"), place: dead + "invalid_json"},
		{name: "1 MiB", value: next(`"comment":"` + strings.Repeat("ü", 1<<19) + `"`), place: silver, want: row{"comment": strings.Repeat("ü", 1<<19)}},
		{name: "20 MiB", value: next(`"comment":"` + strings.Repeat("x", wide) + `"`), place: silver, want: row{"comment": strings.Repeat("x", wide)}},
		{name: "20 MiB that do not compress", value: noise(wide), place: dead + "invalid_json"},
		{name: "an id of 100 KiB", value: []byte(`{"meta":{"id":"` + strings.Repeat("i", 100<<10) + `","dt":"` + at + `"},"type":"new"}`), place: silver},
		{name: "an id of 100 KiB again", value: []byte(`{"meta":{"id":"` + strings.Repeat("i", 100<<10) + `","dt":"` + at + `"},"type":"edit"}`), place: duplicate},
		{name: "an empty id", value: next(`"meta":{"id":"","dt":"` + at + `"}`), place: silver, want: row{"event_id": ""}},

		// Times.
		{name: "1969", value: timed("1969-12-31T23:59:59.999999Z"), place: silver, want: row{"event_time": int64(-1)}},
		{name: "the year 0", value: timed("0000-01-01T00:00:00Z"), place: silver, want: row{"event_time": micros("0000-01-01T00:00:00Z")}},
		{name: "the year 9999", value: timed("9999-12-31T23:59:59Z"), place: dead + "future_event"},
		{name: "the year 10000", value: timed("10000-01-01T00:00:00Z"), place: dead + "bad_timestamp"},
		{name: "next week", value: timed(now.Add(7 * 24 * time.Hour).UTC().Format(time.RFC3339)), place: dead + "future_event"},
		{name: "in half an hour", value: timed(now.Add(30 * time.Minute).UTC().Format(time.RFC3339)), place: silver},
		{name: "a leap second", value: timed("2016-12-31T23:59:60Z"), place: silver, want: row{"event_time": micros("2017-01-01T00:00:00Z")}},
		{name: "a leap second in another zone", value: timed("2017-01-01T05:29:60.5+05:30"), place: silver, want: row{"event_time": micros("2017-01-01T00:00:00.5Z")}},
		{name: "a 60th second that is none", value: timed("2026-03-03T11:15:60Z"), place: dead + "bad_timestamp"},
		{name: "an offset", value: timed("2026-03-03T16:45:25.048123999+05:30"), place: silver, want: row{"event_time": micros("2026-03-03T11:15:25.048123Z")}},
		{name: "an offset without a colon", value: timed("2026-03-03T11:15:25+0000"), place: dead + "bad_timestamp"},
		{name: "no offset", value: timed("2026-03-03T11:15:25"), place: dead + "bad_timestamp"},
		{name: "lower case", value: timed("2026-03-03t11:15:25z"), place: silver, want: row{"event_time": micros("2026-03-03T11:15:25Z")}},
		{name: "February 29th of 2025", value: timed("2025-02-29T00:00:00Z"), place: dead + "bad_timestamp"},
		{name: "hour 24", value: timed("2026-03-03T24:00:00Z"), place: dead + "bad_timestamp"},
		{name: "an empty time", value: timed(""), place: dead + "bad_timestamp"},
		{name: "a time that is a number", value: next(`"meta":{"id":"` + hostileID(9000) + `","dt":1772536525}`), place: dead + "type_mismatch"},

		// Records as such.
		{name: "a null key", key: nil, value: next(""), place: silver},
		{name: "an empty key", key: []byte{}, value: next(""), place: silver},
		{name: "a key that is no text", key: []byte{0, 0xff, 0xfe}, value: next(""), place: silver},
		{name: "headers that repeat, are null, empty, and no text", value: next(""), place: silver, headers: []kgo.RecordHeader{
			{Key: "a", Value: []byte("1")}, {Key: "a", Value: nil}, {Key: "a", Value: []byte{}}, {Key: "", Value: []byte{0xff, 0}}, {Key: "a", Value: []byte("1")},
		}},
		{name: "a record of 1969", value: next(""), stamp: time.UnixMilli(-1), place: silver},
		{name: "a record of 2200", value: next(""), stamp: time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC), place: silver},
		{name: "a record of 1970", value: next(""), stamp: time.UnixMilli(0), place: silver},
	}
	return append(cases,
		hostile{name: "an id for the second time", value: edit(1, at, `"title":"again"`), place: duplicate},
		hostile{name: "an id of a dead letter, well formed", value: edit(2, at, ""), place: silver})
}

// noise is n bytes that begin no JSON text and do not compress.
func noise(n int) []byte {
	b := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(b)
	b[0] = '\x01'
	return b
}

// expectColumns says what a silver row should be and is not.
func expectColumns(got, want row) []string {
	var faults []string
	for name, v := range want {
		b, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		a, err := json.Marshal(got[name])
		if err != nil {
			panic(err)
		}
		if !bytes.Equal(a, b) {
			faults = append(faults, fmt.Sprintf("%s is %.80s, not %.80s", name, a, b))
		}
	}
	return faults
}
