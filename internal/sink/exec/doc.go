// Package exec is the sink that hands each batch to a program of the user's: the
// rows on its standard input, the ids in its environment.
//
// # What is promised
//
// At least once, and always the same, as package foreachbatch says. A program
// that writes under WEIR_BATCH_KEY, or under the record key in each row, is exact.
//
// # The program's side
//
// Standard input is a file that was written whole before the program began, so
// that a kill of weir never looks like the end of a shorter batch. The exit code
// says what became of the batch:
//
//	0    done; with ackRows the last line of standard output is the number of rows
//	75   not done, try again (EX_TEMPFAIL): with growing pauses, up to a deadline
//	else failed: the query stops, and the batch comes again with the next start
//
// A program that takes longer than its time is ended, with everything in its
// process group, and the batch tried again as after 75. Standard error goes to the
// log, bounded. There is no shell unless one is asked for.
package exec
