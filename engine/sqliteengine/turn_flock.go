//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package sqliteengine

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// turn is the place of this process in the kernel's queue of processes that want to write. SQLite
// itself has none: each process would try again and again, and with a hundred of them most tries
// are in vain. A process that has the turn beside another, as when somebody deleted its file, waits
// for SQLite's own lock. So does a process that cannot open the file, or finds something else there.
//
// The kernel ends the turn of a process that ends.
type turn struct {
	path string
	mode os.FileMode

	mu     sync.Mutex
	file   *os.File   // made when something is written for the first time
	asking bool       // a goroutine waits in the kernel
	given  chan error // of the call that waits for that goroutine
}

// newTurn returns a turn whose file has the rights of its database.
func newTurn(path string, mode os.FileMode) *turn { return &turn{path: path, mode: mode} }

// open makes the file, once, and reports whether it is there. t.mu is held.
func (t *turn) open() bool {
	if t.file == nil {
		t.file = only(0)(os.OpenFile(t.path, os.O_RDONLY|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, t.mode))
		t.file.Chmod(t.mode) //nolint:errcheck // only its owner may, and has
		dialect{path: strings.TrimSuffix(t.path, "-turn")}.give(t.file.Chown)
	}
	return t.file != nil
}

// take waits for the turn. At most one goroutine of an engine waits in the kernel:
// that wait cannot be given up, and the next call takes it over.
func (t *turn) take(ctx context.Context) (end func(), err error) {
	t.mu.Lock()
	if !t.open() { // another user may have made the file, and alone may open that
		t.mu.Unlock()
		return func() {}, nil
	}
	if !t.asking {
		err := t.lock(unix.LOCK_EX | unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			t.mu.Unlock()
			return t.end, err
		}
		t.asking = true
		go t.ask()
	}
	given := make(chan error, 1)
	t.given = given
	t.mu.Unlock()
	select {
	case err := <-given:
		return t.end, err
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.given = nil
	select {
	case err := <-given:
		if err == nil {
			t.end()
		}
	default:
	}
	return nil, ctx.Err()
}

// ask waits in the kernel, and gives the turn up if nobody wants it any more.
func (t *turn) ask() {
	err := t.lock(unix.LOCK_EX)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asking = false
	switch {
	case t.given != nil:
		t.given <- err
		t.given = nil
	case err == nil:
		t.end()
	}
}

func (t *turn) end() { t.lock(unix.LOCK_UN) } //nolint:errcheck // closing the file does it too

func (t *turn) lock(how int) error {
	raw, err := t.file.SyscallConn()
	if err != nil {
		return err
	}
	failed := raw.Control(func(fd uintptr) {
		for err = unix.EINTR; err == unix.EINTR; {
			err = unix.Flock(int(fd), how)
		}
	})
	return errors.Join(failed, err)
}

func (t *turn) close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.file == nil {
		return nil
	}
	return t.file.Close()
}
