// Package tests holds the tests that run the built binary as a user would:
// real processes, real SIGKILL, real Kafka, independent readers. They need
// WEIR_BIN (make build) and WEIR_PYTHON (scripts/venv.sh); `make test` sets
// both.
package tests
