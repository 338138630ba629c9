package sqliteengine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ncruces/go-sqlite3"
	_ "github.com/ncruces/go-sqlite3/driver" // "sqlite3"

	"github.com/pawl-go/pawl/engine"
)

const schemaVersion = 1

// A claim carries the spec of its resource, on which all claims of one agree:
// so a resource needs no row of its own, to be written twice for each hold.
const schema = `
CREATE TABLE IF NOT EXISTS pawl_meta (
	one INTEGER PRIMARY KEY CHECK (one = 1), version INTEGER NOT NULL,
	last INTEGER NOT NULL, -- token or version given out
	boot TEXT NOT NULL     -- of the machine, for which all times in the file are
) STRICT;
CREATE TABLE IF NOT EXISTS pawl_sessions (
	id TEXT PRIMARY KEY, ends INTEGER NOT NULL, ttl INTEGER NOT NULL, label TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS pawl_sessions_ends ON pawl_sessions (ends);
CREATE TABLE IF NOT EXISTS pawl_claims (
	session TEXT NOT NULL, resource TEXT NOT NULL, id TEXT NOT NULL,
	place INTEGER NOT NULL, -- in the queue of the resource
	kind TEXT NOT NULL, capacity INTEGER NOT NULL, barging INTEGER NOT NULL,
	owner TEXT NOT NULL, label TEXT NOT NULL, weight INTEGER NOT NULL, token INTEGER NOT NULL, since INTEGER NOT NULL,
	PRIMARY KEY (session, resource, id)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS pawl_claims_queue ON pawl_claims (resource, place);
CREATE TABLE IF NOT EXISTS pawl_values (
	name TEXT PRIMARY KEY, version INTEGER NOT NULL, data BLOB NOT NULL
) STRICT;`

// networkFS are the file systems of other machines, by their number in
// statfs(2). FUSE is not among them: it is local as often as not.
var networkFS = map[uint32]string{
	0x6969: "NFS", 0x517B: "SMB", 0xFF534D42: "CIFS", 0xFE534D42: "SMB2", 0x01021997: "9P",
	0x5346414F: "AFS", 0x6B414653: "AFS", 0x73757245: "Coda", 0x564C: "NCP", 0x00C36400: "Ceph",
	0x0BD00BD0: "Lustre", 0x7461636F: "OCFS2", 0x01161970: "GFS2", 0x47504653: "GPFS", 0x19830326: "BeeGFS",
}

// prepare creates the file, private, and returns its one true path. It creates
// nothing on a network file system.
func prepare(path string, fileSystem func(string) (uint32, error)) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", engine.Unavailable("open", err)
	}
	existing := path
	number, err := fileSystem(existing)
	for errors.Is(err, fs.ErrNotExist) && existing != filepath.Dir(existing) {
		existing = filepath.Dir(existing)
		number, err = fileSystem(existing)
	}
	if err != nil {
		return "", engine.Unavailable("open", err)
	}
	if name := networkFS[number]; name != "" {
		return "", fmt.Errorf("open: %w: %s is on a network file system (%s)", engine.ErrUnsupported, existing, name)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", engine.Unavailable("open", err)
	}
	err = create(path)
	if err == nil { // who comes by another name of the file must find the same inboxes
		path, err = filepath.EvalSymlinks(path)
	}
	return path, engine.Unavailable("open", err)
}

// create makes an empty file for its owner only, or leaves what is there.
func create(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// connect opens the file as a database. A commit needs no sync (synchronous is
// normal): what could undo it, a power loss, ends every session as well. The
// write-ahead log gets the mode of the file.
func (e *Engine) connect(ctx context.Context) error {
	escaped := func(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }
	location := url.URL{Path: "/" + strings.TrimPrefix(filepath.ToSlash(e.path), "/")}
	db, err := sql.Open("sqlite3", "file:"+location.EscapedPath()+"?modeof="+escaped(e.path)+
		"&_pragma=busy_timeout(1000)&_pragma=journal_mode(wal)&_pragma=synchronous(normal)")
	if err != nil {
		return engine.Unavailable("open", err)
	}
	db.SetMaxOpenConns(1)
	e.db = db
	version := schemaVersion
	err = e.use(ctx, "open", func(t *tx) error { return e.initialize(ctx, t, &version) })
	if err == nil && version != schemaVersion {
		err = fmt.Errorf("open: %w: the file has tables of version %d, this program knows version %d",
			engine.ErrUnsupported, version, schemaVersion)
	}
	return err
}

// initialize is called again when the file is locked: some of many processes
// that open a new file at once are told so, whatever the busy timeout.
func (e *Engine) initialize(ctx context.Context, t *tx, version *int) (err error) {
	shm := e.path + "-shm" // SQLite would create it for all to read
	if err := create(shm); err != nil {
		return err
	}
	if e.conn == nil {
		if e.conn, err = e.db.Conn(ctx); err != nil {
			if errors.Is(err, sqlite3.NOTADB) {
				err = errors.Join(err, os.Remove(shm)) // nobody can use it
			}
			return err
		}
	}
	if err := t.run(ctx, func() error { return t.migrate(version) }); err != nil {
		return err
	}
	info, err := os.Stat(e.path)
	if err != nil {
		return err
	}
	return os.Chmod(shm, info.Mode().Perm()) // the one above may have gone with who closed last
}

// migrate creates what is missing in the file and forgets what was before the
// machine started: none of these processes lives.
func (t *tx) migrate(version *int) error {
	if _, err := t.conn.ExecContext(context.Background(), schema); err != nil {
		return err
	}
	boot, err := bootID()
	if err != nil {
		return err
	}
	// What a power loss took back of the counter, the time of day makes good.
	if err := t.exec(`INSERT INTO pawl_meta VALUES (1, ?, ?, ?) ON CONFLICT DO UPDATE SET last = max(last, excluded.last)`,
		schemaVersion, time.Now().UnixMicro(), boot); err != nil {
		return err
	}
	var lastBoot string
	err = t.get(`SELECT version, boot FROM pawl_meta`, nil, version, &lastBoot)
	if err != nil || *version != schemaVersion {
		return err
	}
	if boot != lastBoot {
		err = errors.Join(t.exec(`DELETE FROM pawl_claims`), t.exec(`DELETE FROM pawl_sessions`),
			t.exec(`UPDATE pawl_meta SET boot = ?`, boot))
	}
	return errors.Join(err, t.tidy())
}

func (e *Engine) disconnect() error {
	var err error
	for _, stmt := range e.stmts { // SQLite does not close before they are
		err = errors.Join(err, stmt.Close())
	}
	if e.conn != nil {
		err = errors.Join(err, e.conn.Close())
	}
	if e.db != nil {
		err = errors.Join(err, e.db.Close())
	}
	return err
}
