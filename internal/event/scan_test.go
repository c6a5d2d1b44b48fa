package event

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// sampleFile is a file of real events beside the checkout; tests that want it
// skip where it is not there.
var sampleFile = filepath.Join("..", "..", "..", "shared", "samples", "recentchange.jsonl")

func sample(t testing.TB) [][]byte {
	f, err := os.Open(sampleFile)
	if err != nil {
		t.Skipf("the sample of real events is not at %s: %v", sampleFile, err)
	}
	defer f.Close()
	var docs [][]byte
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		docs = append(docs, bytes.Clone(sc.Bytes()))
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	return docs
}

// hostile are documents with the reason that each must be refused for, OK
// where it is valid. They are the fuzz corpus's seeds as well.
var hostile = []struct {
	name string
	doc  string
	want Reason
}{
	{"empty", "", InvalidJSON},
	{"only white space", " \t\r\n", InvalidJSON},
	{"byte order mark", "\xef\xbb\xbf{}", InvalidJSON},
	{"NUL as a document", "\x00", InvalidJSON},
	{"NUL after the document", "{}\x00", InvalidJSON},
	{"NUL within a string", "{\"a\":\"x\x00y\"}", InvalidJSON},
	{"escaped NUL", `{"a":"x\u0000y"}`, OK},
	{"escaped NUL in a key", `{"a\u0000":1,"a":2}`, OK},
	{"newline within a string", "{\"a\":\"x\ny\"}", InvalidJSON},
	{"delete character", "{\"a\":\"\x7f\"}", OK},
	{"invalid UTF-8 in a value", "{\"a\":\"\xff\"}", InvalidUTF8},
	{"invalid UTF-8 in a key", "{\"\xc3(\":1}", InvalidUTF8},
	{"cut UTF-8", "{\"a\":\"\xe2\x82\"}", InvalidUTF8},
	{"cut UTF-8 at the end", "\"abcdefgh\xf0\x9f\x98", InvalidUTF8},
	{"overlong slash", "{\"a\":\"\xc0\xaf\"}", InvalidUTF8},
	{"overlong three bytes", "{\"a\":\"\xe0\x9f\xbf\"}", InvalidUTF8},
	{"beyond U+10FFFF", "{\"a\":\"\xf4\x90\x80\x80\"}", InvalidUTF8},
	{"surrogate as UTF-8", "{\"a\":\"\xed\xa0\x80\"}", InvalidUTF8},
	{"bytes outside strings", "{\xc3\xa9:1}", InvalidJSON},
	{"no-break space between tokens", "{\u00a0}", InvalidJSON},
	{"lone high surrogate", `{"a":"\ud800"}`, LoneSurrogate},
	{"lone low surrogate", `{"a":"\udc00x"}`, LoneSurrogate},
	{"two high surrogates", `{"a":"\ud800\ud800"}`, LoneSurrogate},
	{"swapped surrogates", `{"a":"\udc00\ud800"}`, LoneSurrogate},
	{"lone surrogate in a key", `{"\udfff":1}`, LoneSurrogate},
	{"lone surrogate in an unread field", `{"zzz":[{"y":"\uD83D"}]}`, LoneSurrogate},
	{"surrogate pair", `{"a":"\ud83d\ude00"}`, OK},
	{"surrogate pair of mixed case", `{"a":"\uD83D\uDe00 \u00E9"}`, OK},
	{"duplicate key at the root", `{"a":1,"b":2,"a":3}`, DuplicateKey},
	{"duplicate key below", `{"x":{"y":{"k":1,"k":1}}}`, DuplicateKey},
	{"duplicate key in an array", `[1,{"k":1,"k":2}]`, DuplicateKey},
	{"duplicate key by escape", `{"meta":1,"m\u0065ta":2}`, DuplicateKey},
	{"duplicate empty key", `{"":1,"":2}`, DuplicateKey},
	{"keys that differ by case", `{"a":1,"A":2}`, OK},
	{"keys that differ in the middle", `{"abcdefgh1abcdefgh":1,"abcdefgh2abcdefgh":2}`, OK},
	{"same key in two objects", `{"a":{"a":{"a":1}},"b":{"a":1}}`, OK},
	{"trailing comma in an object", `{"a":1,}`, InvalidJSON},
	{"trailing comma in an array", `[1,]`, InvalidJSON},
	{"leading comma", `[,1]`, InvalidJSON},
	{"missing colon", `{"a" 1}`, InvalidJSON},
	{"missing comma", `[1 2]`, InvalidJSON},
	{"single quotes", `{'a':1}`, InvalidJSON},
	{"bare key", `{a:1}`, InvalidJSON},
	{"comment", `{"a":1/*x*/}`, InvalidJSON},
	{"two documents", `{} {}`, InvalidJSON},
	{"open object", `{"a":1`, InvalidJSON},
	{"open array", `[[]`, InvalidJSON},
	{"open string", `"abc`, InvalidJSON},
	{"open escape", `"abc\`, InvalidJSON},
	{"wrong bracket", `[1}`, InvalidJSON},
	{"unknown escape", `"\x41"`, InvalidJSON},
	{"short unicode escape", `"\u12"`, InvalidJSON},
	{"unicode escape with a sign", `"\u+123"`, InvalidJSON},
	{"pair with a broken second half", `"\ud83d\u12zz"`, InvalidJSON},
	{"NaN", `NaN`, InvalidJSON},
	{"minus infinity", `-Infinity`, InvalidJSON},
	{"capital true", `True`, InvalidJSON},
	{"cut literal", `tru`, InvalidJSON},
	{"glued literal", `{"a":nullx}`, InvalidJSON},
	{"leading zero", `01`, InvalidJSON},
	{"leading plus", `+1`, InvalidJSON},
	{"minus alone", `-`, InvalidJSON},
	{"no digit after the point", `1.`, InvalidJSON},
	{"no digit before the point", `.5`, InvalidJSON},
	{"no exponent", `1e`, InvalidJSON},
	{"hexadecimal number", `0x10`, InvalidJSON},
	{"2^53+1", `{"a":9007199254740993}`, OK},
	{"2^63-1", `{"a":9223372036854775807}`, OK},
	{"-2^63", `{"a":-9223372036854775808}`, OK},
	{"2^63", `{"a":9223372036854775808}`, OK},
	{"twenty digits", `{"a":12345678901234567890}`, OK},
	{"integers with fraction and exponent", `[1.0,12e3]`, OK},
	{"integers with more of both", `{"a":[0.5e1,-0,1e-2],"id":120.0e-1}`, OK},
	{"huge exponent", `{"a":1e400,"id":1E+999999999999999999999}`, OK},
	{"tiny exponent", `{"a":1e-400,"id":0e999999999999}`, OK},
	{"top-level string", `"x"`, OK},
	{"white space everywhere", " { \"a\" : [ 1 , { \"b\" : null } ] \n, \"id\"\t:\r1 } ", OK},
	{"old and new null", `{"length":{"old":null,"new":5}}`, OK},
	{"scalar where an object is looked into", `{"a":5,"meta":"x","length":[1]}`, OK},
	{"quoted names", `{"$schema":"s","a'b":1,"":0,"ключ":[]}`, OK},
	{"elements", `{"a":[{"b":1},2,3]}`, OK},
	{"deep but allowed", strings.Repeat("[", 500) + strings.Repeat("]", 500), OK},
}

func newScanner(t testing.TB, paths []string, depth int) *Scanner {
	t.Helper()
	p, err := Compile(paths, Options{MaxDepth: depth})
	if err != nil {
		t.Fatal(err)
	}
	return p.NewScanner()
}

func TestHostileDocumentsAreRefusedForTheRightReason(t *testing.T) {
	s := newScanner(t, oraclePaths, 0)
	for _, h := range hostile {
		t.Run(h.name, func(t *testing.T) {
			got := OK
			if err := s.Scan([]byte(h.doc), make([]Value, len(oraclePaths))); err != nil {
				got = err.(*Error).Reason
			}
			if got != h.want {
				t.Errorf("reason %q, want %q", got, h.want)
			}
			compareWithOracle(t, newScanner(t, oraclePaths, DepthCeiling), []byte(h.doc))
		})
	}
}

func TestNestingBeyondTheLimitIsAReasonAndNotACrash(t *testing.T) {
	s := newScanner(t, []string{"$.a"}, 0)
	out := make([]Value, 1)
	for _, n := range []int{DefaultMaxDepth + 1, 10_000, 1_000_000} {
		for _, doc := range []string{
			strings.Repeat("[", n) + strings.Repeat("]", n),
			strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n),
			strings.Repeat("[", n),
		} {
			var e *Error
			if err := s.Scan([]byte(doc), out); !errors.As(err, &e) || e.Reason != TooDeep {
				t.Errorf("depth %d: %v", n, err)
			}
		}
	}
	at := strings.Repeat("[", DefaultMaxDepth) + strings.Repeat("]", DefaultMaxDepth)
	if err := s.Scan([]byte(at), out); err != nil {
		t.Errorf("depth %d is allowed: %v", DefaultMaxDepth, err)
	}
}

func TestLargeObjectsFindDuplicatesWithoutQuadraticWork(t *testing.T) {
	s := newScanner(t, []string{"$.k99999"}, 0)
	out := make([]Value, 1)
	var b strings.Builder
	for i := range 100_000 {
		// Equal first and last eight bytes: every signature is the same.
		fmt.Fprintf(&b, `"aaaaaaaa%06dzzzzzzzz":%d,`, i, i)
	}
	body := b.String()
	if err := s.Scan([]byte("{"+body+`"k99999":1}`), out); err != nil || out[0].Kind != Number {
		t.Fatalf("distinct keys: %v", err)
	}
	var e *Error
	if err := s.Scan([]byte("{"+body+`"aaaaaaaa000007zzzzzzzz":1}`), out); !errors.As(err, &e) || e.Reason != DuplicateKey {
		t.Fatalf("one key twice among 100,001: %v", err)
	}
	// The boundary between the two ways of looking.
	for n := linearKeys - 1; n < linearKeys+4; n++ {
		for _, first := range []int{0, n / 2, n - 1} {
			var keys []string
			for i := range n {
				keys = append(keys, fmt.Sprintf(`"k%d":{"x":1}`, i))
			}
			keys = append(keys, keys[first])
			if err := s.Scan([]byte("{"+strings.Join(keys, ",")+"}"), out); !errors.As(err, &e) || e.Reason != DuplicateKey {
				t.Fatalf("%d keys and number %d again: %v", n, first, err)
			}
			if err := s.Scan([]byte("{"+strings.Join(keys[:n], ",")+"}"), out); err != nil {
				t.Fatalf("%d distinct keys: %v", n, err)
			}
		}
	}
}

func TestScannerAgreesWithTheOracleOnMutatedDocuments(t *testing.T) {
	const seed = 20261129
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	s := newScanner(t, oraclePaths, DepthCeiling)
	corpus := make([][]byte, 0, len(hostile)+1)
	for _, h := range hostile {
		corpus = append(corpus, []byte(h.doc))
	}
	corpus = append(corpus, []byte(wikimedia))
	tokens := []string{`"`, `\`, `{`, `}`, `[`, `]`, `,`, `:`, `\u`, `\ud800`, `\udc00`, "\xe2", "\x80", "\xf0", "\x00", `"a":`, `"meta":{"id":1}`, `1e5`, `-`, `0`, ` `, `null`, `true`, `"a"`}
	rounds := 60_000
	if testing.Short() {
		rounds = 6_000
	}
	for range rounds {
		doc := bytes.Clone(corpus[rng.IntN(len(corpus))])
		for range 1 + rng.IntN(3) {
			at := rng.IntN(len(doc) + 1)
			switch rng.IntN(4) {
			case 0:
				if at < len(doc) {
					doc[at] ^= 1 << rng.IntN(8)
				}
			case 1:
				doc = doc[:at]
			case 2:
				doc = append(doc[:at:at], append([]byte(tokens[rng.IntN(len(tokens))]), doc[at:]...)...)
			default:
				end := at + rng.IntN(len(doc)-at+1)
				doc = append(doc[:at:at], doc[end:]...)
			}
		}
		compareWithOracle(t, s, doc)
	}
}

func FuzzScannerAgreesWithTheOracle(f *testing.F) {
	for _, h := range hostile {
		f.Add([]byte(h.doc))
	}
	f.Add([]byte(wikimedia))
	p, err := Compile(oraclePaths, Options{MaxDepth: DepthCeiling})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		compareWithOracle(t, p.NewScanner(), doc)
	})
}

func TestRealEventsAreReadAsTheOracleReadsThem(t *testing.T) {
	s := newScanner(t, oraclePaths, 0)
	docs := sample(t)
	for _, doc := range docs {
		compareWithOracle(t, s, doc)
	}
	if len(docs) == 0 {
		t.Fatal("the sample is empty")
	}
}

func TestScanDoesNotAllocate(t *testing.T) {
	s := newScanner(t, benchPaths, 0)
	out := make([]Value, len(benchPaths))
	doc := []byte(wikimedia)
	if n := testing.AllocsPerRun(100, func() {
		if err := s.Scan(doc, out); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a document", n)
	}
}

func TestBadPathsAreRefusedWithTheirPlace(t *testing.T) {
	for path, offset := range map[string]int{
		"":           0,
		"meta.id":    0,
		"$meta":      1,
		"$.":         1,
		"$..id":      1,
		"$.a[":       3,
		"$.a[*]":     4,
		"$.a[-1]":    4,
		"$.a[]":      4,
		"$['a":       3,
		"$['a'":      4,
		"$['a\\n']":  4,
		"$.a b":      3,
		"$.*":        2,
		"$.a[?(@.b)": 3,
	} {
		var e *PathError
		if err := CheckPath(path); !errors.As(err, &e) {
			t.Errorf("%q: %v", path, err)
		} else if e.Offset != offset {
			t.Errorf("%q: offset %d, want %d (%v)", path, e.Offset, offset, err)
		}
	}
	for _, path := range []string{"$", "$.a", "$.a-b_c.d1", `$['a b']["c'd"][0][12].x`, `$['\'\\']`, "$.$schema", "$.ключ"} {
		if err := CheckPath(path); err != nil {
			t.Errorf("%q: %v", path, err)
		}
	}
}

func TestAPathMayOccurTwiceAndBeAPrefixOfAnother(t *testing.T) {
	s := newScanner(t, []string{"$.a", "$.a.b", "$.a", "$['a']['b']"}, 0)
	out := make([]Value, 4)
	doc := []byte(`{"a":{"b":7}}`)
	if err := s.Scan(doc, out); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{`{"b":7}`, "7", `{"b":7}`, "7"} {
		if got := string(out[i].Raw(doc)); got != want {
			t.Errorf("output %d: %s, want %s", i, got, want)
		}
	}
}

var benchPaths = []string{
	"$.meta.id", "$.meta.dt", "$.type", "$.wiki", "$.title", "$.namespace", "$.user", "$.bot", "$.minor", "$.comment",
	"$.length.old", "$.length.new", "$.revision.old", "$.revision.new", "$['$schema']", "$.timestamp",
}

// wikimedia is an invented event in the stream's shape, about 1.1 KB.
const wikimedia = `{"$schema":"/mediawiki/recentchange/1.0.0","meta":{"uri":"https://en.wikipedia.org/wiki/Talk:An_invented_page_of_some_length","request_id":"7d2f3a52-4d6c-4c3b-9a3e-0c4f2b1d6e11","id":"0b1c2d3e-4f50-4617-8293-a4b5c6d7e8f9","dt":"2026-05-04T10:11:12.345Z","domain":"en.wikipedia.org","stream":"mediawiki.recentchange","topic":"eqiad.mediawiki.recentchange","partition":0,"offset":6123456789},"id":1987654321,"type":"edit","namespace":1,"title":"Talk:An invented page of some length","title_url":"https://en.wikipedia.org/wiki/Talk:An_invented_page_of_some_length","comment":"/* A section */ Reply with \"quotes\" — and a dash","timestamp":1777889472,"user":"Someone Ünüsual","bot":false,"notify_url":"https://en.wikipedia.org/w/index.php?diff=1234567890&oldid=1234567880&rcid=1987654321","minor":false,"patrolled":true,"length":{"old":52012,"new":52344},"revision":{"old":1234567880,"new":1234567890},"server_url":"https://en.wikipedia.org","server_name":"en.wikipedia.org","server_script_path":"/w","wiki":"enwiki","parsedcomment":"<span class=\"autocomment\"><a href=\"/wiki/Talk:X#A_section\">→A section</a></span> Reply with quotes"}`

func BenchmarkScanInventedEvent(b *testing.B) { benchmarkScan(b, [][]byte{[]byte(wikimedia)}) }

func BenchmarkScanRealEvents(b *testing.B) { benchmarkScan(b, sample(b)) }

func benchmarkScan(b *testing.B, docs [][]byte) {
	s := newScanner(b, benchPaths, 0)
	out := make([]Value, len(benchPaths))
	total := 0
	for _, d := range docs {
		total += len(d)
	}
	b.SetBytes(int64(total / len(docs)))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := s.Scan(docs[i%len(docs)], out); err != nil {
			b.Fatal(err)
		}
	}
}
