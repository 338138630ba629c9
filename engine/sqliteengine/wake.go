package sqliteengine

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"
)

// Each session has an inbox: a folder beside the file, watched by the process
// of the session only, so that a message wakes nobody else. A message is an
// empty file there, named for the claim that it concerns. It is a hint that
// may come twice or be lost: the claim in the database counts, and is read
// afterwards.

// message is told to a session after the transaction was committed.
type message struct {
	session, claim string
	gone           bool // it was held, and another took it away; else look at it
}

func (e *Engine) inbox(session string) string { return filepath.Join(e.path+"-wake", session) }

// openInbox reports whether messages can arrive. Where they cannot, as when
// the user has no inotify instance left, waiters poll. It is called inside a
// transaction, so that no other process takes the inbox for an abandoned one.
func (e *Engine) openInbox(session string) bool {
	return e.watcher != nil && os.MkdirAll(e.inbox(session), 0o700) == nil && e.watcher.Add(e.inbox(session)) == nil
}

func (e *Engine) closeInbox(session string) {
	if e.watcher != nil {
		e.watcher.Remove(e.inbox(session)) //nolint:errcheck // gone with the folder
	}
	os.RemoveAll(e.inbox(session)) //nolint:errcheck // left to the next process that starts
}

// deliver passes the messages on, in this process without a file.
func (t *tx) deliver() {
	for _, m := range t.messages {
		if !t.receive(m) {
			t.post(m)
		}
	}
	for _, session := range t.buried {
		os.RemoveAll(t.inbox(session)) //nolint:errcheck // left to the next process that starts
	}
}

func (e *Engine) post(m message) {
	name := "look-" + url.PathEscape(m.claim)
	if m.gone {
		name = "gone-" + url.PathEscape(m.claim)
	}
	// Truncating makes an event also of a message that is still there.
	f, err := os.OpenFile(filepath.Join(e.inbox(m.session), name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err == nil { // else the receiver is gone or polls
		f.Close() //nolint:errcheck // empty
	}
}

// receive handles a message to a session of this process.
func (e *Engine) receive(m message) bool {
	e.mu.Lock()
	s := e.sessions[m.session]
	if s == nil {
		e.mu.Unlock()
		return false
	}
	select {
	case s.wake[m.claim] <- struct{}{}:
	default: // nobody waits, or will look anyway
	}
	e.mu.Unlock()
	if m.gone && s.opts.Gone != nil {
		s.opts.Gone(m.claim)
	}
	return true
}

// watch receives what other processes post until the watcher is closed.
func (e *Engine) watch() {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return // see openInbox
	}
	e.watcher = watcher
	e.tasks.Go(func() {
		for {
			select {
			case event, open := <-watcher.Events:
				if !open {
					return
				}
				if event.Has(fsnotify.Create) || event.Has(fsnotify.Write) {
					e.take(event.Name)
				}
			case _, open := <-watcher.Errors: // events were lost: waiters look again by themselves
				if !open {
					return
				}
			}
		}
	})
}

func (e *Engine) take(path string) {
	os.Remove(path) //nolint:errcheck // before the claim is read, so that a later message is another
	kind, name, _ := strings.Cut(filepath.Base(path), "-")
	if claim, err := url.PathUnescape(name); err == nil {
		e.receive(message{session: filepath.Base(filepath.Dir(path)), claim: claim, gone: kind == "gone"})
	}
}

// tidy removes the inboxes that processes left when they were killed.
func (t *tx) tidy() error {
	inboxes, _ := os.ReadDir(t.path + "-wake") // there may be none yet
	for _, inbox := range inboxes {
		var known bool
		if err := t.get(`SELECT EXISTS (SELECT 1 FROM pawl_sessions WHERE id = ?)`, args{inbox.Name()}, &known); err != nil {
			return err
		}
		if !known {
			os.RemoveAll(t.inbox(inbox.Name())) //nolint:errcheck // once more next time
		}
	}
	return nil
}
