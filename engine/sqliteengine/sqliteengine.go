// Package sqliteengine is the store in one SQLite file. The store serves all processes of one machine, and
// needs no server. The verbs are those of package sqlengine. A waiter in another process is woken
// through a named pipe of its session. Where the system has no named pipes, as on Windows, the
// waiter polls.
//
// SQLite lets one process write at a time. Processes queue for that in the kernel, by a file beside
// the database. Where the system has no flock, as Windows, they retry every millisecond or two. A
// transaction takes some ten microseconds. A process that is stopped in the midst of it stops all
// other writers until it goes on or ends. A reader waits for nobody.
//
// The file is private to the user that created it, and its companions have the mode
// of the file.
//
// A network file system is refused where the system tells (on Linux, but not
// behind FUSE): neither SQLite's log nor the wake-up works there. Deleting
// or replacing the file while it is in use makes two stores of one.
//
// A power loss may take back the last grants, but ends all processes that knew of them too. Tokens
// still grow, unless the clock was set back meanwhile. A value that was put survives: Put waits for
// the disk, and so do the locks of the same file meanwhile. An operator may restore an old copy, by
// ".restore" of the sqlite3 shell, or as a file while no process has the store open. That copy
// takes back values as well. Until its next renewal a holder that such a copy does not know
// believes beside the next holder.
package sqliteengine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ncruces/go-sqlite3"
	_ "github.com/ncruces/go-sqlite3/driver" // "sqlite3"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sqlengine"
)

// Options are the options of [New]. There are none yet.
type Options struct {
	vfs string // the file system, by its name in SQLite, of a test that looks at each write
}

const minTTL = 100 * time.Millisecond

// leases has the methods of an Engine, and no name that users see.
type leases = sqlengine.Engine

// Engine is the store in one file. Create it with [New].
type Engine struct {
	*leases
	db, reads *sql.DB
	turn      *turn
}

var _ engine.Engine = (*Engine)(nil)

// New opens the store in the file at path, and creates the file and its folder
// if they are missing. Nil opts are the defaults.
//
// A grant needs no sync of its own (synchronous is normal). A power loss, which could undo a commit, ends
// every process that knew of the grant as well. A value does need one, see [dialect.Flush].
func New(ctx context.Context, path string, opts *Options) (*Engine, error) {
	if _, err := os.Stat(path); engine.CreatesNothing(ctx) && errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open: %w", engine.ErrNoStore)
	}
	path, err := prepare(path, fileSystem)
	if err != nil {
		return nil, err
	}
	location := url.URL{Path: "/" + strings.TrimPrefix(filepath.ToSlash(path), "/")}
	source := "file:" + location.EscapedPath() + "?modeof=" + strings.ReplaceAll(url.QueryEscape(path), "+", "%20") + "&_txlock=immediate" +
		"&_pragma=busy_timeout(1000)&_pragma=synchronous(normal)" +
		"&_pragma=journal_size_limit(4194304)" // that the log keeps when a reader that held it up has gone
	if opts != nil && opts.vfs != "" {
		source += "&vfs=" + opts.vfs
	}
	d := dialect{path: path, flushed: new(atomic.Bool)}
	mode, err := d.mode()
	if err != nil {
		return nil, engine.Unavailable("open", err)
	}
	if !engine.CreatesNothing(ctx) { // else the file may be that of another program
		source += "&_pragma=journal_mode(wal)"
	}
	d.index(mode)
	d.turn = newTurn(path+"-turn", mode)
	e := &Engine{turn: d.turn}
	for _, db := range []**sql.DB{&e.db, &e.reads} {
		if *db, err = sql.Open("sqlite3", source); err != nil {
			return nil, engine.Unavailable("open", err)
		}
		(*db).SetMaxOpenConns(1)
	}
	if e.leases, err = sqlengine.New(ctx, e.db, e.reads, d, minTTL); err != nil {
		return nil, errors.Join(err, e.db.Close(), e.reads.Close(), e.turn.close())
	}
	return e, nil
}

// Caps implements [engine.Engine].
func (e *Engine) Caps() engine.Caps {
	return engine.Caps{
		Name: "sqlite", Token: engine.TokenClock, Wake: engine.WakeHandoff, Expiry: expiry,
		Failover: engine.FailoverNone, Processes: engine.ReachMachine, EnterTrip: 1, LeaveTrip: 1, MinTTL: minTTL,
	}
}

// Close implements [engine.Engine].
func (e *Engine) Close() error {
	if err := errors.Join(e.leases.Close(), e.reads.Close(), e.db.Close(), e.turn.close()); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// dialect is that of SQLite, with the database at this path.
type dialect struct {
	path    string
	turn    *turn
	flushed *atomic.Bool // the folder is
}

func (d dialect) Turn(ctx context.Context) (func(), error) { return d.turn.take(ctx) }

// Now implements [sqlengine.Embedded]. The clock of an earlier run of the machine may have been ahead, and
// nothing else tells such a run. The id of a boot does not, because each container may see another.
func (d dialect) Now() (is, latest int64) {
	if is = now(); expiry == engine.ExpiryMonotonic {
		return is, is
	}
	return is, math.MaxInt64 // that clock may have been set back
}

// Flush implements [sqlengine.Embedded]. Values then wait for the disk, and grants do not:
// a loss of power ends every process that knew of them.
func (d dialect) Flush(ctx context.Context, conn *sql.Conn, on bool) error {
	level := "normal"
	if on {
		level = "full"
	}
	if on && !d.flushed.Load() { // the name of a file that was just made
		if err := flushFolder(filepath.Dir(d.path)); err != nil {
			return err
		}
		d.flushed.Store(true)
	}
	_, err := conn.ExecContext(ctx, "PRAGMA synchronous = "+level)
	return err
}

// Again holds even of the first transaction. Some of many processes that open a new file at once
// are told that it is locked, whatever the busy timeout.
func (d dialect) Again(err error) bool { return errors.Is(err, sqlite3.BUSY) }

// layout ends the mark of a file, after pawl's format. Builds that wrote the format alone knew a run of the machine by its boot id. Such a
// build would end the sessions of other containers. So the build is refused: the build reads the columns version and boot.
const layout = "01"

const schema = `
CREATE TABLE IF NOT EXISTS pawl_meta (
	one INTEGER PRIMARY KEY CHECK (one = 1), version INTEGER NOT NULL /* the mark */, last INTEGER NOT NULL, boot TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE TABLE IF NOT EXISTS pawl_sessions (
	id TEXT PRIMARY KEY, ends INTEGER NOT NULL, ttl INTEGER NOT NULL, label TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS pawl_sessions_ends ON pawl_sessions (ends);
CREATE INDEX IF NOT EXISTS pawl_sessions_renewed ON pawl_sessions (ends - ttl);
CREATE TABLE IF NOT EXISTS pawl_claims (
	resource TEXT NOT NULL, place INTEGER NOT NULL, session TEXT NOT NULL, id TEXT NOT NULL, owner TEXT NOT NULL,
	label TEXT NOT NULL, weight INTEGER NOT NULL, token INTEGER NOT NULL, since INTEGER NOT NULL,
	granted INTEGER NOT NULL, -- 0 while it waits
	kind TEXT NOT NULL, capacity INTEGER NOT NULL, barging INTEGER NOT NULL,
	waits INTEGER NOT NULL, -- 1 as long as the token is 0, so that the key finds holders and the first that wait
	PRIMARY KEY (resource, waits, place)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS pawl_claims_session ON pawl_claims (session, resource, id);
CREATE TABLE IF NOT EXISTS pawl_values (
	name TEXT PRIMARY KEY, version INTEGER NOT NULL, data BLOB NOT NULL
) STRICT;
INSERT OR IGNORE INTO pawl_meta (one, version, last) VALUES (1, %[1]s%[2]s, 0);
UPDATE pawl_meta SET version = %[1]s%[2]s WHERE version = %[1]s;`

// Ready implements [sqlengine.Embedded]: the tables are there, and no session of an earlier run of the machine.
func (d dialect) Ready(ctx context.Context, db *sql.DB) (bool, error) {
	inboxes := d.inboxes() // before the transaction, see tidy
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return false, err
	}
	defer tx.Rollback() //nolint:errcheck // it has read
	var tables bool
	err = tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'pawl_meta')`).Scan(&tables)
	if err == nil && !tables && engine.CreatesNothing(ctx) {
		err = engine.ErrNoStore
	}
	if err != nil || !tables {
		return false, err
	}
	var format string
	var old bool
	_, latest := d.Now()
	err = tx.QueryRowContext(ctx, `SELECT version, EXISTS (SELECT 1 FROM pawl_sessions WHERE ends - ttl > ?) FROM pawl_meta`, latest).Scan(&format, &old)
	if err == nil {
		err = d.share()
	}
	if err == nil {
		err = d.tidy(ctx, tx, inboxes)
	}
	if err != nil {
		return false, err
	}
	format, whole := strings.CutSuffix(format, layout)
	return !old && (whole || engine.CreatesNothing(ctx)), engine.CheckFormat(format)
}

// Migrate creates the missing parts of the file. A client that only reads creates none.
func (d dialect) Migrate(ctx context.Context, tx *sql.Tx) error {
	if err := d.share(); err != nil || engine.CreatesNothing(ctx) {
		return err
	}
	_, err := tx.ExecContext(ctx, fmt.Sprintf(schema, engine.Format(), layout))
	return err
}

// tidy removes the inboxes that processes left when they were killed. A session makes its inbox after it
// was stored. So the inboxes have to be listed before the transaction reads for the first time. Else an inbox may be that of
// a session that the transaction does not see, and its messages would be lost.
func (d dialect) tidy(ctx context.Context, tx *sql.Tx, inboxes []fs.DirEntry) error {
	known := make(map[string]bool)
	rows, err := tx.QueryContext(ctx, `SELECT id FROM pawl_sessions`)
	err = sqlengine.Each(rows, err, func(scan func(...any) error) error {
		var id string
		err := scan(&id)
		known[id] = true
		return err
	})
	for _, inbox := range inboxes {
		if err == nil && !known[inbox.Name()] {
			d.Forget(inbox.Name())
		}
	}
	return err
}
