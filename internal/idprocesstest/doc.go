// Package idprocesstest holds only a test of all kinds of IDs. Processes that are killed make them, by clocks
// that are set and over stores that fail.
package idprocesstest
