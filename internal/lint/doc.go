// Package lint holds tests about the source tree itself: which package may
// import which, that every crash point is documented, that no machine's path
// or unfinished work stands in the code. It has no code of its own.
package lint
