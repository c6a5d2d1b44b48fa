// Package datafile writes the Parquet files of an Iceberg table and describes
// them for a commit. It knows nothing of catalogs, snapshots or markers.
//
// The library's own partitioned writer is not used: when the file of one
// partition cannot be opened it drops that partition's rows and reports
// success. Here every error of every file comes out of Write or Close, and
// Close refuses to describe fewer rows than were given to Write.
package datafile
