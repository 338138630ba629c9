//go:build race

package open_test

// sqliteCycles is smaller under the race detector. There SQLite, which is translated to Go, is
// twenty times as slow. `make soak` runs all cycles.
const sqliteCycles = cycles / 20
