// Package commandtest holds only tests: every command that the documents show is run as
// it stands there, against private servers.
package commandtest
