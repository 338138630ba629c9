//go:build race

package open_test

// There are fewer cycles under the race detector, which slows all down, and SQLite, which is translated
// to Go, to a twentieth. `make soak` runs all.
const cycles, sqliteCycles = 20_000, 2_500
