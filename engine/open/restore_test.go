package open_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/fence"
)

const restoreTTL = 2 * time.Second

// sqliteCopy copies a database that is in use.
func sqliteCopy(t *testing.T, path string) (to string) {
	t.Helper()
	to = filepath.Join(t.TempDir(), "copy.db")
	db := rawSQLite(t, path)
	defer db.Close()
	if err := db.Exec("VACUUM INTO '" + to + "'"); err != nil {
		t.Fatal(err)
	}
	return to
}

func rawSQLite(t *testing.T, path string) *sqlite3.Conn {
	t.Helper()
	db, err := sqlite3.Open("file:" + path + "?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// tokensOf locks a name some times and returns the last token. A try may meet a busy machine, and the name is taken until the client has withdrawn it.
func tokensOf(t *testing.T, c *pawl.Client, name string) (last fence.Token) {
	t.Helper()
	for range 20 {
		eventually(t, "the name is locked", func() bool {
			l, err := c.Mutex(name).TryLock(t.Context())
			if errors.Is(err, pawl.ErrUnavailable) || errors.Is(err, pawl.ErrNotAcquired) {
				return false
			}
			if err != nil {
				t.Fatal(err)
			}
			last = l.Token()
			if err := l.Unlock(t.Context()); err != nil && !errors.Is(err, pawl.ErrUnavailable) {
				t.Fatal(err)
			}
			return true
		})
	}
	return last
}

// restoreSQLite puts a copy back into the file.
func restoreSQLite(t *testing.T, path, from string) {
	t.Helper()
	db := rawSQLite(t, path)
	defer db.Close()
	eventually(t, "it is restored", func() bool {
		err := db.Restore("main", "file:"+from)
		if err != nil && !errors.Is(err, sqlite3.BUSY) {
			t.Fatal(err)
		}
		return err == nil
	})
}

func sqliteClient(t *testing.T, path string) *pawl.Client {
	return clientOf(t, connect(t, "sqlite:"+path), restoreTTL)
}

// TestSQLiteRestored: an old copy is restored into a file in use, as by ".restore" of the sqlite3
// shell. Within a TTL and a second, a holder that the copy does not know learns of the loss. In
// that time a claim that had been left is free again. A waiter gets its lock, or learns that its
// claim is gone. Tokens grow.
func TestSQLiteRestored(t *testing.T) {
	t.Parallel()
	for name, old := range map[string]time.Duration{"a new copy": 0, "a copy whose sessions have all ended": 2 * restoreTTL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "pawl.db")
			a, b, c := sqliteClient(t, path), sqliteClient(t, path), sqliteClient(t, path)
			left, stays := hold(t, a, "left"), hold(t, a, "stays")
			copied := time.Now()
			from := sqliteCopy(t, path)
			if err := left.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
			late := hold(t, a, "late")
			next := lockSoon(t, b.Mutex("late"))
			queued(t, "sqlite:"+path, "late", 2)
			before := tokensOf(t, c, "other")
			eventually(t, "the copy is as old", func() bool { return stays.ValidUntil().After(copied.Add(old)) })

			restoreSQLite(t, path, from)
			restored := time.Now()
			slowest := slowest(t, c)
			within := func() time.Duration { return restoreTTL + time.Second + 5*slowest() }
			names := []held{left}
			if old > 0 {
				names = append(names, stays) // the copy has it, under a session that ended long ago
			}
			free := make([]<-chan locked, len(names))
			for i, l := range names {
				free[i] = lockSoon(t, c.Mutex(l.Name()))
			}
			l, err := c.Mutex("other").Lock(t.Context())
			if err != nil || l.Token() <= before {
				t.Errorf("token %v after %v, %v", l.Token(), before, err)
			}
			switch g := <-next; {
			case g.at.Sub(restored) > within():
				t.Errorf("the waiter knew after %v", g.at.Sub(restored))
			case old == 0 && errors.Is(g.err, pawl.ErrNotAcquired): // its session lives, and its claim is gone
			case g.err != nil || g.Token() <= late.Token():
				t.Errorf("the waiter: %v after %v, %v", g.Lease, late.Token(), g.err)
			}
			if told := <-late.ended; told.Sub(restored) > within() || !errors.Is(late.Err(), pawl.ErrLost) {
				t.Errorf("the holder: %v, %v after the restore", late.Err(), told.Sub(restored))
			}
			for i, l := range names {
				if g := <-free[i]; g.err != nil || g.Token() <= l.Token() || g.at.Sub(restored) > within() {
					t.Errorf("%s: %v after %v, %v, %v after the restore", l.Name(), g.Lease, l.Token(), g.err, g.at.Sub(restored))
				}
			}
		})
	}
}

// TestSQLiteReplaced: an old copy replaces the file while nobody has the file open. The locks held
// in the copy are free within a TTL and a second, and tokens grow.
func TestSQLiteReplaced(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pawl.db")
	eng, err := open.Open(t.Context(), "sqlite:"+path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := pawl.New(t.Context(), eng, &pawl.Options{TTL: restoreTTL})
	if err != nil {
		t.Fatal(err)
	}
	held := hold(t, c, "held")
	from := sqliteCopy(t, path)
	before := tokensOf(t, c, "other")
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := eng.Close(); err != nil {
		t.Fatal(err)
	}
	replaced := time.Now()
	if err := errors.Join(os.Rename(from, path), os.RemoveAll(path+"-wal"), os.RemoveAll(path+"-shm")); err != nil {
		t.Fatal(err)
	}
	c = clientOf(t, connect(t, "sqlite:"+path), restoreTTL)
	free := replaced.Add(restoreTTL)
	if now := time.Now(); free.Before(now) { // a busy machine took so long to open the file
		free = now
	}
	slowest := slowest(t, c)
	next := lockSoon(t, c.Mutex("held"))
	if after := tokensOf(t, c, "other"); after <= before {
		t.Errorf("token %v after %v", after, before)
	}
	g := <-next
	if late := g.at.Sub(free); g.err != nil || g.Token() <= held.Token() || late > time.Second+5*slowest() {
		t.Errorf("%v after %v, %v, %v after it was free", g.Lease, held.Token(), g.err, late)
	}
}
