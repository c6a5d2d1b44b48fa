// Package pipeline reads a pipeline file: one YAML document that says where
// the catalog, the tables, the checkpoints and the broker are, what is
// ingested, and which queries run.
//
// Load decodes, interpolates, fills in defaults and checks everything before
// anything is started, and reports every fault at once with its place in the
// file. What it returns is data: nothing here opens a connection or creates a
// folder.
//
// The structs are the only list of keys. The decoder, the JSON Schema
// (docs/pipeline.schema.json) and the key tables of docs/pipeline.md all walk
// them by their yaml and weir tags:
//
//	yaml:"key"            the key, in Spark's spelling where Spark has the option
//	weir:"required"       must be given
//	weir:"enum=a|b"       one of these words
//	weir:"path"           a local path, resolved against the file's folder
//	weir:"min=1"          least value of a number, length of a list
//	weir:"name"           a name that is also a file name
//	weir:"columntype"     the type of a column
package pipeline
