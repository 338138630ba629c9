//go:build race

package open_test

// sqliteCycles is smaller under the race detector, in which SQLite, being
// translated to Go, is twenty times as slow. `make soak` runs them all.
const sqliteCycles = cycles / 20
