package contract

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func wikimedia(t testing.TB) *Contract {
	t.Helper()
	c, err := Compile(Options{Schema: Wikimedia, KeyPath: "$.meta.id", Canary: WikimediaCanary()})
	if err != nil {
		t.Fatal(err)
	}
	if ok, why := c.Compiled(); !ok {
		t.Fatalf("the built-in contract is not compiled: %s", why)
	}
	return c
}

// samples are the recorded events, where they are at hand.
func samples(t testing.TB) [][]byte {
	t.Helper()
	path := filepath.Join("..", "..", "..", "..", "shared", "samples", "recentchange.jsonl")
	if dir := os.Getenv("WEIR_SAMPLES"); dir != "" {
		path = filepath.Join(dir, "recentchange.jsonl")
	}
	f, err := os.Open(path)
	if err != nil {
		t.Skipf("the recorded events are not at hand (WEIR_SAMPLES names their folder): %v", err)
	}
	defer f.Close()
	var out [][]byte
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		out = append(out, bytes.Clone(sc.Bytes()))
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

const good = `{"$schema":"/mediawiki/recentchange/1.0.0","meta":{"uri":"https://a.org/wiki/X","id":"eccfc9ef-1970-4300-b25a-06f1cfe131b0","dt":"2021-08-27T13:20:14Z","domain":"a.org","stream":"mediawiki.recentchange"},"id":5000000000,"type":"edit","namespace":0,"title":"T","bot":false,"length":{"new":1},"log_params":[]}`

func TestEveryRecordedEventOfEveryYearFulfilsTheContract(t *testing.T) {
	k := wikimedia(t).NewChecker()
	n := 0
	for _, raw := range samples(t) {
		v := k.Check(raw)
		var doc struct {
			Meta struct{ ID string }
		}
		if err := json.Unmarshal(raw, &doc); err != nil {
			t.Fatal(err)
		}
		if v.Reason != "" || v.Canary || string(v.Key) != doc.Meta.ID {
			t.Errorf("%+v\n%s", v, raw)
		}
		n++
	}
	t.Logf("%d events", n)
}

func TestEveryViolationHasItsReason(t *testing.T) {
	k := wikimedia(t).NewChecker()
	rep := func(from, to string) string {
		if !strings.Contains(good, from) {
			t.Fatalf("%q is not in the event", from)
		}
		return strings.Replace(good, from, to, 1)
	}
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, c := range []struct {
		name, in string
		want     Reason
		detail   string
	}{
		{"good", good, "", ""},
		{"white space around", " \r\n" + good + "\t ", "", ""},
		{"type as a number in a string", rep(`"edit"`, `"142"`), "", ""},
		{"external", rep(`"edit"`, `"external"`), "", ""},
		{"id null", rep(`5000000000`, `null`), "", ""},
		{"id as 1.0", rep(`5000000000`, `5.0e9`), "", ""},
		{"2^53+1", rep(`5000000000`, `9007199254740993`), "", ""},
		{"2^63-1", rep(`5000000000`, `9223372036854775807`), "", ""},
		{"2^63", rep(`5000000000`, `9223372036854775808`), OutOfRange, "/id"},
		{"20 digits", rep(`5000000000`, `12345678901234567890`), OutOfRange, "/id"},
		{"a huge exponent", rep(`5000000000`, `1e999999999`), WrongType, "/id"},
		{"a fraction", rep(`5000000000`, `1.5`), WrongType, "/id"},
		{"no schema, as in 2017", rep(`"$schema":"/mediawiki/recentchange/1.0.0",`, ``), "", ""},
		{"schema 1.0.1", rep(`1.0.0`, `1.0.1`), "", ""},
		{"schema 2", rep(`1.0.0`, `2.0.0`), BadFormat, "/$schema"},
		{"NUL in a title", rep(`"T"`, `"a\u0000b"`), "", ""},
		{"a pair of surrogates", rep(`"T"`, `"\ud83d\ude00"`), "", ""},
		{"no meta", `{"type":"edit"}`, MissingField, "meta"},
		{"no meta.id", rep(`"id":"eccfc9ef-1970-4300-b25a-06f1cfe131b0",`, ``), MissingField, `/meta: "id"`},
		{"no meta.dt", rep(`"dt":"2021-08-27T13:20:14Z",`, ``), MissingField, `"dt"`},
		{"meta.id no UUID", rep(`eccfc9ef-`, `eccfc9eg-`), BadFormat, "/meta/id"},
		{"meta.id too long", rep(`06f1cfe131b0`, `06f1cfe131b00`), OutOfRange, "/meta/id"},
		{"namespace as a string", rep(`"namespace":0`, `"namespace":"0"`), WrongType, "/namespace: is string"},
		{"namespace null", rep(`"namespace":0`, `"namespace":null`), WrongType, "/namespace"},
		{"bot as a number", rep(`"bot":false`, `"bot":0`), WrongType, "/bot"},
		{"meta an array", `{"meta":[]}`, WrongType, "/meta"},
		{"length.new a string", rep(`"new":1`, `"new":"1"`), WrongType, "/length/new"},
		{"log_params a number", rep(`"log_params":[]`, `"log_params":3`), WrongType, "/log_params"},
		{"a date that is none", rep(`2021-08-27`, `2021-02-30`), BadFormat, "/meta/dt"},
		{"a date with a zone", rep(`13:20:14Z`, `13:20:14.5+05:30`), "", ""},
		{"a leap second", rep(`13:20:14Z`, `23:59:60Z`), "", ""},
		{"an empty domain", rep(`"a.org"`, `""`), OutOfRange, "/meta/domain"},
		{"null", `null`, WrongType, "(root): is null"},
		{"a string", `"x"`, WrongType, "(root)"},
		{"no bytes", ``, Empty, ""},
		{"white space only", " \n ", Empty, ""},
		{"not JSON", `hello`, InvalidJSON, "byte 0"},
		{"cut off", good[:len(good)-5], InvalidJSON, ""},
		{"cut off in a string", good[:20], InvalidJSON, "cut off"},
		{"two values", good + good, InvalidJSON, "more after"},
		{"a trailing comma", `{"meta":{},}`, InvalidJSON, ""},
		{"single quotes", `{'a':1}`, InvalidJSON, ""},
		{"NaN", rep(`5000000000`, `NaN`), InvalidJSON, ""},
		{"a leading zero", rep(`5000000000`, `05`), InvalidJSON, ""},
		{"plus sign", rep(`5000000000`, `+5`), InvalidJSON, ""},
		{"a raw newline in a string", rep(`"T"`, "\"a\nb\""), InvalidJSON, "control"},
		{"a raw NUL in a string", rep(`"T"`, "\"a\x00b\""), InvalidJSON, "control"},
		{"an unknown escape", rep(`"T"`, `"\x41"`), InvalidJSON, "escape"},
		{"a byte order mark", "\xEF\xBB\xBF" + good, InvalidJSON, ""},
		{"invalid UTF-8", rep(`"T"`, "\"a\xffb\""), InvalidUTF8, ""},
		{"an overlong NUL", rep(`"T"`, "\"a\xc0\x80b\""), InvalidUTF8, ""},
		{"a surrogate in UTF-8", rep(`"T"`, "\"\xed\xa0\x80\""), InvalidUTF8, ""},
		{"half a pair", rep(`"T"`, `"\ud83d"`), LoneSurrogate, ""},
		{"a pair the wrong way round", rep(`"T"`, `"\ude00\ud83d"`), LoneSurrogate, ""},
		{"a name twice", rep(`"type":"edit"`, `"type":"edit","type":"log"`), DuplicateKey, `"type"`},
		{"an unknown name twice", rep(`"type":"edit"`, `"zz":1,"zz":2`), DuplicateKey, `"zz"`},
		{"a name twice by escape", rep(`"type":"edit"`, `"type":"edit","\u0074ype":"log"`), DuplicateKey, `"type"`},
		{"a name twice, deep", rep(`"log_params":[]`, `"log_params":{"a":[{"b":1,"b":2}]}`), DuplicateKey, `"b"`},
		{"names that differ by case", rep(`"type":"edit"`, `"type":"edit","Type":1`), "", ""},
		{"500 deep", rep(`"log_params":[]`, `"log_params":`+deep(500)), "", ""},
		{"10,000 deep", rep(`"log_params":[]`, `"log_params":`+deep(10_000)), TooDeep, ""},
		{"10,000 open", strings.Repeat(`{"a":`, 10_000), TooDeep, ""},
		{"syntax outranks the contract", `{"meta":3,"a":tru}`, InvalidJSON, ""},
	} {
		v := k.Check([]byte(c.in))
		if v.Reason != c.want || v.Canary || !strings.Contains(v.Detail, c.detail) {
			t.Errorf("%s: %+v, want %q with %q", c.name, v, c.want, c.detail)
		}
	}
}

func TestCanariesAreKnownBeforeAnythingElseIsHeldAgainstThem(t *testing.T) {
	k := wikimedia(t).NewChecker()
	for _, in := range []string{
		`{"$schema":"/mediawiki/recentchange/1.0.1","meta":{"dt":"2020-04-10T19:11:20.942Z","stream":"mediawiki.recentchange","domain":"canary"}}`,
		`{"$schema":"/x/9","meta":{"domain":"canary"}}`,
		`{"meta":{"domain":"canary","id":7},"namespace":"zero"}`,
		`{"meta":{"domain":"can\u0061ry"}}`,
		`{"bot":"no","meta":{"domain":"canary"},"zz":1,"zz":2}`,
		"{\"title\":\"\xff\",\"meta\":{\"domain\":\"canary\"}}",
		`{"title":"\ud800","meta":{"domain":"canary"}}`,
	} {
		if v := k.Check([]byte(in)); !v.Canary {
			t.Errorf("%s: %+v", in, v)
		}
	}
	for _, in := range []string{
		`{"meta":{"domain":"canary.org"}}`,
		`{"domain":"canary"}`,
		`{"meta":{"meta":{"domain":"canary"}}}`,
		`{"meta":{"domain":["canary"]}}`,
		`{"meta":{"domain":"canary","domain":"a.org"}}`,
		`{"meta":{"domain":"canary"},"meta":{"domain":"canary"}}`,
		`{"meta":{"domain":"canary"}`,
	} {
		if v := k.Check([]byte(in)); v.Canary || v.Reason == "" {
			t.Errorf("%s was dropped as a canary: %+v", in, v)
		}
	}
}

func TestTheKeyIsFoundWhetherOrNotTheContractIsKept(t *testing.T) {
	c, err := Compile(Options{KeyPath: "a.b"})
	if err != nil {
		t.Fatal(err)
	}
	k := c.NewChecker()
	for in, want := range map[string]string{
		`{"a":{"b":"x\u0041"}}`: "xA", `{"a":{"b":12.50}}`: "12.50", `{"a":{"b":null}}`: "", `{"a":{"b":{}}}`: "", `{"a":1}`: "", `[]`: "", `{"x":{"b":"y"}}`: "",
	} {
		if v := k.Check([]byte(in)); string(v.Key) != want {
			t.Errorf("%s: %q", in, v.Key)
		}
	}
	if _, err := Compile(Options{KeyPath: "a[0].b"}); err == nil {
		t.Error("a path that is not understood was taken")
	}
}

// schemas that use every compiled keyword.
var schemas = []string{
	string(recentchange),
	`{"type":"object","properties":{"a":{"enum":["x",null,true]},"b":{"const":"k"},"s":{"type":"string","minLength":2,"maxLength":4,"pattern":"^[a-zé]+$"},"n":{"type":"number","minimum":-1.5,"exclusiveMaximum":10},"i":{"type":"integer","exclusiveMinimum":0,"maximum":100}},"required":["a"],"additionalProperties":false}`,
	`{"properties":{"l":{"type":"array","items":{"type":["integer","string"],"maximum":3},"minItems":1,"maxItems":3},"o":{"type":"object","additionalProperties":{"type":"boolean"},"minProperties":1,"maxProperties":2},"d":{"format":"date-time"},"u":{"format":"uri"},"r":{"format":"uri-reference"},"q":{"format":"uuid"}},"required":["zz"]}`,
	`{"$schema":"https://json-schema.org/draft/2020-12/schema","type":["object","null"],"properties":{"x":true,"d":{"format":"date-time"}}}`,
}

// TestTheCompiledContractAndTheLibraryAgree feeds both with mutations of events
// and of documents made for the schemas. Left out is only what the strict pass
// refuses before the schema is asked.
func TestTheCompiledContractAndTheLibraryAgree(t *testing.T) {
	const seed = 20_260_101
	rng := rand.New(rand.NewPCG(seed, 1))
	docs := [][]string{{good}, {
		`{"a":"x","b":"k","s":"abé","n":3,"i":7}`, `{"a":null,"s":"é","n":-1.5,"i":1.0}`, `{"a":true,"n":10,"i":0}`, `{"a":false}`, `{"b":"x"}`,
		`{"a":"x","s":"abcde","n":1e1}`, `{"a":"x","zz":1}`, `{"a":"x","i":100.5}`, `{"a":"x","i":1e2,"n":9.999}`, `{"a":"x","s":"éééé"}`,
	}, {
		`{"zz":1,"l":[1,"a"],"o":{"p":true},"d":"2020-02-29T00:00:00Z","u":"https://a.b/c?d#e","r":"../x","q":"eccfc9ef-1970-4300-b25a-06f1cfe131b0"}`,
		`{"l":[]}`, `{"zz":0,"l":[1,2,3,4]}`, `{"zz":0,"l":[4]}`, `{"zz":0,"l":[1.5]}`, `{"zz":0,"o":{}}`, `{"zz":0,"o":{"a":1}}`, `{"zz":0,"o":{"a":true,"b":true,"c":false}}`,
		`{"zz":0,"d":"2021-02-29T00:00:00Z"}`, `{"zz":0,"d":"2021-02-28t00:00:00z"}`, `{"zz":0,"d":"2016-12-31T23:59:60Z"}`, `{"zz":0,"d":"2016-12-31T24:00:00Z"}`, `{"zz":0,"d":7}`,
		`{"zz":0,"u":"a b"}`, `{"zz":0,"u":"//x"}`, `{"zz":0,"u":"https://[::1"}`, `{"zz":0,"u":"https://x/%zz"}`, `{"zz":0,"r":"a\\b"}`, `{"zz":0,"r":"%"}`, `{"zz":0,"u":"https://a:b/c"}`, `{"zz":0,"u":"https:///x"}`,
		`{"zz":0,"u":"https://-/a(b)"}`, `{"zz":0,"u":"https://a.b:80/é"}`, `{"zz":0,"q":"x"}`, `[]`, `7`,
	}, {`{"x":1}`, `null`, `{"d":"x"}`, `[]`}}
	for _, raw := range sampleStrings(t) {
		docs[0] = append(docs[0], raw)
	}
	compared, rejected := 0, 0
	for i, schema := range schemas {
		c, err := compileBytes([]byte(schema), "weir:///x.json", Options{})
		if err != nil {
			t.Fatal(err)
		}
		if ok, why := c.Compiled(); !ok {
			t.Fatalf("schema %d: %s", i, why)
		}
		k := c.NewChecker()
		for n := range 6000 {
			doc := docs[i][n%len(docs[i])]
			if n >= len(docs[i]) {
				doc = mutate(rng, doc)
			}
			v := k.Check([]byte(doc))
			if strictOnly(v.Reason) {
				continue
			}
			want, detail := c.ask([]byte(doc))
			compared++
			if want != "" {
				rejected++
			}
			if (want == "") != (v.Reason == "") {
				t.Fatalf("seed %d, schema %d: compiled says %q (%s), the library %q (%s):\n%s", seed, i, v.Reason, v.Detail, want, detail, doc)
			}
		}
	}
	t.Logf("%d compared, %d of them rejected", compared, rejected)
	if rejected < compared/20 {
		t.Error("hardly anything was rejected: the test shows nothing")
	}
}

func sampleStrings(t *testing.T) (out []string) {
	path := filepath.Join("..", "..", "..", "..", "shared", "samples", "recentchange.jsonl")
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[:min(len(lines), 200)]
}

// strictOnly are the refusals that the library has no part in.
func strictOnly(r Reason) bool {
	switch r {
	case Empty, InvalidJSON, InvalidUTF8, LoneSurrogate, DuplicateKey, TooDeep:
		return true
	}
	return false
}

var values = []string{`null`, `true`, `0`, `-1`, `1.0`, `1.5`, `1e2`, `1e-2`, `9223372036854775808`, `-9223372036854775808`, `99999999999999999999`, `""`, `"x"`, `"é"`, `[]`, `{}`, `[1]`, `{"a":1}`, `"2021-08-27T13:20:14Z"`, `"2021-06-31T13:20:14Z"`, `2147483648`, `"eccfc9ef-1970-4300-b25a-06f1cfe131b0"`}

// mutate changes one thing: a value, a character, or what a string is.
func mutate(rng *rand.Rand, doc string) string {
	var d any
	if rng.IntN(5) > 0 && json.Unmarshal([]byte(doc), &d) == nil {
		if m, ok := d.(map[string]any); ok && len(m) > 0 {
			return mutateObject(rng, doc)
		}
	}
	b := []byte(doc)
	if len(b) == 0 {
		return doc
	}
	for range 1 + rng.IntN(2) {
		i := rng.IntN(len(b))
		switch rng.IntN(3) {
		case 0:
			b[i] = `0129"{}[],:.eE-+ \uaxZT`[rng.IntN(22)]
		case 1:
			b = append(b[:i], b[i+1:]...)
		default:
			b = append(b[:i], append([]byte{`0123456789"x`[rng.IntN(12)]}, b[i:]...)...)
		}
		if len(b) == 0 {
			return ""
		}
	}
	return string(b)
}

func mutateObject(rng *rand.Rand, doc string) string {
	var m map[string]json.RawMessage
	if json.Unmarshal([]byte(doc), &m) != nil {
		return doc
	}
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	// The order of a map is not part of the seed; sorted it is.
	sortStrings(keys)
	k := keys[rng.IntN(len(keys))]
	var inner map[string]json.RawMessage
	if json.Unmarshal(m[k], &inner) == nil && len(inner) > 0 && rng.IntN(2) == 0 {
		m[k] = json.RawMessage(mutateObject(rng, string(m[k])))
	} else if rng.IntN(4) == 0 {
		delete(m, k)
	} else {
		m[k] = json.RawMessage(values[rng.IntN(len(values))])
	}
	b, err := json.Marshal(m)
	if err != nil {
		return doc
	}
	return string(b)
}

func sortStrings(s []string) {
	for i := range s {
		for j := i; j > 0 && s[j] < s[j-1]; j-- {
			s[j], s[j-1] = s[j-1], s[j]
		}
	}
}

func TestASchemaWithOtherKeywordsIsLeftToTheLibrary(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s.json")
	if err := os.WriteFile(path, []byte(`{"type":"object","oneOf":[{"required":["a"]},{"required":["b"]}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Compile(Options{Schema: path, KeyPath: "meta.id", Canary: WikimediaCanary()})
	if err != nil {
		t.Fatal(err)
	}
	if ok, why := c.Compiled(); ok || !strings.Contains(why, "oneOf") {
		t.Errorf("%v %q", ok, why)
	}
	k := c.NewChecker()
	for in, want := range map[string]Reason{
		`{"a":1,"meta":{"id":"k"}}`: "", `{"a":1,"b":1,"meta":{"id":"k"}}`: SchemaMismatch, `{"a":1,"a":2}`: DuplicateKey, `{"a":1e999999999}`: "", `x`: InvalidJSON, `[]`: SchemaMismatch,
	} {
		if v := k.Check([]byte(in)); v.Reason != want || (strings.Contains(in, "meta") && string(v.Key) != "k") {
			t.Errorf("%s: %+v", in, v)
		}
	}
	if v := k.Check([]byte(`{"meta":{"domain":"canary"}}`)); !v.Canary {
		t.Errorf("%+v", v)
	}
}

func TestAnUnusableSchemaIsRefusedByName(t *testing.T) {
	dir := t.TempDir()
	for name, body := range map[string]string{"a.json": `{"type":"objekt"}`, "b.json": `{`, "c.json": `{"$ref":"http://127.0.0.1:1/x.json"}`} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Compile(Options{Schema: path}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Compile(Options{Schema: filepath.Join(dir, "none.json")}); err == nil {
		t.Error("a missing file was taken")
	}
}

func TestAMillionBytesOfNamesAndValuesAreCheckedInOnePass(t *testing.T) {
	var b strings.Builder
	b.WriteString(good[:len(good)-1])
	for i := range 50_000 {
		fmt.Fprintf(&b, `,"k%d":%d`, i, i)
	}
	k := wikimedia(t).NewChecker()
	if v := k.Check([]byte(b.String() + "}")); v.Reason != "" {
		t.Errorf("%+v", v)
	}
	if v := k.Check([]byte(b.String() + `,"k17":0}`)); v.Reason != DuplicateKey {
		t.Errorf("%+v", v)
	}
}

func FuzzTheStrictPassNeverTakesWhatIsNotJSON(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte(`{"a":[1,2.5e3,"\ud83d\ude00",null,true,false,{}]}`))
	c, err := Compile(Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		v := c.NewChecker().Check(in)
		if v.Reason == "" && !json.Valid(in) {
			t.Errorf("taken: %q", in)
		}
		if v.Reason == InvalidJSON && json.Valid(in) {
			t.Errorf("refused (%s): %q", v.Detail, in)
		}
	})
}

func BenchmarkCheck(b *testing.B) {
	evs := samples(b)
	size := 0
	for _, e := range evs {
		size += len(e)
	}
	k := wikimedia(b).NewChecker()
	b.SetBytes(int64(size / len(evs)))
	for n := range b.N {
		if v := k.Check(evs[n%len(evs)]); v.Reason != "" {
			b.Fatal(v)
		}
	}
}
