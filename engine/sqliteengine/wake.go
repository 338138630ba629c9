package sqliteengine

import (
	"bufio"
	"fmt"
	"io/fs"
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
	var pipe *os.File
	os.Mkdir(d.inbox(""), 0o700) //nolint:errcheck // it may be there
	d.in(func(folder *os.Root) { pipe = d.makeInbox(folder, session) })
	if pipe == nil {
		return nil
	}
	go func() {
		for lines := bufio.NewScanner(pipe); lines.Scan(); {
			m := sqlengine.Message{Session: session}
			if _, err := fmt.Sscanf(lines.Text()+"\n", format, (*uint64)(&m.Token), &m.Gone, &m.Claim); err != nil {
				continue
			}
			if claim, err := url.QueryUnescape(m.Claim); err == nil {
				m.Claim = claim
				receive(m)
			}
		}
	}()
	return func() { pipe.Close() } //nolint:errcheck // only read from
}

// in calls do in the folder of the inboxes, unless a symbolic link is in its place. Another user of the
// database may have made such a link, or a pipe. The dot opens nothing but a folder, so no client waits in a pipe.
func (d dialect) in(do func(folder *os.Root)) {
	is, _ := os.Lstat(d.inbox(""))
	if folder, err := os.OpenRoot(d.inbox("") + "/."); err == nil {
		defer folder.Close()
		if opened, _ := folder.Stat("."); os.SameFile(is, opened) {
			do(folder)
		}
	}
}

// makeInbox makes the inbox of a session. Every user of the database may write to it. So the folder keeps the
// bit by which new files there have its group.
func (d dialect) makeInbox(folder *os.Root, session string) *os.File {
	mode, err := d.mode()
	is, failed := folder.Stat(".")
	if err != nil || failed != nil || makePipe(d.inbox(session)) != nil {
		return nil
	}
	d.give(func(uid, gid int) error { return folder.Lchown(".", uid, gid) })
	folder.Chmod(".", mode|mode>>2&0o111|is.Mode()&fs.ModeSetgid)                             //nolint:errcheck // whoever made it has
	pipe := only(fs.ModeNamedPipe)(folder.OpenFile(session, os.O_RDWR|syscall.O_NONBLOCK, 0)) // with a writer it has no end
	d.give(pipe.Chown)
	if pipe.Chmod(mode) != nil {
		pipe.Close()
		return nil
	}
	return pipe
}

// Post writes to a pipe only. The name of the session may come from the database, so the name may lead elsewhere.
func (d dialect) Post(m sqlengine.Message) {
	d.in(func(folder *os.Root) {
		pipe := only(fs.ModeNamedPipe)(folder.OpenFile(m.Session, os.O_WRONLY|syscall.O_NONBLOCK, 0))
		writePipe(pipe, fmt.Appendf(nil, format, uint64(m.Token), m.Gone, url.QueryEscape(m.Claim)))
		pipe.Close()
	})
}

// Forget removes pipes only, see Post.
func (d dialect) Forget(session string) {
	d.in(func(folder *os.Root) {
		if is, err := folder.Lstat(session); err == nil && is.Mode()&fs.ModeNamedPipe != 0 {
			folder.Remove(session) //nolint:errcheck // left to the next process that starts
		}
	})
}

// inboxes are those of all sessions, also of processes that were killed.
func (d dialect) inboxes() (all []fs.DirEntry) {
	d.in(func(folder *os.Root) { all, _ = fs.ReadDir(folder.FS(), ".") })
	return all
}
