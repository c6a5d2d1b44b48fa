// Package postgres is the sink over a table of a Postgres database.
//
// # What the database remembers
//
// Two small tables in the schema of the target:
//
//	weir_tables    one row a target: its identity (a UUID) and the oid of the
//	               table that the identity was given to
//	weir_markers   one row a target and query: query id, epoch, batch id and
//	               position in columns of their own, and the whole marker as JSON
//
// A batch is one transaction: lock the marker's row (SELECT … FOR UPDATE),
// compare it with the batch (external.Judge), COPY the rows, write the marker,
// COMMIT. So rows and marker are there together or not at all, two runs cannot
// both pass the comparison, and a claim, which writes the same row under a newer
// epoch, fences whoever comes after it.
//
// # Outcomes of a commit
//
// After any error the connection is given up and the marker is read over a new
// one: the batch is in it, or it is done again, until the deadline. An answer
// that stays out after COMMIT was sent is the exit code 6.
//
// # A predecessor that stands still
//
// A process that is stopped in the middle of a transaction keeps the marker's row
// locked. A claim that waits for it too long ends that session
// (pg_terminate_backend): its transaction is rolled back, which is what the claim
// is for. Sessions are known by their application name.
//
// # Refused rows
//
// A row that the database refuses (SQLSTATE classes 22 and 23) fails the batch, or
// is isolated by bisection under savepoints. Deferred constraints are checked at
// once, so that COMMIT refuses nothing.
package postgres
