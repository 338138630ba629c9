package mysqlengine

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pawl-go/pawl/engine"
)

// rowVersion is that of the tables and procedures of row mode.
const rowVersion = 7

// rowDefinitions make the tables and procedures of row mode:
//
//	pawl_row_names   id name                     what is locked; the oldest that nobody uses go when new ones come
//	pawl_row_claims  id held conn resource …     who holds and waits; id is the token
//	pawl_row_meta    version ttl format          the longest TTL ever used
//	                 server moved                the server that was used last, or 0, and when that may give something out
//	pawl_row_boot    ready                       when a server may give something out; empty when it has just started
//
// A claim is never committed. A claim is a row of the transaction that holds the lock or waits for it,
// and goes with that transaction. A client that reads uncommitted rows sees it. Numbers that were
// given out are not given out again, also when the row is gone.
func rowDefinitions(prefix string) []string {
	const end = " ENGINE=InnoDB"
	all := []string{
		`CREATE TABLE IF NOT EXISTS pawl_row_meta (version INT NOT NULL PRIMARY KEY, ttl BIGINT NOT NULL DEFAULT 0, format VARBINARY(16) NOT NULL)` + end,
		"ALTER TABLE pawl_row_meta ADD COLUMN server BIGINT UNSIGNED NOT NULL DEFAULT 0, ADD COLUMN moved DATETIME(6) NOT NULL DEFAULT '2000-01-01'",
		`CREATE TABLE IF NOT EXISTS pawl_row_boot (one INT NOT NULL PRIMARY KEY, ready DATETIME(6) NOT NULL) ENGINE=MEMORY`,
		`CREATE TABLE IF NOT EXISTS pawl_row_names (id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, name VARBINARY(512) NOT NULL UNIQUE)` + end,
		`CREATE TABLE IF NOT EXISTS pawl_row_claims (id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, held BOOLEAN NOT NULL,
			conn BIGINT UNSIGNED NOT NULL, resource VARBINARY(512) NOT NULL, claim VARBINARY(512) NOT NULL, owner VARBINARY(512) NOT NULL,
			session VARBINARY(512) NOT NULL, label VARBINARY(512) NOT NULL, barging BOOLEAN NOT NULL, since DATETIME(6) NOT NULL,
			granted DATETIME(6) NULL)` + end,
	}
	for _, name := range slices.Sorted(maps.Keys(rowProcedures)) { // the last tells that all are there
		all = append(all, "DROP PROCEDURE IF EXISTS pawl_row_"+name, "CREATE PROCEDURE pawl_row_"+name+rowProcedures[name])
	}
	// New tables have forgotten nothing. Those of an older version have, if the server has just started.
	all = append(all, "INSERT IGNORE INTO pawl_row_boot (one, ready) SELECT "+rowServer+", UTC_TIMESTAMP(6) FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM pawl_row_meta)")
	all = append(all, fmt.Sprintf("INSERT INTO pawl_row_meta (version, format) VALUES (%d, '%[2]s') ON DUPLICATE KEY UPDATE format = '%[2]s'", rowVersion, engine.Format())) // last, because each statement is kept
	for i := range all {
		all[i] = strings.ReplaceAll(strings.ReplaceAll(all[i], "pawl_row_", prefix+"row_"), "@pawl_", "@"+prefix)
	}
	return all
}
