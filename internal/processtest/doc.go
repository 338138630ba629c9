// Package processtest holds only tests: the primitives between real processes, over real stores.
// Some of the processes are killed.
package processtest
