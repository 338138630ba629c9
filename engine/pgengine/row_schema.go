package pgengine

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pawl-go/pawl/engine"
)

// rowStatements are the SQL of row mode on the tables of one schema:
//
//	row_names   id name                       what is locked; the oldest that nobody uses go when new ones come
//	row_claims  pid tag claim owner …         what claims of a connection have in common: it counts while its
//	                                          application name is the tag, the token if it has one, the id of the
//	                                          name, and the number that ends the id of the claim
//	row_meta    version ttl format            the longest TTL ever used, and the mark
//	row_boot    home started ready            the table and the server that were last seen, and when that may give something out
//	row_tokens                                a sequence
//
// The tables but row_meta are unlogged, so a lock writes nothing to the disk. A crash empties them,
// and has ended all that they tell of.
type rowStatements struct {
	tables                        []string
	prepared                      map[string]string // of a claim, by name
	ttl, boot, grace, show, sweep string            // of a new connection
	trim, list, look, end         string
	version, creator, meta        string
}

const rowVersion = 4

func rowLanguage(schema string) rowStatements {
	in := func(text string) string { return strings.ReplaceAll(text, "pawl.", schema+".") }
	// The token is taken when the row is locked: the inner query is one of its own.
	lock := in(`SELECT set_config('application_name', $2 || nextval('pawl.row_tokens') || ' ' || id || $3, true),
		set_config('idle_in_transaction_session_timeout', $4, true) FROM (SELECT id FROM pawl.row_names WHERE name = $1 FOR UPDATE%s) locked`)
	// Only its own transaction sets the name of a connection so.
	live := in(` FROM (SELECT c.*, a.state, a.xact_start, string_to_array(substr(a.application_name, length(c.tag) + 1), ' ') AS part
		FROM pawl.row_claims c JOIN pg_stat_activity a ON a.pid = c.pid AND starts_with(a.application_name, c.tag)) c
		JOIN pawl.row_names n ON n.id::text = c.part[2] `)
	return rowStatements{
		tables:  rowTables(in),
		creator: in(`SELECT pg_advisory_xact_lock(hashtext('pawl.row'), 0)`), // one client creates at a time
		meta:    in(`pawl.row_meta`),
		prepared: map[string]string{
			"begin": `BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE`,
			"claim": in(`UPDATE pawl.row_claims SET tag = $1, claim = $2, owner = $3, session = $4, label = $5, barging = $6 WHERE pid = pg_backend_pid()`),
			"next":  `COMMIT AND CHAIN`,
			"try":   fmt.Sprintf(lock, " SKIP LOCKED"),
			"queue": in(`SELECT set_config('application_name', $2 || ' ' || id || $3, true), set_config('idle_in_transaction_session_timeout', $4, true),
				set_config('lock_timeout', $4, true), set_config('statement_timeout', '0', true) FROM pawl.row_names WHERE name = $1`),
			"wait":     fmt.Sprintf(lock, ""),
			"rollback": `ROLLBACK`,
			"add":      in(`INSERT INTO pawl.row_names (name) VALUES ($1) ON CONFLICT DO NOTHING RETURNING id`),
		},
		ttl: in(`UPDATE pawl.row_meta SET ttl = $1 WHERE ttl < $1
			AND (current_setting('synchronous_commit') <> 'off' OR set_config('synchronous_commit', 'on', true) = 'on')`),
		// The first client that notices a restart says when the server may give something out,
		// because holders from before may believe for a TTL. That client makes tokens go on from
		// the time, because a crash may have lost the last ones. A table that was restored from a dump
		// is another table.
		boot: in(`INSERT INTO pawl.row_boot AS b (home, started, ready)
			SELECT 'pawl.row_boot'::regclass, pg_postmaster_start_time(), clock_timestamp() + ttl * interval '1 microsecond' FROM pawl.row_meta
			ON CONFLICT (one) DO UPDATE SET home = excluded.home, started = excluded.started, ready = excluded.ready
				WHERE b.started <> excluded.started OR b.home <> excluded.home
			RETURNING setval('pawl.row_tokens', greatest(nextval('pawl.row_tokens'), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint))`),
		// As long as no client has noticed the restart, the whole grace is to come.
		grace: in(`SELECT coalesce((SELECT (extract(epoch FROM ready - clock_timestamp()) * 1000000)::bigint FROM pawl.row_boot
			WHERE started = pg_postmaster_start_time() AND home = tableoid), ttl) FROM pawl.row_meta`),
		show:  in(`INSERT INTO pawl.row_claims (pid, tag) VALUES (pg_backend_pid(), '-') ON CONFLICT (pid) DO UPDATE SET tag = '-'`),
		sweep: in(`DELETE FROM pawl.row_claims c WHERE NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = c.pid)`),
		trim:  in(`DELETE FROM pawl.row_names WHERE id IN (SELECT id FROM pawl.row_names WHERE id <= $1 ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED)`),
		list:  `SELECT DISTINCT n.name` + live + `WHERE starts_with(n.name, $1)`,
		// Since when its transaction is open a user is not told of those of others.
		look: `SELECT c.claim || c.part[3], coalesce(nullif(c.owner, ''), c.claim || c.part[3]), c.session, c.label, c.barging,
			coalesce(nullif(c.part[1], '')::bigint, 0), coalesce((extract(epoch FROM clock_timestamp() - c.xact_start) * 1000000)::bigint, -1)` + live +
			`WHERE n.name = $1 ORDER BY 6 = 0, c.xact_start`,
		// A waiter stays connected; a holder has nothing to cancel. Gently a waiter is canceled whatever its state is: a user is not
		// told that of others, and nobody is told without track_activities. To cancel an idle connection does nothing.
		end: `SELECT CASE WHEN c.state = 'active' OR $3 AND c.part[1] = '' THEN pg_cancel_backend(c.pid) ELSE pg_terminate_backend(c.pid) END` + live +
			`WHERE n.name = $1 AND c.claim || c.part[3] = $2`,
		version: in(`SELECT coalesce(max(m.version), 0), coalesce(max(to_jsonb(m)->>'format'), '1'), current_setting('fsync') FROM pawl.row_meta m`),
	}
}

func rowTables(in func(string) string) []string {
	return []string{
		`SET LOCAL client_min_messages = warning`, // that something is there already is no news
		strings.TrimSuffix(in(`CREATE SCHEMA IF NOT EXISTS pawl.`), "."),
		in(`CREATE TABLE IF NOT EXISTS pawl.row_meta (one BOOLEAN PRIMARY KEY DEFAULT true CHECK (one), version INT NOT NULL, ttl BIGINT NOT NULL DEFAULT 0)`),
		in(`ALTER TABLE pawl.row_meta ADD COLUMN IF NOT EXISTS format TEXT`), // a lock of a version without it is one of ours
		in(`CREATE UNLOGGED TABLE IF NOT EXISTS pawl.row_names (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name TEXT COLLATE "C" NOT NULL UNIQUE)`),
		in(`CREATE UNLOGGED TABLE IF NOT EXISTS pawl.row_claims (pid INT PRIMARY KEY, tag TEXT NOT NULL, claim TEXT, owner TEXT, session TEXT,
			label TEXT, barging BOOLEAN) WITH (fillfactor = 50)`),
		in(`CREATE UNLOGGED TABLE IF NOT EXISTS pawl.row_boot (one BOOLEAN PRIMARY KEY DEFAULT true CHECK (one), started TIMESTAMPTZ NOT NULL, ready TIMESTAMPTZ NOT NULL)`),
		in(`ALTER TABLE pawl.row_boot ADD COLUMN IF NOT EXISTS home OID NOT NULL DEFAULT 0`),
		in(`UPDATE pawl.row_boot SET home = tableoid WHERE home = 0`), // of an older version, which has forgotten nothing
		in(`CREATE SEQUENCE IF NOT EXISTS pawl.row_tokens`),
		// New tables have forgotten nothing.
		in(`INSERT INTO pawl.row_boot (home, started, ready) SELECT 'pawl.row_boot'::regclass, pg_postmaster_start_time(), clock_timestamp() WHERE NOT EXISTS (SELECT FROM pawl.row_meta) ON CONFLICT DO NOTHING`),
		in(`SELECT setval('pawl.row_tokens', greatest(nextval('pawl.row_tokens'), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint))`),
		in(fmt.Sprintf(`INSERT INTO pawl.row_meta (version, format) VALUES (%d, '%s') ON CONFLICT (one) DO UPDATE SET version = excluded.version, format = excluded.format`,
			rowVersion, engine.Format())),
	}
}

// More names of errors.
const (
	lockTimedOut  = "55P03"
	queryCanceled = "57014"
)

func (s *rowStore) tables() tables {
	return tables{
		name: "the tables of row mode", version: rowVersion, find: s.find,
		creator: s.sql.creator, meta: s.sql.meta, statements: func(int) []string { return s.sql.tables },
	}
}

// find refuses a pooler, which would give each transaction another connection of
// the server.
func (s *rowStore) find(ctx context.Context, conn *pgx.Conn) (version int, err error) {
	var pid uint32
	if encoding := conn.PgConn().ParameterStatus("client_encoding"); encoding != "UTF8" {
		return 0, otherEncoding(encoding)
	}
	err = conn.QueryRow(ctx, `SELECT pg_backend_pid()`, pgx.QueryExecModeSimpleProtocol).Scan(&pid)
	if err == nil && pid != conn.PgConn().PID() {
		err = fmt.Errorf("%w: there is a pooler before the server: row mode needs connections of the server itself", engine.ErrUnsupported)
	}
	if err == nil {
		var format, fsync string
		err = conn.QueryRow(ctx, s.sql.version).Scan(&version, &format, &fsync)
		if err == nil && version >= rowVersion {
			err = errors.Join(engine.CheckFormat(format), noFsync(fsync))
		}
	}
	return version, err
}
