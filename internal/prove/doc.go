// Package prove breaks a running pipeline and counts. Its scenarios run the
// shipped binary as real processes, kill it with a real SIGKILL at a step that
// the process itself has reported or at a moment that a guard checks, start it
// again, and compare what the tables hold with what Kafka holds.
//
// Every scenario ends in one of three ways:
//
//	proved        the fault landed where it was meant to, and every count is
//	              what the scenario itself says it must be
//	violated      a count differs, or the pipeline could not go on
//	inconclusive  the fault did not land where it was meant to, or a part of
//	              the set-up failed: nothing was shown either way
//
// The counting is package audit's, which shares no code with what is tested;
// neither does this package. Where a Python with PyIceberg and DuckDB is given,
// these two count as well.
package prove
