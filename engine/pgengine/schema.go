package pgengine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sqlengine"
)

// leaseVersion is that of the tables and routines of lease mode.
const leaseVersion = 2

// PostgreSQL's names of what can go wrong.
const (
	noTable  = "42P01"
	noSchema = "3F000"
	noRight  = "42501"

	serializationFailure = "40001"
	deadlock             = "40P01"
)

func hasCode(err error, codes ...string) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && slices.Contains(codes, refused.Code)
}

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
	}.Migrate(ctx)
}

// find finds out in one round trip whether this database is fit for us.
func (t leaseTables) find(ctx context.Context) (version int, err error) {
	var isolation, encoding string
	var unlogged bool
	row := t.db.QueryRowContext(ctx, `SELECT current_setting('transaction_isolation'), current_setting('server_encoding'), version, unlogged FROM `+
		t.language.P()+`meta`, t.args...)
	if err := row.Scan(&isolation, &encoding, &version, &unlogged); err != nil {
		return 0, err
	}
	switch {
	case version != leaseVersion:
		return version, nil
	case isolation != "read committed": // a step must see what was committed before it got its lock
		err = fmt.Errorf("%w: transactions are %s by default: set default_transaction_isolation to read committed for this user",
			engine.ErrUnsupported, isolation)
	case encoding != "UTF8":
		err = fmt.Errorf("%w: the database is encoded in %s, not UTF8", engine.ErrUnsupported, encoding)
	case unlogged != t.language.unlogged:
		err = fmt.Errorf("%w: schema %q was made with unlogged tables: %v, not %v: use another schema",
			engine.ErrUnsupported, t.language.schema, unlogged, t.language.unlogged)
	}
	return version, err
}

// create does it all or nothing, and one client at a time.
func (t leaseTables) create(ctx context.Context) error {
	tx, err := t.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit there is nothing to undo
	for _, statement := range t.language.definitions() {
		if _, err := tx.ExecContext(ctx, statement, t.args...); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func (l language) definitions() []string {
	p := l.P()
	all := []string{
		fmt.Sprintf(`SELECT pg_advisory_xact_lock(%d)`, l.seed("init")),
		`SET LOCAL client_min_messages = warning`, // that something is there already is no news
		`CREATE SCHEMA IF NOT EXISTS ` + strings.TrimSuffix(p, "."),
	}
	tables, routines := sqlengine.Rules(l)
	all = append(all, tables...)
	all = append(all,
		fmt.Sprintf(`CREATE TABLE IF NOT EXISTS %smeta (one INT PRIMARY KEY CHECK (one = 1), version INT NOT NULL, unlogged BOOLEAN NOT NULL, ttl BIGINT NOT NULL)`, p),
		fmt.Sprintf(`%s %sboot (one INT PRIMARY KEY DEFAULT 1 CHECK (one = 1), grace BIGINT NOT NULL)`, l.Table(), p),
		fmt.Sprintf(`CREATE SEQUENCE IF NOT EXISTS %stokens`, p))
	for _, r := range routines {
		all = append(all, r.Text)
	}
	// Tokens are about the time in µs, so that no later copy of the tables
	// begins below. What was just made has forgotten nothing.
	return append(all,
		fmt.Sprintf(`SELECT setval('%s', GREATEST((SELECT last_value FROM %stokens), %s))`, l.tokens(), p, l.Now()),
		fmt.Sprintf(`INSERT INTO %[1]sboot (grace) SELECT 0 WHERE NOT EXISTS (SELECT FROM %[1]smeta) ON CONFLICT DO NOTHING`, p),
		fmt.Sprintf(`INSERT INTO %smeta (one, version, unlogged, ttl) VALUES (1, %d, %v, 0) ON CONFLICT (one) DO UPDATE SET version = excluded.version`,
			p, leaseVersion, l.unlogged))
}
