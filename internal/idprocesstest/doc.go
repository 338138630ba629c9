// Package idprocesstest holds only a test: all kinds of IDs, made by processes that are killed, by clocks that
// are set and over stores that fail.
package idprocesstest
