//go:build !race

package open_test

const sqliteCycles = cycles
