// Package iceberg is the sink over an Iceberg table.
//
// # What the table remembers
//
// Each commit of a query writes its marker twice: into the table property
// weir.query.<name>, which outlives expiry and other engines' rewrites and is
// the one that decides, and into the summary of the snapshot, by which a
// rolled-back table is told from an ordinary one. Both are in the same metadata
// file, so no reader sees one without the other.
//
// # Why a claim moves the head
//
// No requirement of Iceberg covers a property: two writers that both read
// property = 5 may both write 6. But every commit here asserts the id of the
// head that its marker was read from, and every commit, a claim included, makes
// a snapshot. So whoever commits second has read an old head and fails, however
// late its request arrives. A claim that only set the property would fence
// nothing, which is why none is ever made.
//
// # Outcomes of a commit
//
// An error of the catalog says little: a time-out may hide a success. So after
// any error the table is loaded again and asked: our attempt is there (found),
// somebody else's is (fenced), the head moved and the marker did not (the same
// files go into a new transaction), or nothing happened (tried again). A commit
// that is still under way after its caller gave up cannot land later beside a
// second one: both assert the same head.
//
// A data file is never deleted here. A failed commit may have been made.
package iceberg
