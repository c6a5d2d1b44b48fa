// Package file is the sink that drops files into a folder, on the local disk or
// in an object store: NDJSON, CSV or Parquet, some files a batch, each made once
// and never changed.
//
// # What is promised
//
// A file that is visible belongs to a committed batch, each row of a batch is in
// exactly one of its files, and no name is ever written with other bytes.
//
// # How
//
// The folder has a log of its own under _weir/<query>/log: numbered entries, each
// created once after the newest was read. An entry is a claim, or a batch with
// its marker and the list of its files; making the entry is the commit.
//
//	1  stage    the files' bytes under _weir/<query>/staged, a name per attempt
//	2  commit   the log's next entry: marker, names, sizes, checksums
//	3  publish  each file under its own name, created once with the staged bytes
//	4  manifest the batch's manifest, created once: it is complete now
//
// A crash before 2 leaves staged files that nothing names. After 2 the batch is
// committed; whoever opens the folder next does 3 and 4 again, which changes
// nothing where they were done. Files are made visible only after the commit,
// because a plan that is superseded after a loss of the checkpoint would cut its
// batch elsewhere: its files would be in the way of those that count.
//
// A claim takes the number that a zombie's commit needs, so that the zombie's
// create-once fails: that is the fencing. The log can be read back, so a lost
// checkpoint is adopted from it as from a table.
//
// # What a consumer may do
//
// Read files that a manifest lists, in the order of the batch ids. Data files may
// be removed when their manifest is there; a manifest when a later one is, because
// the newest manifest is what says that publishing is over.
package file
