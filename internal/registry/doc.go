// Package registry reads record values that were written with a schema registry
// (Confluent's wire format: a zero byte, the schema's id in four bytes, the
// payload) and gives them as JSON text, which the operator chain reads like any
// other value.
//
// The text is the same for the same bytes, always: members stand in the order of
// the schema, the entries of a map in the order of their keys.
//
//   - Avro: unions as the bare value, bytes and fixed as base64, enums as their
//     symbol, decimals as a number with all digits, timestamps as RFC 3339 in
//     UTC (local ones without a zone), dates as 2006-01-02, times of day as
//     15:04:05.999999, UUIDs as text, floats that are no number as null.
//   - Protobuf: members by the names of the .proto file; a field that is not set
//     is left out where the format can tell (messages, optional, oneof) and has its
//     default elsewhere; 64-bit integers are numbers, enums their names, bytes
//     base64, wrappers the bare value; the other well-known types as proto3's JSON
//     has them.
//   - JSON Schema: the payload as it is.
//
// A schema is looked up once: an id never changes its meaning. The format is
// https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format.
package registry
