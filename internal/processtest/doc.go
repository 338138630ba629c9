// Package processtest holds only tests: the primitives between real processes, of
// which some are killed, over real stores.
package processtest
