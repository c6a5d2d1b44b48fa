// Package schedule starts jobs: at times (cron, intervals), after commits, after
// other jobs. One run of a job at a time; history in a table.
//
//	          due (time, commit, job)
//	idle ───────────────────────────► running ──► succeeded | failed
//	  ▲        begin: the open run is      │        end: one row, and the record,
//	  │        in the table's record       │        in one commit
//	  └────────────────────────────────────┘
//
// What is durable: the record of a job, a property of the runs table, names its
// open run before the job does anything; the commit that ends it adds the run's
// one row. A process that is killed in between leaves an open run, which the
// next start closes as interrupted and, unless the job skips what it missed,
// makes up for. So a run is in the table once, however it ended.
//
// When a run is due is decided by planner, which has no clock and no I/O.
package schedule
