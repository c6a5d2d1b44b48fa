// Package release knows what a release of weir is made of: the modules that are
// linked into the binary, the licence of each, and the documents that go with
// them (third-party notices, software bill of materials). Its test is the
// licence check: a module whose licence is unknown, or not one of Allowed, fails
// the tests of the project, not only a release.
package release
