package sqliteengine

import (
	"bufio"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"syscall"

	"github.com/pawl-go/pawl/internal/sqlengine"
)

// inbox is the named pipe of a session, in a folder beside the file. Only its own process reads it,
// so a message wakes nobody else. A message that nobody reads is not stored.
func (d dialect) inbox(session string) string { return filepath.Join(d.path+"-wake", session) }

const format = "%d %t %s\n" // token, gone, claim: less than the system writes in one piece

func (d dialect) Listen(session string, receive func(sqlengine.Message)) func() {
	path := d.inbox(session)
	mode, err := d.mode()
	if err != nil || os.MkdirAll(filepath.Dir(path), 0o700) != nil || makePipe(path) != nil {
		return nil
	}
	os.Chmod(filepath.Dir(path), mode|mode>>2&0o111) //nolint:errcheck // whoever made it has
	d.give(filepath.Dir(path))
	if os.Chmod(path, mode) != nil {
		return nil
	}
	d.give(path)
	pipe, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0) // with a writer it has no end
	if err != nil {
		return nil
	}
	go func() {
		for lines := bufio.NewScanner(pipe); lines.Scan(); {
			m := sqlengine.Message{Session: session}
			if _, err := fmt.Sscanf(lines.Text()+"\n", format, (*uint64)(&m.Token), &m.Gone, &m.Claim); err != nil {
				continue
			}
			if m.Claim, err = url.QueryUnescape(m.Claim); err == nil {
				receive(m)
			}
		}
	}()
	return func() { pipe.Close() } //nolint:errcheck // only read from
}

func (d dialect) Post(m sqlengine.Message) {
	writePipe(d.inbox(m.Session), fmt.Appendf(nil, format, uint64(m.Token), m.Gone, url.QueryEscape(m.Claim)))
}

func (d dialect) Forget(session string) {
	os.Remove(d.inbox(session)) //nolint:errcheck // left to the next process that starts
}
