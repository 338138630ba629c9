package pgengine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sqlengine"
)

// leaseVersion is that of the tables and routines of lease mode.
const leaseVersion = 7

// leaseLayout is the first version with the tables of ours: those of later versions are upgraded while clients use them.
const leaseLayout = 5

// PostgreSQL's names of errors.
const (
	noTable  = "42P01"
	noSchema = "3F000"
	noRight  = "42501"

	uniqueViolation = "23505"
	duplicateSchema = "42P06"

	inUse = "INUSE" // our own: see lease_upgrade.sql

	serializationFailure = "40001"
	deadlock             = "40P01"
)

func hasCode(err error, codes ...string) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && slices.Contains(codes, refused.Code)
}

// raced reports whether another client made the schema meanwhile. The statement that makes a schema
// unless it exists fails beside another such statement. The statement also fails after it, where the
// connection has seen before that there was none.
func raced(err error) bool { return hasCode(err, uniqueViolation, duplicateSchema) }

// leaseTables are those of lease mode, with its routines.
type leaseTables struct {
	db       *sql.DB
	language language
	args     []any // begin those of every query
}

// migrate makes sure that the tables are there, and of our version.
func (t leaseTables) migrate(ctx context.Context) error {
	return sqlengine.Schema{
		Name: fmt.Sprintf("the tables in schema %q", t.language.schema), Version: leaseVersion,
		Find:    t.find,
		Missing: func(err error) bool { return hasCode(err, noTable, noSchema) },
		Denied:  func(err error) bool { return hasCode(err, noRight) },
		Create:  t.create,
		Raced:   raced,
	}.Migrate(ctx)
}

// find finds out in one round trip whether this database is fit for us.
func (t leaseTables) find(ctx context.Context) (version int, err error) {
	var isolation, encoding, client, fsync, format string
	var unlogged bool
	row := t.db.QueryRowContext(ctx, `SELECT current_setting('transaction_isolation'), current_setting('server_encoding'),
		current_setting('client_encoding'), current_setting('fsync'), m.version, m.unlogged, coalesce(to_jsonb(m)->>'format', '1') FROM `+
		t.language.P()+`meta m`, t.args...)
	if err := row.Scan(&isolation, &encoding, &client, &fsync, &version, &unlogged, &format); err != nil {
		return 0, err
	}
	if version < leaseLayout {
		return version, nil
	}
	switch err = engine.CheckFormat(format); {
	case err != nil || version > leaseVersion:
	case isolation != "read committed": // a step must see all that others committed before it got its lock
		err = fmt.Errorf("%w: transactions are %s by default: set default_transaction_isolation to read committed for this user",
			engine.ErrUnsupported, isolation)
	case encoding != "UTF8":
		err = fmt.Errorf("%w: the database is encoded in %s, not UTF8", engine.ErrUnsupported, encoding)
	case client != "UTF8":
		err = otherEncoding(client)
	case unlogged != t.language.unlogged:
		err = fmt.Errorf("%w: schema %q was made with unlogged tables: %v, not %v: use another schema",
			engine.ErrUnsupported, t.language.schema, unlogged, t.language.unlogged)
	default:
		err = noFsync(fsync)
	}
	return version, err
}

// noFsync refuses a server that can forget values, and for how long holders believe, also beside unlogged tables.
func noFsync(fsync string) error {
	if fsync == "on" {
		return nil
	}
	return fmt.Errorf("%w: the server runs with fsync = %s, so a crash of its machine can undo what it has answered: turn it on", engine.ErrUnsupported, fsync)
}

// otherEncoding refuses a connection whose names are other names in the database:
// two clients would both hold.
func otherEncoding(client string) error {
	return fmt.Errorf("%w: the client_encoding is %s, not UTF8: set it to UTF8 for this user or in the connection string", engine.ErrUnsupported, client)
}

// create does it all or nothing, and one client at a time.
func (t leaseTables) create(ctx context.Context) error {
	tx, err := t.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit there is nothing to undo
	version, err := t.there(ctx, tx)
	if version == leaseVersion { // another client was faster, and users have locks on the tables by now
		return nil
	}
	tables, routines := sqlengine.Rules(t.language)
	if err == nil && version < leaseLayout {
		err = t.run(ctx, tx, append(t.language.begin(), t.language.tables(tables)...))
	}
	if err == nil {
		err = t.run(ctx, tx, t.language.rest(routines))
	}
	switch {
	case hasCode(err, inUse):
		return fmt.Errorf("%w: this program knows version %d, format %s: %w", engine.ErrUnsupported, leaseVersion, engine.Format(), err)
	case err != nil:
		return err
	}
	return tx.Commit()
}

// there keeps other clients from creating, and returns the version that is there, or 0.
func (t leaseTables) there(ctx context.Context, tx *sql.Tx) (version int, err error) {
	lock := fmt.Sprintf(`SELECT pg_advisory_xact_lock(%d)`, t.language.seed("init"))
	if err = t.run(ctx, tx, []string{`SET LOCAL client_min_messages = warning`, lock, `SAVEPOINT look`}); err != nil { // that something is there already is no news
		return 0, err
	}
	err = tx.QueryRowContext(ctx, "SELECT coalesce(max(m.version), 0) FROM "+t.language.P()+"meta m", t.args...).Scan(&version)
	if hasCode(err, noTable, noSchema) {
		err = t.run(ctx, tx, []string{`ROLLBACK TO SAVEPOINT look`})
	}
	return version, err
}

func (t leaseTables) run(ctx context.Context, tx *sql.Tx, statements []string) error {
	for _, statement := range statements {
		if _, err := tx.ExecContext(ctx, statement, t.args...); err != nil {
			return err
		}
	}
	return nil
}

// begin removes tables of another layout.
func (l language) begin() []string {
	p := l.P()
	return []string{
		`CREATE SCHEMA IF NOT EXISTS ` + strings.TrimSuffix(p, "."),
		fmt.Sprintf(`CREATE TABLE IF NOT EXISTS %smeta (one INT PRIMARY KEY CHECK (one = 1), version INT NOT NULL, unlogged BOOLEAN NOT NULL, ttl BIGINT NOT NULL)`, p),
		fmt.Sprintf(`ALTER TABLE %smeta ADD COLUMN IF NOT EXISTS format TEXT`, p),
		strings.NewReplacer("P.", p, "NOW", l.Now(), "LAYOUT", strconv.Itoa(leaseLayout)).Replace(upgradeText),
	}
}

func (l language) tables(rules []string) []string {
	p := l.P()
	return append(rules,
		// Half of each page is for updates, so that a server whose disk is full still renews and hands on.
		fmt.Sprintf(`ALTER TABLE %ssessions SET (fillfactor = 50)`, p), fmt.Sprintf(`ALTER TABLE %sclaims SET (fillfactor = 50)`, p),
		// The channels of sessions: nobody may read them, whatever is granted on all tables.
		fmt.Sprintf(`%s %stold (session TEXT COLLATE "C" PRIMARY KEY REFERENCES %[2]ssessions (id) ON DELETE CASCADE, channel TEXT NOT NULL)`, l.Table(), p),
		fmt.Sprintf(`ALTER TABLE %stold ENABLE ROW LEVEL SECURITY`, p),
		fmt.Sprintf(`%s %sboot (one INT PRIMARY KEY DEFAULT 1 CHECK (one = 1), grace BIGINT NOT NULL, since BIGINT NOT NULL, started TIMESTAMPTZ NOT NULL)`, l.Table(), p),
		fmt.Sprintf(`CREATE SEQUENCE IF NOT EXISTS %stokens`, p))
}

func (l language) rest(routines []sqlengine.Routine) []string {
	p := l.P()
	all := []string{
		fmt.Sprintf(`ALTER TABLE %sboot ADD COLUMN IF NOT EXISTS home OID NOT NULL DEFAULT 0`, p), // the table that this was written to; 0: see booted
		l.booted(),
	}
	for _, r := range routines {
		all = append(all, r.Text)
	}
	// Tokens are about the time in µs, so that no later copy of the tables begins below. New tables
	// have forgotten nothing.
	return append(all,
		fmt.Sprintf(`SELECT setval('%s', GREATEST((SELECT last_value FROM %stokens), %s))`, l.tokens(), p, l.Now()),
		fmt.Sprintf(`INSERT INTO %[1]sboot (grace, since, started) SELECT 0, %[2]s, pg_postmaster_start_time() WHERE NOT EXISTS (SELECT FROM %[1]smeta) ON CONFLICT DO NOTHING`, p, l.Now()),
		fmt.Sprintf(`INSERT INTO %smeta (one, version, unlogged, ttl, format) VALUES (1, %d, %v, 0, '%s')
			ON CONFLICT (one) DO UPDATE SET version = excluded.version, format = excluded.format`, p, leaseVersion, l.unlogged, engine.Format()))
}
