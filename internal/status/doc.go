// Package status is the page to watch a pipeline on, its JSON, its probes and
// its metrics.
//
//	queries, ingestion ──► Board ──► Model ──► page (/), events (/events)
//	facts, on demand  ──►                 ├──► JSON (/api/status, /api/batches)
//	                                      ├──► probes (/livez, /readyz)
//	                                      └──► Prometheus (/metrics)
//
// The Board is fed: once a batch by the queries, and by functions that are
// asked for what nobody reports (table heads, topic ends), at most every few
// seconds and only while somebody looks. A pipeline that nobody looks at pays
// for one lock and one append a batch.
//
// Nothing here changes anything: there is no endpoint that does more than read,
// and methods other than GET and HEAD are refused. The package knows no other
// package of the project but clock and failure; whoever composes the program
// fills in its plain structs.
package status
