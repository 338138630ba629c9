package pgengine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sqlengine"
)

// leaseVersion is that of the tables and routines of lease mode.
const leaseVersion = 9

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

// tables are those of a mode, with its routines. No query of theirs is prepared, because a pooler may
// be before the server.
type tables struct {
	name       string // for messages
	version    int    // that this program knows
	find       func(context.Context, *pgx.Conn) (version int, err error)
	creator    string                     // the statement that waits until no other client creates
	meta       string                     // the table that has the version
	statements func(version int) []string // that make all of an older version, or of none: 0
}

// migrate makes sure that the tables are there, and of our version.
func (t tables) migrate(ctx context.Context, lend lender) error {
	return sqlengine.Schema{
		Name: t.name, Version: t.version,
		Find: func(ctx context.Context) (int, error) {
			return with(ctx, lend, func(conn *pgx.Conn) (int, error) { return t.find(ctx, conn) })
		},
		Missing: func(err error) bool { return hasCode(err, noTable, noSchema) },
		Denied:  func(err error) bool { return hasCode(err, noRight) },
		Create: func(ctx context.Context) error {
			_, err := with(ctx, lend, func(conn *pgx.Conn) (any, error) { return nil, t.create(ctx, conn) })
			return err
		},
		Raced: raced,
	}.Migrate(ctx)
}

// create does it all or nothing, and one client at a time.
func (t tables) create(ctx context.Context, conn *pgx.Conn) error {
	err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		version, err := t.there(ctx, tx)
		if err != nil || version == t.version { // another client was faster, and users have locks on the tables by now
			return err
		}
		for _, statement := range t.statements(version) {
			if _, err := tx.Exec(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
	if hasCode(err, inUse) {
		return fmt.Errorf("%w: this program knows version %d, format %s: %w", engine.ErrUnsupported, t.version, engine.Format(), err)
	}
	return err
}

// there keeps other clients from creating, and returns the version that is there, or 0.
func (t tables) there(ctx context.Context, tx pgx.Tx) (version int, err error) {
	if _, err = tx.Exec(ctx, t.creator); err != nil {
		return 0, err
	}
	err = pgx.BeginFunc(ctx, tx, func(look pgx.Tx) error {
		return look.QueryRow(ctx, "SELECT coalesce(max(m.version), 0) FROM "+t.meta+" m", pgx.QueryExecModeExec).Scan(&version)
	})
	if hasCode(err, noTable, noSchema) {
		err = nil
	}
	return version, err
}

// leaseTables are those of lease mode.
func (l language) leaseTables() tables {
	return tables{
		name: fmt.Sprintf("the tables in schema %q", l.schema), version: leaseVersion, find: l.find,
		creator: fmt.Sprintf(`SELECT pg_advisory_xact_lock(%d)`, l.seed("init")), meta: l.P() + "meta", statements: l.statements,
	}
}

// find finds out in one round trip whether this database is fit for us.
func (l language) find(ctx context.Context, conn *pgx.Conn) (version int, err error) {
	var isolation, encoding, client, fsync, format string
	var unlogged bool
	row := conn.QueryRow(ctx, `SELECT current_setting('transaction_isolation'), current_setting('server_encoding'),
		current_setting('client_encoding'), current_setting('fsync'), m.version, m.unlogged, coalesce(to_jsonb(m)->>'format', '1') FROM `+
		l.P()+`meta m`, pgx.QueryExecModeExec)
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
	case unlogged != l.unlogged:
		err = fmt.Errorf("%w: schema %q was made with unlogged tables: %v, not %v: use another schema",
			engine.ErrUnsupported, l.schema, unlogged, l.unlogged)
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

func (l language) statements(version int) []string {
	tables, routines := sqlengine.Rules(l)
	all := []string{`SET LOCAL client_min_messages = warning`} // that something is there already is no news
	if version < leaseLayout {
		all = slices.Concat(all, l.begin(), l.tables(tables))
	}
	if version < 6 { // this waits for each transaction that has read the table, and all later readers wait behind
		all = append(all, fmt.Sprintf(`ALTER TABLE %sboot ADD COLUMN IF NOT EXISTS home OID NOT NULL DEFAULT 0`, l.P())) // the table that this was written to; 0: see booted
	}
	return append(all, l.rest(routines)...)
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
		fmt.Sprintf(`%s %stold (session TEXT COLLATE "C" PRIMARY KEY REFERENCES %[2]ssessions (id) ON DELETE CASCADE, channel TEXT NOT NULL)`, l.Table(true), p),
		fmt.Sprintf(`ALTER TABLE %stold ENABLE ROW LEVEL SECURITY`, p),
		fmt.Sprintf(`%s %sboot (one INT PRIMARY KEY DEFAULT 1 CHECK (one = 1), grace BIGINT NOT NULL, since BIGINT NOT NULL, started TIMESTAMPTZ NOT NULL)`, l.Table(true), p),
		fmt.Sprintf(`CREATE SEQUENCE IF NOT EXISTS %stokens`, p))
}

func (l language) rest(routines []sqlengine.Routine) []string {
	p := l.P()
	all := []string{l.booted()}
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
