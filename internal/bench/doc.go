// Package bench measures the shipped binary from the outside.
//
// What is measured runs as a child process, `weir run` or `weir ingest` of the
// same binary, as a user would run it: its CPU time is the kernel's account of
// that process (rusage), its memory the kernel's high-water mark (VmHWM). The
// broker is a process of its own and is not counted. What became visible, and
// when, is read from the tables by package audit, which shares no code with the
// writer and remembers nothing between two looks.
//
// Nothing is switched off for a measurement: the child plans, syncs, commits
// and reports as always.
package bench
