package mysqlengine

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"strings"

	"github.com/pawl-go/pawl/engine"
)

// rowVersion is that of the tables and procedures of row mode.
const rowVersion = 1

// rowDefinitions make the tables and procedures of row mode:
//
//	pawl_row_names   id name                     what is locked; the oldest that nobody uses go when new ones come
//	pawl_row_claims  id held conn resource …     who holds and waits; id is the token
//	pawl_row_meta    version ttl                 the longest TTL ever used
//	pawl_row_boot    ready                       when the server may give something out; empty when it has just started
//
// A claim is never committed: it is a row of the transaction that holds the
// lock or waits for it, goes with that, and is seen by who reads uncommitted.
// Numbers that were given out are not given out again, also when the row is gone.
func rowDefinitions(prefix string) []string {
	const end = " ENGINE=InnoDB"
	all := []string{
		"SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'", // nothing is ever cut
		`CREATE TABLE IF NOT EXISTS pawl_row_meta (version INT NOT NULL PRIMARY KEY, ttl BIGINT NOT NULL DEFAULT 0)` + end,
		`CREATE TABLE IF NOT EXISTS pawl_row_boot (one INT NOT NULL PRIMARY KEY, ready DATETIME(6) NOT NULL) ENGINE=MEMORY`,
		`CREATE TABLE IF NOT EXISTS pawl_row_names (id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, name VARBINARY(512) NOT NULL UNIQUE)` + end,
		`CREATE TABLE IF NOT EXISTS pawl_row_claims (id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, held BOOLEAN NOT NULL,
			conn BIGINT UNSIGNED NOT NULL, resource VARBINARY(512) NOT NULL, claim VARBINARY(512) NOT NULL, owner VARBINARY(512) NOT NULL,
			session VARBINARY(512) NOT NULL, label VARBINARY(512) NOT NULL, barging BOOLEAN NOT NULL, since DATETIME(6) NOT NULL)` + end,
	}
	for name, body := range rowProcedures {
		all = append(all, "DROP PROCEDURE IF EXISTS pawl_row_"+name, "CREATE PROCEDURE pawl_row_"+name+body)
	}
	// What was just made has forgotten nothing.
	all = append(all, "INSERT IGNORE INTO pawl_row_boot (one, ready) VALUES (1, UTC_TIMESTAMP(6))")
	all = append(all, fmt.Sprintf("REPLACE INTO pawl_row_meta (version) VALUES (%d)", rowVersion)) // last, for each statement is kept
	for i := range all {
		all[i] = strings.ReplaceAll(strings.ReplaceAll(all[i], "pawl_row_", prefix+"row_"), "@pawl_", "@"+prefix)
	}
	return all
}

const (
	// keptNames is how many names are kept though nobody uses them: to lock
	// one of them again writes nothing that lasts.
	keptNames = 1024
	// trimEvery is after how many new names somebody removes the oldest ones.
	trimEvery = 64
)

// migrate makes sure that the tables are there, and of our version.
func (s *rowStore) migrate(ctx context.Context) error {
	version, err := s.version(ctx, s.db)
	if err == nil && version < rowVersion || hasNumber(err, noTable) {
		err = s.create(ctx)
		version = rowVersion
	}
	if hasNumber(err, noDatabaseRight, noTableRight, noProcedureRight) {
		err = fmt.Errorf("the tables of row mode are missing or old, and this user may not create them: let one who may run pawl store init: %w", err)
	}
	if err == nil && version > rowVersion {
		return fmt.Errorf("open: %w: the tables of row mode are of version %d, this program knows version %d", engine.ErrUnsupported, version, rowVersion)
	}
	return engine.Unavailable("open", err)
}

func (s *rowStore) version(ctx context.Context, db interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}) (version int, err error) {
	err = db.QueryRowContext(ctx, "SELECT COALESCE(MAX(version), 0) FROM "+s.prefix+"row_meta").Scan(&version)
	return version, err
}

// create makes everything, one client at a time.
func (s *rowStore) create(ctx context.Context) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Raw(func(any) error { return driver.ErrBadConn }) //nolint:errcheck // ends the connection, and its lock and mode
	if _, err := conn.ExecContext(ctx, "DO GET_LOCK(CONCAT('pawl init ', LEFT(MD5(DATABASE()), 16)), 30)"); err != nil {
		return err
	}
	if version, err := s.version(ctx, conn); err == nil && version >= rowVersion {
		return nil // somebody did it meanwhile
	}
	for _, statement := range rowDefinitions(s.prefix) {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}
