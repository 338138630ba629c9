// Package queuetest holds only tests: package queue against random commands.
// The tests live here, not beside it. The modules that the tests of an
// imported package need end up in the go.sum of every user.
package queuetest
