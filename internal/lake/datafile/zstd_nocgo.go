//go:build !cgo

package datafile

// zstdLibrary names the compressor in benchmarks. Without cgo arrow-go's own
// codec (klauspost/compress) stays registered; the files are the same format.
const zstdLibrary = "klauspost"
