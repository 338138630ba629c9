//go:build !unix

package sqliteengine

import (
	"errors"
	"os"
)

// Without named pipes waiters poll.
func makePipe(string) error { return errors.ErrUnsupported }

func writePipe(*os.File, []byte) {}
