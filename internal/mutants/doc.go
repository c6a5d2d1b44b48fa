// Package mutants breaks one rule of the protocol at a time, on purpose, and
// demands that a named test notices. A rule that can be broken without a test
// failing is not held by anything. The sources are changed through a build
// overlay, never on disk. The package has tests only: make mutants.
package mutants
