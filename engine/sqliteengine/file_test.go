package sqliteengine

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
)

func TestNotADatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notes.txt")
	content := bytes.Repeat([]byte("buy milk\n"), 1000)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := New(t.Context(), path, nil)
	if !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), "not a database") {
		t.Errorf("%v", err)
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, content) {
		t.Errorf("the file was changed: %v", err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("%v were created beside it", entries)
	}
}

// TestReadingChangesNoOtherFile: a verb that only reads makes no tables in the database of another program,
// and leaves the way in which that database is written.
func TestReadingChangesNoOtherFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "other.db")
	db, err := sql.Open("sqlite3", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), `CREATE TABLE theirs (x)`); err != nil {
		t.Fatal(err)
	}
	if _, err := New(engine.Existing(t.Context()), path, nil); !errors.Is(err, engine.ErrNoStore) {
		t.Errorf("%v", err)
	}
	var tables int
	var mode string
	if err := db.QueryRowContext(t.Context(), `SELECT count(*), (SELECT journal_mode FROM pragma_journal_mode) FROM sqlite_schema`).Scan(&tables, &mode); err != nil || tables != 1 || mode != "delete" {
		t.Errorf("%d tables, written by %q: %v", tables, mode, err)
	}
	if names, err := os.ReadDir(filepath.Dir(path)); err != nil || len(names) != 1 {
		t.Errorf("%v, %v", names, err)
	}
}

// TestReadingACopy: a copy of a store that is not written by a log, as VACUUM INTO makes it, can be read.
func TestReadingACopy(t *testing.T) {
	path := file(t)
	e := newEngine(t, path)
	sessiontest.Hold(t, open(t, e, time.Hour), mutex("job", "a"))
	other := filepath.Join(t.TempDir(), "copy.db")
	update(t, e, `VACUUM INTO ?`, other)
	reader, err := New(engine.Existing(t.Context()), other, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if r, err := reader.Show(t.Context(), "job"); err != nil || len(r.Claims) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestFolderInsteadOfFile(t *testing.T) {
	if _, err := New(t.Context(), t.TempDir(), nil); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("%v", err)
	}
}

func TestNetworkFileSystemIsRefused(t *testing.T) {
	for number, name := range networkFS {
		dir := t.TempDir()
		mounted := func(path string) (uint32, error) { // as if dir were a mount point
			if path != dir {
				_, err := os.Stat(path)
				return 0, err
			}
			return number, nil
		}
		_, err := prepare(filepath.Join(dir, "state", "pawl.db"), mounted)
		if !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), name) {
			t.Errorf("%#x: %v", number, err)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
			t.Errorf("%s: %v were created", name, entries)
		}
	}
}

func TestOddPathsAndSymbolicLinks(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a b?c#d%20+&=ü.db")
	e := newEngine(t, path)
	if _, err := os.Stat(path + "-wal"); err != nil {
		t.Error(err)
	}
	link := filepath.Join(dir, "link.db")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	other := newEngine(t, "link.db")
	if is, want := pathOf(t, other).path, pathOf(t, e).path; is != want {
		t.Errorf("%s is not %s", is, want)
	}
	sessiontest.Hold(t, open(t, e, 30*time.Second), mutex("job", "a"))
	sessiontest.Refuse(t, open(t, other, 30*time.Second), mutex("job", "b"), false, engine.ErrBusy)
}

// TestHardLinks: the log of SQLite stands beside a name of the file, so two names would be two stores.
func TestHardLinks(t *testing.T) {
	path := file(t)
	e := newEngine(t, path)
	sessiontest.Hold(t, open(t, e, 30*time.Second), mutex("job", "a"))
	link := filepath.Join(t.TempDir(), "link.db")
	if err := os.Link(path, link); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{link, path} {
		if other, err := New(t.Context(), name, nil); !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "2 names") {
			t.Fatalf("%s: %v, %v", name, other, err)
		}
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	sessiontest.Refuse(t, open(t, newEngine(t, path), 30*time.Second), mutex("job", "b"), false, engine.ErrBusy)
}

func update(t *testing.T, e *Engine, query string, args ...any) {
	t.Helper()
	if _, err := e.db.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatal(err)
	}
}

func TestInboxesOfKilledProcessesAreRemoved(t *testing.T) {
	path := file(t)
	s := open(t, newEngine(t, path), time.Hour)
	left := filepath.Join(path+"-wake", "NOBODY")
	if err := makePipe(left); err != nil {
		t.Fatal(err)
	}
	e := newEngine(t, path)
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("it is there: %v", err)
	}
	if _, err := os.Stat(pathOf(t, e).inbox(s.ID())); err != nil {
		t.Error(err)
	}
}

// TestInboxesOfNewSessionsStay: a client that opens the file sees a session in full or not at all. So it does
// not take the inbox of a session that opens at the same time for a dead process's.
func TestInboxesOfNewSessionsStay(t *testing.T) {
	path := file(t)
	e := newEngine(t, path)
	where, done := pathOf(t, e), make(chan struct{})
	var opening sync.WaitGroup
	for range 4 {
		opening.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				other, err := New(t.Context(), path, nil)
				if err == nil {
					err = other.Close()
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var sessions []engine.Session
	for range 200 {
		sessions = append(sessions, open(t, e, time.Hour))
	}
	close(done)
	opening.Wait()
	for i, s := range sessions {
		if _, err := os.Stat(where.inbox(s.ID())); err != nil {
			t.Errorf("session %d: %v", i, err)
		}
	}
}

func TestTablesOfAnotherVersion(t *testing.T) {
	path := file(t)
	update(t, newEngine(t, path), `UPDATE pawl_meta SET version = 99`)
	if _, err := New(t.Context(), path, nil); !errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("%v", err)
	}
}

func TestDiskFull(t *testing.T) {
	e := newEngine(t, file(t))
	s := open(t, e, time.Hour)
	update(t, e, `PRAGMA max_page_count = 1`) // SQLite keeps it to the size in use
	full := mutex(strings.Repeat("x", 500), "a")
	var err error
	for i := 0; err == nil && i < 1000; i++ {
		c := *full
		c.ID += strings.Repeat("y", i)
		_, err = s.Enter(t.Context(), &c, true)
	}
	if !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), "full") {
		t.Errorf("enter: %v", err)
	}
	update(t, e, `PRAGMA max_page_count = 100000`)
	sessiontest.Hold(t, s, mutex("job", "b")) // the engine has recovered
}

// TestFullFileTakesReleases: no page can be added to the file. A new claim is refused with the reason.
// Sessions are renewed, and every hold is left and handed on.
func TestFullFileTakesReleases(t *testing.T) {
	e := newEngine(t, file(t))
	holder, waiter := open(t, e, time.Hour), open(t, e, time.Hour)
	var held, next []*engine.Claim
	for i := range 40 {
		name := fmt.Sprint("full/", i)
		held, next = append(held, mutex(name, fmt.Sprint("a", i))), append(next, mutex(name, fmt.Sprint("b", i)))
		sessiontest.Hold(t, holder, held[i])
		sessiontest.Wait(t, waiter, next[i])
	}
	update(t, e, `PRAGMA max_page_count = 1`)
	for _, size := range []int{400, 50, 1} { // also the rest of each page, everywhere in the tables
		var err error
		for i := 0; err == nil; i++ {
			c := mutex(fmt.Sprint("full/", i%40, "/", i, strings.Repeat("x", size)), fmt.Sprint("c", size, "/", i))
			_, err = holder.Enter(t.Context(), c, true)
		}
		if !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), "full") {
			t.Fatalf("a new claim: %v", err)
		}
	}
	for i := range held {
		for _, s := range []engine.Session{holder, waiter} {
			if _, err := s.Renew(t.Context(), nil); err != nil {
				t.Fatalf("renew: %v", err)
			}
		}
		got := sessiontest.Awaiting(t, waiter, next[i])
		sessiontest.Leave(t, holder, held[i])
		sessiontest.Granted(t, got)
		sessiontest.Leave(t, waiter, next[i])
	}
}

func TestReadOnlyFile(t *testing.T) {
	e := newEngine(t, file(t))
	s := open(t, e, time.Hour)
	update(t, e, `PRAGMA query_only = on`)
	sessiontest.Refuse(t, s, mutex("job", "a"), true, engine.ErrUnavailable)
	update(t, e, `PRAGMA query_only = off`)
	sessiontest.Hold(t, s, mutex("job", "b")) // the engine has recovered
}

// TestNoTurn: a process that cannot open the file of the turn does without.
func TestNoTurn(t *testing.T) {
	path := file(t)
	if err := os.MkdirAll(path+"-turn", 0o700); err != nil {
		t.Fatal(err)
	}
	sessiontest.Hold(t, open(t, newEngine(t, path), time.Hour), mutex("job", "a"))
}

// TestRootIsFirst: what root makes beside the file of another user belongs to that user. Else that
// user could not open the file.
func TestRootIsFirst(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can open the file of another user")
	}
	path := file(t)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	if err := os.Chown(path, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	s := open(t, newEngine(t, path), time.Hour)
	sessiontest.Hold(t, s, mutex("job", "a"))
	for _, made := range []string{"", "-wal", "-shm", "-turn", "-wake", "-wake/" + s.ID()} {
		is, err := os.Stat(path + made)
		if err != nil {
			t.Error(err)
		} else if owner := is.Sys().(*syscall.Stat_t); owner.Uid != nobody || owner.Gid != nobody {
			t.Errorf("pawl.db%s is of user %d and group %d", made, owner.Uid, owner.Gid)
		}
	}
}

// TestFileOfTheEarlierLayout: a file of a build that knew the run of the machine by its boot id gets all that is missing. A
// client that only reads adds nothing. From then on such a build refuses the file, because the build would end the sessions of other containers.
func TestFileOfTheEarlierLayout(t *testing.T) {
	path := file(t)
	e := newEngine(t, path)
	s := open(t, e, time.Hour)
	before := sessiontest.Hold(t, s, mutex("job", "a"))
	for _, statement := range []string{
		`DROP INDEX pawl_sessions_renewed`, `CREATE TABLE old (one INTEGER PRIMARY KEY CHECK (one = 1), version INTEGER NOT NULL, last INTEGER NOT NULL, boot TEXT NOT NULL) STRICT`,
		`INSERT INTO old SELECT 1, ` + engine.Format() + `, last, 'another' FROM pawl_meta`, `DROP TABLE pawl_meta`, `ALTER TABLE old RENAME TO pawl_meta`,
	} {
		update(t, e, statement)
	}
	is := func(when string, wantIndex, wantOurs bool) {
		t.Helper()
		var index bool
		var version, boot string
		err := e.db.QueryRowContext(t.Context(), `SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'pawl_sessions_renewed'), version, boot FROM pawl_meta`).Scan(&index, &version, &boot)
		if err != nil || index != wantIndex || (version != engine.Format()) != wantOurs {
			t.Errorf("%s: an index: %v, version %s, %v", when, index, version, err)
		}
	}
	reader, err := New(engine.Existing(t.Context()), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if r, err := reader.Show(t.Context(), "job"); err != nil || len(r.Claims) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	is("a reader came", false, false)
	restart(t, e)
	again, err := New(engine.Existing(t.Context()), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	is("a reader came after a restart", false, false)
	other := newEngine(t, path)
	is("a client came", true, true)
	if next := sessiontest.Hold(t, open(t, other, time.Hour), mutex("job", "b")); next <= before {
		t.Errorf("token %v after %v", next, before)
	}
	e = newEngine(t, file(t))
	is("a new file", true, true)
}

// TestIndexIsThere: a start with an index that exists does not look into the database for it.
func TestIndexIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe") // an open of a pipe waits for a writer
	if err := makePipe(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+"-shm", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { dialect{path: path}.index(0o600); close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("the database was opened")
		if f, err := os.OpenFile(path, os.O_RDWR, 0); err == nil {
			<-done
			f.Close()
		}
	}
}
