// Package upsert is what the merge of changes by key has in common for every
// kind of table: the key and the order of rows, a source reduced to the last row
// of each key, and which rows of a table it replaces. It does no I/O.
//
// # The rule
//
// The source's rows are reduced to the last one of each key by the declared
// order; of rows that are equal in it the later one in the source counts. A row
// of the table that comes after the source's by the same order stays (the change
// is late); any other is replaced, or goes where the change is a delete. So the
// same source again changes nothing, and neither do the same sources in another
// order, as long as no key is deleted: the row of a deleted key is gone, and its
// order with it. What remembers deletes is the transform (package operator).
package upsert
