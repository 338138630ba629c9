//go:build !race

package open_test

const cycles, sqliteCycles = 100_000, 100_000
