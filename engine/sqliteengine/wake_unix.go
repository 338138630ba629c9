//go:build unix

package sqliteengine

import "golang.org/x/sys/unix"

func makePipe(path string) error { return unix.Mkfifo(path, 0o600) }

// writePipe does not wait for a reader. The message is lost when there is none, or when the reader
// is stopped and the pipe is full.
func writePipe(path string, message []byte) {
	pipe, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	unix.Write(pipe, message) //nolint:errcheck // see above
	unix.Close(pipe)          //nolint:errcheck // nothing is buffered
}
