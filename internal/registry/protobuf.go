package registry

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/reporter"
	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// rootFile is the name that a schema is compiled under; no import has it.
const rootFile = "weir.registry.root.proto"

// wrappersFile has messages of one value each, which stand for that value.
const wrappersFile = "google/protobuf/wrappers.proto"

// maxIndex bounds how deep messages are nested in messages.
const maxIndex = 64

// protobufReader reads payloads of a .proto file: the path of the message in it,
// then the message.
func protobufReader(ctx context.Context, schema string, references []named) (func(dst, payload []byte) ([]byte, error), error) {
	sources := map[string]string{rootFile: schema}
	for _, r := range references {
		sources[r.name] = r.schema
	}
	compiler := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(protocompile.ResolverFunc(func(path string) (protocompile.SearchResult, error) {
			text, ok := sources[path]
			if !ok {
				return protocompile.SearchResult{}, protoregistry.NotFound
			}
			if d := compiled(text); d != nil {
				d.Name = proto.String(path)
				return protocompile.SearchResult{Proto: d}, nil
			}
			return protocompile.SearchResult{Source: strings.NewReader(text)}, nil
		})),
		Reporter: reporter.NewReporter(nil, nil),
	}
	files, err := compiler.Compile(ctx, rootFile)
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), rootFile+":"))
	}
	file := files[0]
	// No extension is looked for: what is none of the schema's fields stays unread.
	unmarshal := proto.UnmarshalOptions{Resolver: dynamicpb.NewTypes(nil)}
	return func(dst, payload []byte) ([]byte, error) {
		index, payload, err := new(sr.ConfluentHeader).DecodeIndex(payload, maxIndex)
		if err != nil {
			return dst, fmt.Errorf("the path of the message cannot be read: %w", err)
		}
		d, err := messageAt(file, index)
		if err != nil {
			return dst, err
		}
		m := dynamicpb.NewMessage(d)
		if err := unmarshal.Unmarshal(payload, m); err != nil {
			return dst, err
		}
		return appendMessage(dst, m)
	}, nil
}

// compiled is a schema that was registered as a compiled descriptor in base64, as
// Confluent's serializers of some languages do; nil where it is the file's text.
func compiled(schema string) *descriptorpb.FileDescriptorProto {
	b, err := base64.StdEncoding.DecodeString(schema)
	if err != nil {
		return nil
	}
	d := new(descriptorpb.FileDescriptorProto)
	if proto.Unmarshal(b, d) != nil {
		return nil
	}
	nameForJSON(d.MessageType)
	return d
}

// nameForJSON gives fields a JSON name, which is not used here: some registries
// leave it empty, which the compiler takes for the same name twice.
func nameForJSON(messages []*descriptorpb.DescriptorProto) {
	for _, m := range messages {
		for _, f := range m.Field {
			f.JsonName = proto.String(f.GetName())
		}
		nameForJSON(m.NestedType)
	}
}

// messageAt is the message at a path: which one of the file, then which one in it.
func messageAt(file protoreflect.FileDescriptor, index []int) (protoreflect.MessageDescriptor, error) {
	within := file.Messages()
	var d protoreflect.MessageDescriptor
	for _, i := range index {
		if i < 0 || i >= within.Len() {
			return nil, fmt.Errorf("the schema has no message at %v", index)
		}
		d = within.Get(i)
		within = d.Messages()
	}
	if d == nil {
		return nil, errors.New("the path of the message is empty")
	}
	return d, nil
}

// appendMessage writes a message as JSON.
func appendMessage(dst []byte, m protoreflect.Message) ([]byte, error) {
	if len(dst) > 2*maxJSON {
		return dst, fmt.Errorf("more than %d MiB as JSON", maxJSON>>20)
	}
	switch file := m.Descriptor().ParentFile().Path(); {
	case file == wrappersFile:
		f := m.Descriptor().Fields().Get(0)
		return appendSingle(dst, f, m.Get(f))
	case strings.HasPrefix(file, "google/protobuf/"):
		return appendWellKnown(dst, m)
	}
	fields := m.Descriptor().Fields()
	dst = append(dst, '{')
	first := true
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.HasPresence() && !m.Has(f) {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(appendText(dst, string(f.Name())), ':')
		var err error
		if dst, err = appendField(dst, f, m.Get(f)); err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
}

func appendField(dst []byte, f protoreflect.FieldDescriptor, v protoreflect.Value) ([]byte, error) {
	var err error
	switch {
	case f.IsMap():
		type entry struct {
			key   string
			value protoreflect.Value
		}
		var entries []entry
		v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			entries = append(entries, entry{k.String(), v})
			return true
		})
		slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.key, b.key) })
		dst = append(dst, '{')
		for i, e := range entries {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendText(dst, e.key), ':')
			if dst, err = appendSingle(dst, f.MapValue(), e.value); err != nil {
				return dst, err
			}
		}
		return append(dst, '}'), nil
	case f.IsList():
		dst = append(dst, '[')
		for i := range v.List().Len() {
			if i > 0 {
				dst = append(dst, ',')
			}
			if dst, err = appendSingle(dst, f, v.List().Get(i)); err != nil {
				return dst, err
			}
		}
		return append(dst, ']'), nil
	default:
		return appendSingle(dst, f, v)
	}
}

// appendSingle writes one value of a field's kind.
func appendSingle(dst []byte, f protoreflect.FieldDescriptor, v protoreflect.Value) ([]byte, error) {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return strconv.AppendBool(dst, v.Bool()), nil
	case protoreflect.EnumKind:
		if e := f.Enum().Values().ByNumber(v.Enum()); e != nil {
			return appendText(dst, string(e.Name())), nil
		}
		return strconv.AppendInt(dst, int64(v.Enum()), 10), nil
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind, protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return strconv.AppendUint(dst, v.Uint(), 10), nil
	case protoreflect.FloatKind:
		return appendFloat(dst, v.Float(), 32), nil
	case protoreflect.DoubleKind:
		return appendFloat(dst, v.Float(), 64), nil
	case protoreflect.StringKind:
		return appendText(dst, v.String()), nil
	case protoreflect.BytesKind:
		return appendBase64(dst, v.Bytes()), nil
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return appendMessage(dst, v.Message())
	default:
		return strconv.AppendInt(dst, v.Int(), 10), nil
	}
}

// appendWellKnown writes a message of google.protobuf as proto3's JSON has it.
// The library varies its white space on purpose; none of it is kept.
func appendWellKnown(dst []byte, m protoreflect.Message) ([]byte, error) {
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m.Interface())
	if err != nil {
		return dst, err
	}
	out := bytes.NewBuffer(dst)
	if err := json.Compact(out, b); err != nil {
		return dst, err
	}
	return out.Bytes(), nil
}
