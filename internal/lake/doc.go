// Package lake is the one way to Iceberg tables: the catalog, durable file
// access, tables, commits and expiry. Sources, sinks, gold and maintenance
// stand on it; auditing does not (it counts with an implementation of its own).
//
// # What the library is not trusted with
//
// iceberg-go gives metadata, manifests and transactions. Three things are done
// here instead:
//
//   - Durability. The library's local file access never syncs. FileIO writes to
//     a temporary name, syncs, renames and syncs the folder, so that a commit
//     never refers to a file that a power cut can take away.
//   - The swap. Catalog.CommitTable writes the new metadata and swaps the
//     catalog's pointer itself, so that an outcome is one of three: committed,
//     ErrConflict (certainly not committed, the head has moved), ErrUnknown
//     (anything else: only a reload can tell).
//   - Retries. A failed transaction of the library is terminal, and its own
//     replay would re-parent a commit whose marker was checked against another
//     head. Nothing is retried in here; the caller loads again and decides.
//
// # What may go backwards
//
// Nothing: sequence numbers grow with every snapshot of a table. A head whose
// number is below one seen earlier means that the table was rolled back or made
// again, which sink/iceberg reports as a rewound sink.
package lake
