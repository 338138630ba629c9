// Package idemleasetest shows what package idem promises of claims with a lease: many processes work
// on the same keys, are killed, and do not hear what the store answers. It has tests only, because
// its processes are the test binary.
package idemleasetest
