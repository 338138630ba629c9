//go:build !unix

package sqliteengine

import "errors"

// Without named pipes waiters poll.
func makePipe(string) error { return errors.ErrUnsupported }

func writePipe(string, []byte) {}
