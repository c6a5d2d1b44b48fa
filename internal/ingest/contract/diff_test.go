package contract

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func schemaFile(t testing.TB, body string) Options {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s.json")
	if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	return Options{Schema: path}
}

func TestEveryChangeOfAContractIsFoundWithAnEventThatShowsIt(t *testing.T) {
	object := func(props string) string { return `{"type":"object","properties":{` + props + `}}` }
	for _, c := range []struct {
		what, old, now                string
		breaking, accepted, undecided string // the findings, path: change
	}{
		{"the same", object(`"a":{"type":"string"}`), object(`"a":{"type":"string"}`), "", "", ""},
		{"another description", object(`"a":{"type":"string"}`), object(`"a":{"type":"string","description":"x"}`), "", "", ""},
		{"an optional property more", object(`"a":{"type":"string"}`), object(`"a":{"type":"string"},"b":{"type":"integer"}`),
			"/b: a boolean is rejected; /b: a number with a fraction is rejected; /b: a string is rejected; /b: an array is rejected; /b: an object is rejected; /b: null is rejected", "", ""},
		{"required now", object(`"a":{"type":"string"}`), `{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}`, "/a: has to be there", "", ""},
		{"required no more", `{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}`, object(`"a":{"type":"string"}`), "", "/a: has to be there", ""},
		{"null no more", object(`"a":{"type":["string","null"]}`), object(`"a":{"type":"string"}`), "/a: null is rejected", "", ""},
		{"number to integer", object(`"a":{"type":"number"}`), object(`"a":{"type":"integer"}`), "/a: a number with a fraction is rejected", "", ""},
		{"integer to number", object(`"a":{"type":"integer"}`), object(`"a":{"type":"number"}`), "", "/a: a number with a fraction is rejected", ""},
		{"bounds", object(`"a":{"type":"integer","minimum":0,"maximum":10}`), object(`"a":{"type":"integer","minimum":1,"exclusiveMaximum":10}`),
			"/a: numbers above 10 and 10 itself are rejected; /a: numbers below 1 are rejected", "", ""},
		{"lengths", object(`"a":{"type":"string","maxLength":9}`), object(`"a":{"type":"string","minLength":1,"maxLength":8}`),
			"/a: strings longer than 8 are rejected; /a: strings shorter than 1 are rejected", "", ""},
		{"a value less", object(`"a":{"enum":["x","y",null]}`), object(`"a":{"enum":["y","z"]}`),
			`/a: the value "x" is rejected; /a: the value null is rejected`, `/a: the value "z" is rejected`, ""},
		{"values listed now", object(`"a":{"type":"string"}`), object(`"a":{"enum":["x","y"]}`), `/a: a string is rejected that is none of ["x","y"]`, "", ""},
		{"a pattern that an example is found for", object(`"a":{"type":"string","pattern":"^[a-z]{2}-[0-9]+$"}`), object(`"a":{"type":"string","pattern":"^[0-9]+$"}`),
			"/a: strings that do not match ^[0-9]+$ are rejected", "/a: strings that do not match ^[a-z]{2}-[0-9]+$ are rejected", ""},
		{"a pattern that says the same", object(`"a":{"type":"string","pattern":"^[0-9]+$"}`), object(`"a":{"type":"string","pattern":"^[0123456789]+$"}`),
			"", "", "/a: strings that do not match ^[0123456789]+$ are rejected"},
		{"a format", object(`"a":{"type":"string"}`), object(`"a":{"type":"string","format":"date-time"}`), "/a: strings that are no date-time are rejected", "", ""},
		{"nothing else allowed", object(`"a":{"type":"string"}`), `{"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":false}`,
			"/*: is not allowed", "", ""},
		{"a property taken out of a closed object", `{"type":"object","properties":{"a":true,"b":true},"additionalProperties":false}`,
			`{"type":"object","properties":{"a":true},"additionalProperties":false}`, "/b: is not allowed", "", ""},
		{"elements", object(`"a":{"type":"array","items":{"type":["integer","string"]},"minItems":1}`), object(`"a":{"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3}`),
			"/a/*: a string is rejected; /a: arrays of fewer than 2 elements are rejected; /a: arrays of more than 3 elements are rejected", "", ""},
		{"deep below required siblings", `{"type":"object","required":["m","s"],"properties":{"s":{"type":"string","minLength":3},"m":{"type":"object","required":["id"],"properties":{"id":{"type":"string"},"n":{"type":"integer"}}}}}`,
			`{"type":"object","required":["m","s"],"properties":{"s":{"type":"string","minLength":3},"m":{"type":"object","required":["id","n"],"properties":{"id":{"type":"string"},"n":{"type":"integer"}}}}}`,
			"/m/n: has to be there", "", ""},
		{"through references", `{"$ref":"#/$defs/e","$defs":{"e":{"type":"object","properties":{"a":{"$ref":"#/$defs/t"}}},"t":{"type":["string","null"]}}}`,
			`{"$ref":"#/$defs/e","$defs":{"e":{"type":"object","properties":{"a":{"$ref":"#/$defs/t"}}},"t":{"type":"string"}}}`, "/a: null is rejected", "", ""},
		{"a keyword that is not compared", object(`"a":{"anyOf":[{"type":"string"},{"type":"null"}]}`), object(`"a":{"anyOf":[{"type":"string"}]}`),
			"", "", "/a: anyOf is new or has changed, and is not compared"},
		{"a keyword that is not compared and is the same", object(`"a":{"anyOf":[{"type":"string"}]},"b":{"type":["string","null"]}`),
			object(`"a":{"anyOf":[{"type":"string"}]},"b":{"type":"string"}`), "/b: null is rejected", "", ""},
		{"a keyword taken away", object(`"a":{"not":{"type":"string"}}`), object(`"a":true`), "", "", ""},
		{"closed altogether", object(`"a":true`), `false`, ": no value is accepted", "", ""},
	} {
		d, err := Diff(schemaFile(t, c.old), schemaFile(t, c.now))
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		for _, l := range []struct {
			name string
			got  []Finding
			want string
		}{{"breaking", d.Breaking, c.breaking}, {"accepted", d.Accepted, c.accepted}, {"undecided", d.Undecided, c.undecided}} {
			var lines []string
			for _, f := range l.got {
				lines = append(lines, f.Path+": "+f.Change)
			}
			sortStrings(lines)
			if got := strings.Join(lines, "; "); got != l.want {
				t.Errorf("%s: %s is\n  %s\nwant\n  %s", c.what, l.name, got, l.want)
			}
		}
	}
}

func TestTheShippedContractIsCompatibleWithItselfAndItsOwnTightening(t *testing.T) {
	wiki := Options{Schema: Wikimedia}
	d, err := Diff(wiki, wiki)
	if err != nil || !d.Compatible() || len(d.Accepted) > 0 {
		t.Fatalf("%+v %v", d, err)
	}
	var doc map[string]any
	if err := json.Unmarshal(WikimediaSchema(), &doc); err != nil {
		t.Fatal(err)
	}
	doc["required"] = append(doc["required"].([]any), "server_name")
	tighter, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	if d, err = Diff(wiki, schemaFile(t, string(tighter))); err != nil || len(d.Breaking) != 1 || d.Breaking[0].Path != "/server_name" {
		t.Fatalf("%+v %v", d, err)
	}
	if k := wikimedia(t).NewChecker(); k.Check(d.Breaking[0].Example).Reason != "" {
		t.Errorf("the old contract does not take the example %s", d.Breaking[0].Example)
	}
}

// TestNothingThatIsCalledCompatibleBreaksAnEvent draws two contracts and events at
// random: where the comparison finds nothing, no event may be accepted by the old
// one and rejected by the new one.
func TestNothingThatIsCalledCompatibleBreaksAnEvent(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 4))
	compatible, broken := 0, 0
	for range 400 {
		old := randomSchema(rng, 2)
		now := old
		if rng.IntN(8) > 0 {
			now = randomSchema(rng, 2)
		}
		a, b := schemaFile(t, old), schemaFile(t, now)
		d, err := Diff(a, b)
		if err != nil {
			t.Fatalf("%s\n%s\n%v", old, now, err)
		}
		if !d.Compatible() {
			broken++
			continue
		}
		compatible++
		ca, err := Compile(a)
		if err != nil {
			t.Fatal(err)
		}
		cb, err := Compile(b)
		if err != nil {
			t.Fatal(err)
		}
		ka, kb := ca.NewChecker(), cb.NewChecker()
		for range 200 {
			raw, err := json.Marshal(randomEvent(rng, 2))
			if err != nil {
				t.Fatal(err)
			}
			if ka.Check(raw).Reason == "" && kb.Check(raw).Reason != "" {
				t.Fatalf("%s is accepted by\n%s\nand rejected by\n%s\nwhich are called compatible", raw, old, now)
			}
		}
	}
	if compatible == 0 || broken == 0 {
		t.Fatalf("%d compatible, %d not: the draw shows nothing", compatible, broken)
	}
}

func randomSchema(rng *rand.Rand, depth int) string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if rng.IntN(3) > 0 {
		all := []string{"null", "boolean", "integer", "number", "string", "array", "object"}
		rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		types, _ := json.Marshal(all[:1+rng.IntN(3)])
		add(`"type":%s`, types)
	}
	switch rng.IntN(6) {
	case 0:
		add(`"enum":["a",null,true]`)
	case 1:
		add(`"minLength":%d`, rng.IntN(3))
	case 2:
		add(`"minimum":%d`, rng.IntN(3)-1)
	case 3:
		add(`"maximum":%d`, rng.IntN(3))
	case 4:
		add(`"minItems":%d`, rng.IntN(2))
	}
	if depth > 0 {
		if rng.IntN(2) == 0 {
			add(`"properties":{"a":%s,"b":%s}`, randomSchema(rng, depth-1), randomSchema(rng, depth-1))
		}
		if rng.IntN(3) == 0 {
			add(`"items":%s`, randomSchema(rng, depth-1))
		}
		if rng.IntN(3) == 0 {
			add(`"required":["a"]`)
		}
		if rng.IntN(4) == 0 {
			add(`"additionalProperties":false`)
		}
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func randomEvent(rng *rand.Rand, depth int) any {
	switch n := rng.IntN(9); {
	case n == 0:
		return nil
	case n == 1:
		return rng.IntN(2) == 0
	case n == 2:
		return rng.IntN(5) - 2
	case n == 3:
		return float64(rng.IntN(5)) - 1.5
	case n == 4:
		return strings.Repeat("a", rng.IntN(4))
	case n == 5 && depth > 0:
		out := []any{}
		for range rng.IntN(3) {
			out = append(out, randomEvent(rng, depth-1))
		}
		return out
	case depth > 0:
		out := map[string]any{}
		for _, k := range []string{"a", "b", "c"} {
			if rng.IntN(2) == 0 {
				out[k] = randomEvent(rng, depth-1)
			}
		}
		return out
	}
	return "a"
}
