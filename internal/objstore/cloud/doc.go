// Package cloud keeps checkpoints and tables' files in Google Cloud Storage and
// in Azure Blob Storage, over their plain HTTP APIs: a handful of calls each,
// instead of two SDKs that would double what is linked (docs/adr).
//
// Both have what the protocol stands on: a write on condition that nothing is
// there (ifGenerationMatch=0, If-None-Match: *), and user metadata by which a
// lost answer is told from another writer. Every attempt of a request is built
// and signed anew, so that credentials may be renewed between two of them.
package cloud
