// Package idemleasetest tests the claims with a lease of package idem. Many processes work on the same
// keys, are killed, and lose answers of the store. The package has tests only, because
// its processes are the test binary.
package idemleasetest
