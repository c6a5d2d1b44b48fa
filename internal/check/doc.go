// Package check runs the assertions of a pipeline file over its tables and keeps
// what they found in a table.
//
// All checks of a run look at one set of snapshots. A reconciliation that names
// a table of gold reads the other tables at the snapshots that it was made from:
// gold that is behind is not wrong.
//
// Results are a row each; a run's rows come into the table in one commit, and
// once: the property weir.checks names the last run, and weir.check.<name> what
// the next run compares with (the number of rows).
package check
