package registry

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bufbuild/protocompile"
	"github.com/twmb/avro"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/weirlake/weir/internal/event"
	"github.com/weirlake/weir/internal/failure"
)

// fakeRegistry answers as Confluent's registry does.
type fakeRegistry struct {
	*httptest.Server
	ids      map[string]any // by id
	versions map[string]any // by subject/version
	requests atomic.Int64
	// down is the number of requests that are answered with 503 first.
	down atomic.Int64
	user string
}

func newFake(t *testing.T) *fakeRegistry {
	t.Helper()
	f := &fakeRegistry{ids: map[string]any{}, versions: map[string]any{}}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *fakeRegistry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.requests.Add(1)
	answer := func(status int, v any) {
		w.Header().Set("Content-Type", "application/vnd.schemaregistry.v1+json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
	if f.down.Add(-1) >= 0 {
		answer(503, map[string]any{"error_code": 50302, "message": "the leader is not known"})
		return
	}
	if user, _, _ := r.BasicAuth(); user != f.user {
		answer(401, map[string]any{"error_code": 401, "message": "Unauthorized"})
		return
	}
	path := strings.TrimPrefix(r.URL.Path, "/")
	if id, ok := strings.CutPrefix(path, "schemas/ids/"); ok {
		if s := f.ids[id]; s != nil {
			answer(200, s)
		} else {
			answer(404, map[string]any{"error_code": 40403, "message": "Schema not found"})
		}
		return
	}
	if s := f.versions[path]; s != nil {
		answer(200, s)
		return
	}
	answer(404, map[string]any{"error_code": 40401, "message": "Subject not found"})
}

func (f *fakeRegistry) decoder(t *testing.T, format string) *Decoder {
	t.Helper()
	d, err := New(Config{URLs: []string{f.URL}, Format: format})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func framed(id uint32, payload []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, id), payload...)
}

// reasonOf is the reason of a fault of the value; any other error fails the test.
func reasonOf(t *testing.T, err error) event.Reason {
	t.Helper()
	var e *event.Error
	if !errors.As(err, &e) {
		t.Fatalf("%v is no fault of the value", err)
	}
	return e.Reason
}

const avroEdit = `{"type":"record","name":"Edit","namespace":"wiki","fields":[
 {"name":"z_id","type":{"type":"string","logicalType":"uuid"}},
 {"name":"at","type":{"type":"long","logicalType":"timestamp-micros"}},
 {"name":"day","type":{"type":"int","logicalType":"date"}},
 {"name":"clock","type":{"type":"int","logicalType":"time-millis"}},
 {"name":"local","type":{"type":"long","logicalType":"local-timestamp-millis"}},
 {"name":"big","type":"long"},
 {"name":"ratio","type":"double"},
 {"name":"price","type":{"type":"bytes","logicalType":"decimal","precision":30,"scale":4}},
 {"name":"raw","type":"bytes"},
 {"name":"kind","type":{"type":"enum","name":"Kind","symbols":["EDIT","NEW"]}},
 {"name":"tags","type":{"type":"array","items":"string"}},
 {"name":"sizes","type":{"type":"map","values":["null","int"]}},
 {"name":"parent","type":["null","Edit"]},
 {"name":"which","type":["null","long","string",{"type":"long","logicalType":"timestamp-millis"}]},
 {"name":"nothing","type":"null"}]}`

func TestAvroBecomesTheSameJSONEachTime(t *testing.T) {
	// The union of two longs is not allowed in Avro; the date of one is kept apart.
	schema := strings.Replace(avroEdit, `,{"type":"long","logicalType":"timestamp-millis"}]`, `]`, 1)
	f := newFake(t)
	f.ids["7"] = map[string]any{"schema": schema}
	s := avro.MustParse(schema)
	at := time.Date(2026, 11, 30, 6, 0, 1, 2000, time.UTC)
	edit := func(parent any, which any) map[string]any {
		return map[string]any{
			"z_id": "0b0c7a52-0000-4000-8000-000000000001", "at": at, "day": at, "clock": 90*time.Minute + 5*time.Millisecond,
			"local": at.Truncate(time.Second), "big": int64(9007199254740993), "ratio": 0.1,
			"price": big.NewRat(1234567, 10000), "raw": []byte{0, 255, '"'}, "kind": "NEW", "tags": []any{"a\n", `"ü"`},
			"sizes": map[string]any{"b": int32(2), "a": nil, "c": int32(-3)}, "parent": parent, "which": which, "nothing": nil,
		}
	}
	payload, err := s.Encode(edit(edit(nil, "x"), int64(5)))
	if err != nil {
		t.Fatal(err)
	}
	inner := `{"z_id":"0b0c7a52-0000-4000-8000-000000000001","at":"2026-11-30T06:00:01.000002Z","day":"2026-11-30","clock":"01:30:00.005","local":"2026-11-30T06:00:01","big":9007199254740993,"ratio":0.1,"price":123.4567,"raw":"AP8i","kind":"NEW","tags":["a\n","\"ü\""],"sizes":{"a":null,"b":2,"c":-3},"parent":%s,"which":%s,"nothing":null}`
	want := fmt.Sprintf(inner, fmt.Sprintf(inner, "null", `"x"`), "5")
	d := f.decoder(t, Avro)
	for range 20 {
		got, err := d.Decode(context.Background(), []byte("before"), framed(7, payload))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != "before"+want {
			t.Fatalf("JSON\n%s\nwant\n%s", got, want)
		}
	}
	if n := f.requests.Load(); n != 1 {
		t.Errorf("the registry was asked %d times for one schema", n)
	}
	for name, cut := range map[string][]byte{"cut": payload[:len(payload)-3], "longer": append(slices.Clone(payload), 1)} {
		if _, err := d.Decode(context.Background(), nil, framed(7, cut)); reasonOf(t, err) != ReasonBadPayload {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAvroTypesOfOtherSubjectsAreFound(t *testing.T) {
	f := newFake(t)
	f.ids["1"] = map[string]any{
		"schema":     `{"type":"record","name":"Page","namespace":"wiki","fields":[{"name":"by","type":"wiki.User"},{"name":"second","type":["null","wiki.User"]}]}`,
		"references": []any{map[string]any{"name": "wiki.User", "subject": "user", "version": 3}},
	}
	f.versions["subjects/user/versions/3"] = map[string]any{
		"subject": "user", "version": 3, "id": 9, "schema": `{"type":"record","name":"User","namespace":"wiki","fields":[{"name":"home","type":"wiki.Place"}]}`,
		"references": []any{map[string]any{"name": "wiki.Place", "subject": "place", "version": 1}},
	}
	f.versions["subjects/place/versions/1"] = map[string]any{
		"subject": "place", "version": 1, "id": 8, "schema": `{"type":"enum","name":"Place","namespace":"wiki","symbols":["HERE","THERE"]}`,
	}
	// Page{by: {home: THERE}, second: {home: HERE}}: index 1, branch 1, index 0.
	got, err := f.decoder(t, Avro).Decode(context.Background(), nil, framed(1, []byte{2, 2, 0}))
	if want := `{"by":{"home":"THERE"},"second":{"home":"HERE"}}`; err != nil || string(got) != want {
		t.Fatalf("%s, %v; want %s", got, err, want)
	}
}

const (
	protoUser = `syntax = "proto3";
package wiki;
message User { string name = 1; int64 id = 2; }`
	protoEdit = `syntax = "proto3";
package wiki;
import "wiki/user.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Other {}
message Edit {
  message Inner {
    string id = 1;
    User user = 2;
    int64 big = 3;
    uint64 bigger = 4;
    bytes raw = 5;
    Kind kind = 6;
    repeated sint32 sizes = 7;
    map<string, User> users = 8;
    google.protobuf.Timestamp at = 9;
    google.protobuf.Int64Value wrapped = 10;
    oneof one { string text = 11; bool flag = 12; }
    optional int32 maybe = 13;
    double ratio = 14;
    User absent = 15;
  }
}
enum Kind { UNKNOWN = 0; NEW = 1; }`
)

func TestProtobufBecomesTheSameJSONEachTime(t *testing.T) {
	f := newFake(t)
	f.ids["3"] = map[string]any{
		"schemaType": "PROTOBUF", "schema": protoEdit,
		"references": []any{map[string]any{"name": "wiki/user.proto", "subject": "user", "version": 1}},
	}
	f.versions["subjects/user/versions/1"] = map[string]any{"subject": "user", "version": 1, "id": 2, "schemaType": "PROTOBUF", "schema": protoUser}

	compiler := protocompile.Compiler{Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{
		Accessor: protocompile.SourceAccessorFromMap(map[string]string{"edit.proto": protoEdit, "wiki/user.proto": protoUser}),
	})}
	files, err := compiler.Compile(context.Background(), "edit.proto")
	if err != nil {
		t.Fatal(err)
	}
	m := dynamicpb.NewMessage(files[0].Messages().ByName("Edit").Messages().ByName("Inner"))
	if err := protojson.Unmarshal([]byte(`{"id":"e1","user":{"name":"Ä","id":"5"},"big":"9007199254740993","bigger":"18446744073709551615",
		"raw":"AP8i","kind":"NEW","sizes":[-1,2],"users":{"b":{"name":"B"},"a":{}},"at":"2026-11-30T06:00:01.5Z","wrapped":"7","text":"","ratio":0.5}`), m); err != nil {
		t.Fatal(err)
	}
	payload, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"id":"e1","user":{"name":"Ä","id":5},"big":9007199254740993,"bigger":18446744073709551615,"raw":"AP8i","kind":"NEW","sizes":[-1,2],` +
		`"users":{"a":{"name":"","id":0},"b":{"name":"B","id":0}},"at":"2026-11-30T06:00:01.500Z","wrapped":7,"text":"","ratio":0.5}`
	d := f.decoder(t, Protobuf)
	index := []byte{4, 2, 0} // two steps: the second message, the first in it
	for range 20 {
		got, err := d.Decode(context.Background(), nil, framed(3, append(slices.Clone(index), payload...)))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Fatalf("JSON\n%s\nwant\n%s", got, want)
		}
	}
	// The same schema as a compiled descriptor, by a registry that names no type.
	described := protodesc.ToFileDescriptorProto(files[0])
	for _, f := range described.MessageType[1].NestedType[0].Field {
		f.JsonName = proto.String("")
	}
	descriptor, err := proto.Marshal(described)
	if err != nil {
		t.Fatal(err)
	}
	f.ids["4"] = map[string]any{
		"schema":     base64.StdEncoding.EncodeToString(descriptor),
		"references": []any{map[string]any{"name": "wiki/user.proto", "subject": "user", "version": 1}},
	}
	if got, err := d.Decode(context.Background(), nil, framed(4, append(slices.Clone(index), payload...))); err != nil || string(got) != want {
		t.Errorf("by a descriptor: %s, %v", got, err)
	}
	// A single zero stands for the first message.
	if got, err := d.Decode(context.Background(), nil, framed(3, []byte{0})); err != nil || string(got) != `{}` {
		t.Errorf("the first message: %s, %v", got, err)
	}
	// The encoder orders fields as it likes, so that a payload less two bytes may be
	// a whole one: what is cut is a field that promises five bytes and has one.
	cut := append(append(slices.Clone(index), payload...), 0x0a, 5, 'x')
	for name, bad := range map[string][]byte{"no message there": {2, 18}, "cut": cut, "no path": {}} {
		if _, err := d.Decode(context.Background(), nil, framed(3, bad)); reasonOf(t, err) != ReasonBadPayload {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestJSONSchemaIsTheJSONAfterTheID(t *testing.T) {
	f := newFake(t)
	f.ids["4"] = map[string]any{"schemaType": "JSON", "schema": `{"type":"object"}`}
	got, err := f.decoder(t, JSONSchema).Decode(context.Background(), nil, framed(4, []byte(`{"a":1}`)))
	if err != nil || string(got) != `{"a":1}` {
		t.Fatalf("%s, %v", got, err)
	}
}

func TestWhatCannotBeReadIsAFaultOfTheValue(t *testing.T) {
	f := newFake(t)
	f.ids["1"] = map[string]any{"schemaType": "JSON", "schema": `{}`}
	f.ids["2"] = map[string]any{"schema": `{"type":"record"}`}
	f.ids["3"] = map[string]any{"schema": `"a.B"`, "references": []any{map[string]any{"name": "a.B", "subject": "gone", "version": 1}}}
	f.ids["5"] = map[string]any{"schema": `"string"`}
	d := f.decoder(t, Avro)
	for _, c := range []struct {
		name  string
		value []byte
		want  event.Reason
	}{
		{"plain JSON", []byte(`{"a":1}`), ReasonNotFramed},
		{"too short", []byte{0, 0, 0}, ReasonNotFramed},
		{"another format", framed(1, nil), ReasonBadSchema},
		{"not a schema", framed(2, nil), ReasonBadSchema},
		{"a reference that is gone", framed(3, nil), ReasonBadSchema},
		{"an unknown id", framed(99, nil), ReasonUnknownSchema},
		{"a length beyond the end", framed(5, []byte{0xfe, 0xff, 0xff, 0xff, 0x0f}), ReasonBadPayload},
	} {
		if _, err := d.Decode(context.Background(), nil, c.value); reasonOf(t, err) != c.want {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	// What was unknown may be registered later.
	f.ids["99"] = map[string]any{"schema": `"string"`}
	if got, err := d.Decode(context.Background(), nil, framed(99, []byte{2, 'x'})); err != nil || string(got) != `"x"` {
		t.Errorf("an id that was registered later: %s, %v", got, err)
	}
}

func TestARegistryThatIsAwayIsAskedAgain(t *testing.T) {
	f := newFake(t)
	f.ids["1"] = map[string]any{"schema": `"string"`}
	f.down.Store(3)
	got, err := f.decoder(t, Avro).Decode(context.Background(), nil, framed(1, []byte{2, 'x'}))
	if err != nil || string(got) != `"x"` {
		t.Fatalf("%s, %v", got, err)
	}
	f.down.Store(1 << 40)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for f.requests.Load() < 6 {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	if _, err := f.decoder(t, Avro).Decode(ctx, nil, framed(1, nil)); !errors.Is(err, context.Canceled) {
		t.Errorf("a batch that is given up: %v", err)
	}
}

func TestWhatIsWrongWithTheRegistryIsNamed(t *testing.T) {
	locked := newFake(t)
	locked.user = "weir"
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte("<html>"))
	}))
	defer page.Close()
	secure := httptest.NewTLSServer(locked)
	defer secure.Close()
	for _, c := range []struct{ name, url, want string }{
		{"no log-in", locked.URL, "does not let us in (401)"},
		{"another server", page.URL, "is not a schema registry: it answered 404"},
		{"a certificate of nobody", secure.URL, "schemaRegistry.tls.caFile"},
	} {
		d, err := New(Config{URLs: []string{c.url}, Format: Avro})
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{d.Reach(context.Background()), func() error {
			_, err := d.Decode(context.Background(), nil, framed(1, nil))
			return err
		}()} {
			if !failure.Is(err, failure.Config) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	}
}
