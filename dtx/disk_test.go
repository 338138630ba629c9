package dtx_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/vfs"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
	"github.com/pawl-go/pawl/internal/testservers"
)

// fault is the error of a disk, or nil.
type fault struct{ atomic.Pointer[error] }

func (f *fault) set(err error) { f.Store(&err) }

func (f *fault) get() error {
	if err := f.Load(); err != nil {
		return *err
	}
	return nil
}

// brokenDisk is a disk that fails to flush while there is a fault.
type brokenDisk struct {
	vfs.VFSFilename
	*fault
}

func (d brokenDisk) OpenFilename(name *vfs.Filename, flags vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	file, flags, err := d.VFSFilename.OpenFilename(name, flags)
	return brokenFile{file, d.fault}, flags, err
}

type brokenFile struct {
	vfs.File
	*fault
}

func (f brokenFile) Sync(flags vfs.SyncFlag) error {
	if err := f.get(); err != nil {
		return err
	}
	return f.File.Sync(flags)
}

// brokenBinlog is MariaDB whose disk of the binary log fails: the server commits, and then answers COMMIT with the fault.
type brokenBinlog struct {
	driver.Connector
	*fault
}

// session is all that a connection of go-sql-driver can do.
type session interface {
	driver.Conn
	driver.ExecerContext
	driver.QueryerContext
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
	driver.NamedValueChecker
}

type brokenSession struct {
	session
	*fault
}

func (b brokenBinlog) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := b.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return brokenSession{conn.(session), b.fault}, nil
}

func (s brokenSession) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	result, err := s.session.ExecContext(ctx, query, args)
	if err == nil && query == "COMMIT" {
		err = s.get()
	}
	return result, err
}

// onBrokenDisk returns a database of SQLite whose disk may fail.
func onBrokenDisk(t *testing.T, f *fault) *sql.DB {
	t.Helper()
	name := "broken" + lower()
	vfs.Register(name, brokenDisk{vfs.Find("os").(vfs.VFSFilename), f})
	t.Cleanup(func() { vfs.Unregister(name) })
	db, err := sql.Open("sqlite3", "file:"+filepath.ToSlash(filepath.Join(t.TempDir(), "log.db"))+"?vfs="+name+"&_pragma=busy_timeout(20000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// onBrokenBinlog returns a database of MariaDB whose binary log may fail.
func onBrokenBinlog(t *testing.T, f *fault) *sql.DB {
	t.Helper()
	connector, err := mysql.NewConnector(testservers.MariaDBConfig(testservers.SharedMariaDB(t).Addr))
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(brokenBinlog{connector, f})
	t.Cleanup(func() { db.Close() })
	return db
}

// TestBrokenDisk: after a COMMIT that the disk has failed, no caller knows what the disk has. So the transaction is in doubt, and not aborted. A disk
// that is full fails a COMMIT of SQLite before the commit. So the other branches are rolled back at once.
func TestBrokenDisk(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		dialect dialect.Dialect
		open    func(*testing.T, *fault) *sql.DB
		fault   error
		alone   []error // what the only branch may say
		beside  []error // what two branches may say
	}{
		"a flush that fails":             {dialect.SQLite, onBrokenDisk, sqlite3.IOERR_FSYNC, []error{dtx.ErrInDoubt}, []error{dtx.ErrInDoubt}},
		"a full disk":                    {dialect.SQLite, onBrokenDisk, sqlite3.FULL, []error{dtx.ErrAborted}, []error{dtx.ErrAborted}},
		"a binary log that fails":        {dialect.MySQL, onBrokenBinlog, &mysql.MySQLError{Number: 1026, Message: "Error writing file"}, []error{dtx.ErrInDoubt}, []error{nil, dtx.ErrInDoubt}},
		"an unknown error of the server": {dialect.MySQL, onBrokenBinlog, &mysql.MySQLError{Number: 1180, Message: "Got error during COMMIT"}, []error{dtx.ErrInDoubt}, []error{nil, dtx.ErrInDoubt}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := new(fault)
			b := &broken{fault: f, db: test.open(t, f), table: "broken_" + lower(), dialect: test.dialect}
			b.open(t)
			for _, beside := range []bool{false, true} {
				allowed := test.alone
				if beside {
					allowed = test.beside
				}
				b.run(t, test.fault, beside, allowed)
			}
		})
	}
}

// broken is a log with its branch in a database that may fail, and a second database.
type broken struct {
	*fault
	db, other *sql.DB
	dialect   dialect.Dialect
	table     string
	log       *dtx.Log
	parts     []*dtx.Resource
}

func (b *broken) open(t *testing.T) {
	t.Helper()
	b.other = testservers.MariaDBPool(t, testservers.SharedMariaDB(t).Addr)
	log, err := dtx.NewLog(b.dialect, b.db, &dtx.LogOptions{Table: b.table})
	if err == nil {
		err = log.Migrate(t.Context())
	}
	if err == nil {
		_, err = b.db.ExecContext(t.Context(), "CREATE TABLE "+b.table+"_here (n int)")
	}
	if err == nil {
		_, err = b.other.ExecContext(t.Context(), "CREATE TABLE "+b.table+"_there (n int) ENGINE=InnoDB")
	}
	if err != nil {
		t.Fatal(err)
	}
	b.log, b.parts = log, []*dtx.Resource{log.Resource("here"), dtx.MySQL("there", b.other)}
}

// run runs a transaction whose COMMIT fails. After recovery all branches are as the caller was told, or equal.
func (b *broken) run(t *testing.T, fails error, beside bool, allowed []error) {
	t.Helper()
	parts := b.parts[:1]
	if beside {
		parts = b.parts
	}
	before := b.count(t)
	c, err := dtx.New(t.Context(), b.log, b.parts, &dtx.Options{Lease: time.Minute, Settle: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	err = c.Run(t.Context(), func(ctx context.Context, tx *dtx.Tx) error {
		for i, r := range parts {
			if _, err := tx.On(r).ExecContext(ctx, "INSERT INTO "+b.table+[]string{"_here", "_there"}[i]+" VALUES (1)"); err != nil {
				return err
			}
		}
		b.set(fails)
		return nil
	}, parts...)
	b.set(nil)
	said := false
	for _, is := range allowed {
		said = said || errors.Is(err, is)
	}
	if !said {
		t.Errorf("beside another branch %v: %v", beside, err)
	}
	until(t, "recovery has finished the branches", func() bool {
		if _, err := c.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		all, err := b.log.Transactions(t.Context(), b.parts)
		return err == nil && len(all) == 0
	})
	after := b.count(t)
	if beside && after[0]-before[0] != after[1]-before[1] || errors.Is(err, dtx.ErrAborted) && after != before {
		t.Errorf("beside another branch %v: %v, and %v before: %v", beside, after, before, err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func (b *broken) count(t *testing.T) (n [2]int) {
	t.Helper()
	for i, db := range []*sql.DB{b.db, b.other} {
		if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+b.table+[]string{"_here", "_there"}[i]).Scan(&n[i]); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func lower() string { return strings.ToLower(rand.Text()) }
