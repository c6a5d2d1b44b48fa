// Package app composes: it turns a pipeline file into an embedded broker,
// topics, ingestion and queries, and runs them together. It decides nothing of
// the protocol; that is the engine's.
package app
