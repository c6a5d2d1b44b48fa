// Package sim runs the shipped engine in a world that is simulated from a seed:
// the disk, the catalog's pointers, the topic and the clock are this package's,
// everything above them (engine, checkpoint, operators, table source, sink,
// commit code) is what the binary runs.
//
// Every operation by which a process touches the world stops at a gate. When
// all goroutines of all processes wait (testing/synctest says so), the
// scheduler lets exactly one of them go on, and may kill the process before,
// within or after the operation, lose the answer, refuse it, suspend the
// process, cut the power of the whole world, or let virtual time pass. All of
// that comes from the seed, so a seed that fails can be run again:
//
//	go test ./internal/sim -run TestARandomSchedule -sim.seed N
//
// The disk forgets on a power cut what was not fsynced, and may keep torn parts
// of it (package objstore). The package has tests only.
package sim
