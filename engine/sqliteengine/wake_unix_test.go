//go:build unix

package sqliteengine

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/sqlengine"
)

// A process that is stopped does not read its inbox. Nobody waits for it.
func TestFullInbox(t *testing.T) {
	d := dialect{path: filepath.Join(t.TempDir(), "pawl.db")}
	if err := os.Mkdir(d.inbox(""), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := makePipe(d.inbox("stopped")); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(d.inbox("stopped"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	for range 10_000 { // 64 KiB fit
		d.Post(sqlengine.Message{Session: "stopped", Claim: "claim", Token: 1})
	}
}

// TestInboxesElsewhere: another user of the database may make a symbolic link in place of the folder of inboxes.
// That user may also store a session whose name leads out of the folder. Nothing is removed, made or changed there.
func TestInboxesElsewhere(t *testing.T) {
	victim, path := t.TempDir(), file(t)
	if err := os.WriteFile(filepath.Join(victim, "precious"), []byte("kept"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := makePipe(filepath.Join(victim, "pipe")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(victim, 0o755); err != nil {
		t.Fatal(err)
	}
	unchanged := func(when string) {
		t.Helper()
		is, err := os.Stat(victim)
		names, failed := os.ReadDir(victim)
		if err != nil || failed != nil || is.Mode().Perm() != 0o755 || len(names) != 2 {
			t.Errorf("%s: %v has %v, %v, %v", when, is.Mode(), names, err, failed)
		}
		if is, err := os.Stat(filepath.Join(victim, "precious")); err != nil || is.Mode() != 0o640 {
			t.Errorf("%s: %v, %v", when, is, err)
		}
	}
	e := newEngine(t, path)
	if err := os.Symlink(victim, path+"-wake"); err != nil {
		t.Fatal(err)
	}
	newEngine(t, path)
	unchanged("opened")
	open(t, e, time.Hour)
	unchanged("with a session")
	if err := os.Remove(path + "-wake"); err != nil {
		t.Fatal(err)
	}
	s := open(t, e, time.Hour)
	for _, name := range []string{"precious", "pipe"} {
		out, err := filepath.Rel(path+"-wake", filepath.Join(victim, name))
		if err != nil {
			t.Fatal(err)
		}
		update(t, e, `INSERT INTO pawl_sessions (id, ends, ttl, label) VALUES (?, 0, 0, '')`, out)
	}
	if _, err := s.Renew(t.Context(), nil); err != nil { // the verb buries both
		t.Error(err)
	}
	unchanged("after their end")
}

// TestPipesInPlace: another user of the database may make a pipe in place of a companion of the file. To open such a
// pipe waits for its other end. No client waits, and the waiters poll.
func TestPipesInPlace(t *testing.T) {
	for _, companion := range []string{"-wake", "-turn"} {
		t.Run(companion, func(t *testing.T) {
			path := file(t)
			newEngine(t, path)
			if err := errors.Join(os.RemoveAll(path+companion), makePipe(path+companion)); err != nil {
				t.Fatal(err)
			}
			late := time.AfterFunc(10*time.Second, func() {
				t.Error("a client waits for the other end of the pipe")
				os.OpenFile(path+companion, os.O_RDWR, 0) //nolint:errcheck // then that client goes on, and the test ends
			})
			defer late.Stop()
			s, other := open(t, newEngine(t, path), time.Hour), open(t, newEngine(t, path), time.Hour)
			held, waits := mutex("job", "a"), mutex("job", "b")
			sessiontest.Hold(t, s, held)
			sessiontest.Wait(t, other, waits)
			got := sessiontest.Awaiting(t, other, waits)
			sessiontest.Leave(t, s, held)
			sessiontest.Granted(t, got)
			sessiontest.Leave(t, other, waits)
			if is, err := os.Lstat(path + companion); err != nil || is.Mode() != fs.ModeNamedPipe|0o600 {
				t.Errorf("%v, %v", is, err)
			}
		})
	}
}

// TestHardLinksInPlace: another user of the database may make a hard link in place of a companion of the file. The
// file behind that link is not given away, and a pipe behind it gets no message.
func TestHardLinksInPlace(t *testing.T) {
	for _, companion := range []string{"-turn", "-shm"} {
		path, precious := file(t), filepath.Join(t.TempDir(), "precious")
		if e, err := New(t.Context(), path, nil); err != nil || e.Close() != nil {
			t.Fatal(err)
		}
		os.Remove(path + companion) //nolint:errcheck // it may not be there
		if err := errors.Join(os.WriteFile(precious, nil, 0o640), os.Link(precious, path+companion)); err != nil {
			t.Fatal(err)
		}
		sessiontest.Hold(t, open(t, newEngine(t, path), time.Hour), mutex("job", "a"))
		if is, err := os.Stat(precious); err != nil || is.Mode() != 0o640 {
			t.Errorf("%s: %v, %v", companion, is.Mode(), err)
		}
	}
	d, theirs := dialect{path: filepath.Join(t.TempDir(), "pawl.db")}, filepath.Join(t.TempDir(), "pipe")
	if err := errors.Join(os.Mkdir(d.inbox(""), 0o700), makePipe(theirs), os.Link(theirs, d.inbox("theirs"))); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(theirs, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	d.Post(sqlengine.Message{Session: "theirs", Claim: "claim", Token: 1})
	if _, err := pipe.WriteString("nothing else"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 100)
	if n, err := pipe.Read(got); err != nil || string(got[:n]) != "nothing else" {
		t.Errorf("%q, %v", got[:n], err)
	}
}

// TestGroupOfTheFolder: in a folder that gives its group to new files, the folder of inboxes does too. Else
// other users of the group cannot write to the inboxes.
func TestGroupOfTheFolder(t *testing.T) {
	path := file(t)
	e := newEngine(t, path)
	if err := os.Chmod(filepath.Dir(path), 0o770|fs.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		open(t, e, time.Hour)
		if is, err := os.Stat(path + "-wake"); err != nil || is.Mode() != 0o770|fs.ModeSetgid|fs.ModeDir {
			t.Errorf("%v, %v", is.Mode(), err)
		}
	}
}

// TestGroupOfTheFile: what a user makes beside the file has the group of the file, also where another group
// is the first one of the user.
func TestGroupOfTheFile(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	const nobody, group = 65534, 12345
	path := file(t)
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o660); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(filepath.Dir(path), "program")
	if out, err := exec.Command("cp", os.Args[0], program).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	for _, name := range []string{filepath.Dir(path), path} {
		if err := os.Chown(name, nobody, group); err != nil {
			t.Fatal(err)
		}
	}
	for folder := filepath.Dir(filepath.Dir(path)); folder != os.TempDir(); folder = filepath.Dir(folder) {
		if err := os.Chmod(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(program)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody, Groups: []uint32{group}}}
	p := startCommand(t, cmd, path, time.Hour)
	for _, made := range []string{"-wal", "-shm", "-turn", "-wake", "-wake/" + p.session} {
		is, err := os.Stat(path + made)
		if err != nil {
			t.Error(err)
		} else if owner := is.Sys().(*syscall.Stat_t); owner.Uid != nobody || owner.Gid != group {
			t.Errorf("pawl.db%s is of user %d and group %d", made, owner.Uid, owner.Gid)
		}
	}
}

// TestIndexOfTheLog: no user finds the index of the log with fewer rights than the file. A client that may not
// write to that index could write nothing for as long as it lives.
func TestIndexOfTheLog(t *testing.T) {
	path := file(t)
	if e, err := New(t.Context(), path, nil); err != nil || e.Close() != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 200 {
			ctx := t.Context()
			if i%2 == 0 {
				ctx = engine.Existing(ctx)
			}
			e, err := New(ctx, path, nil)
			if err == nil {
				err = e.Close()
			}
			if err != nil {
				t.Error(err)
			}
		}
	}()
	for {
		select {
		case <-done:
			return
		default:
		}
		if is, err := os.Lstat(path + "-shm"); err == nil && is.Mode() != 0o660 {
			t.Errorf("%v", is.Mode())
			<-done
			return
		}
	}
}
