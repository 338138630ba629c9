//go:build unix

package sqliteengine

import (
	"os"

	"golang.org/x/sys/unix"
)

func makePipe(path string) error { return unix.Mkfifo(path, 0o600) }

// writePipe does not wait for a reader. The message is lost when the reader is stopped and the pipe is full.
func writePipe(pipe *os.File, message []byte) {
	if raw, err := pipe.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.Write(int(fd), message) }) //nolint:errcheck // see above
	}
}
