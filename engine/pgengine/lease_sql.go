package pgengine

import (
	_ "embed"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pawl-go/pawl/internal/sqlengine"
)

var (
	//go:embed lease_quick.sql
	quickText string
	//go:embed lease_boot.sql
	bootText string
	//go:embed lease_upgrade.sql
	upgradeText string
)

// language is PL/pgSQL, as package sqlengine wants it. Locks of the server keep steps of one name
// apart, and the end of a session from its Enters. Such locks cost no write, as a lock of a row would.
type language struct {
	schema   string
	unlogged bool
}

// seed keeps the locks of schemas apart.
func (l language) seed(of string) int64 {
	h := fnv.New64a()
	h.Write([]byte("pawl " + of + " " + l.schema))
	return int64(h.Sum64())
}

func (l language) P() string        { return pgx.Identifier{l.schema}.Sanitize() + "." }
func (l language) Text() string     { return "text" }
func (l language) Blob() string     { return "bytea" }
func (l language) Key(int) string   { return `text COLLATE "C"` }
func (l language) TableEnd() string { return "" }

func (l language) Table(forgets bool) string {
	if l.unlogged && forgets {
		return "CREATE UNLOGGED TABLE IF NOT EXISTS"
	}
	return "CREATE TABLE IF NOT EXISTS"
}

func (l language) Inside(string, string) string { return "" }

func (l language) After(name, table, on string) string {
	return fmt.Sprintf("CREATE INDEX IF NOT EXISTS %s ON %s%s (%s);", name, l.P(), table, on)
}

// params lists parameters; results are marked.
func params(typed []string, results string) string {
	return strings.Join(append(sqlengine.Typed(typed, "p_", "%s %s"), sqlengine.Typed(typed, "r_", results+"%s %s")...), ", ")
}

// rights: a user that may call a procedure needs no rights on the tables. A plan without an index
// would be kept when a small table has grown. To compile a plan takes a hundred times longer than
// to run it.
const rights = " SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off"

// Proc begins a function where clients call it, because that takes less time than a
// procedure, and a procedure where other procedures call it.
func (l language) Proc(name string, typed ...string) string {
	if name == "fits" || name == "advance" {
		return "CREATE OR REPLACE PROCEDURE " + l.P() + name + "(" + params(typed, "INOUT ") + ") LANGUAGE plpgsql AS $pawl$"
	}
	return "CREATE OR REPLACE FUNCTION " + l.P() + name + "(" + params(typed, "OUT ") + ") LANGUAGE plpgsql" + rights + " AS $pawl$"
}

func (l language) Rows(name string, typed ...string) string {
	return "CREATE OR REPLACE FUNCTION " + l.P() + name + "(" + params(typed[:2], "") + ") RETURNS TABLE (" +
		strings.Join(sqlengine.Typed(typed[2:], "", "%s %s"), ", ") + ") LANGUAGE plpgsql" + rights + " AS $pawl$"
}

// CallStep: the results of step are its last eight.
func (l language) CallStep(args ...string) string {
	in, out := args[:len(args)-8], args[len(args)-8:]
	return "SELECT * INTO " + strings.Join(out, ", ") + " FROM " + l.P() + "step(" + strings.Join(in, ", ") + ");"
}

// marked says that the table boot has the mark of the server as it runs now, and of the table itself. A
// table that was restored from a dump is another table.
const marked = "b.one = 1 AND b.home = b.tableoid AND b.started = pg_postmaster_start_time()"

// Quick enters where nobody is, and leaves where nobody else is, in one
// statement and at most one more.
func (l language) Quick() string {
	gives := " AND EXISTS (SELECT FROM " + l.P() + "boot b WHERE " + marked
	if l.unlogged {
		gives += " AND b.grace <= v_now"
	}
	return strings.NewReplacer("P.", l.P(), "GIVES", gives+")", "TOKENS", l.tokens(), "TELL", l.Tell("v_session", "v_owner", "v_token", "0")).Replace(quickText)
}

func (l language) Vars(typed ...string) string {
	return "DECLARE" + strings.Join(sqlengine.Typed(typed, "", " %s %s;"), "") + "\nBEGIN"
}

func (l language) End() string    { return "END $pawl$" }
func (l language) Return() string { return "RETURN QUERY" }

// Writable: a server that follows another refuses every write by itself.
func (l language) Writable() string { return "" }

func (l language) Set() string  { return "" }
func (l language) Do() string   { return "LOOP" }
func (l language) Loop() string { return "LOOP" }

func (l language) Now() string { return "(date_part('epoch', clock_timestamp()) * 1000000)::bigint" }

func (l language) Grace() string {
	if !l.unlogged {
		return "0"
	}
	return strings.NewReplacer("P.", l.P(), "NOW", l.Now()).Replace("COALESCE((SELECT b.grace FROM P.boot b WHERE b.one = 1), NOW + (SELECT m.ttl FROM P.meta m WHERE m.one = 1), 9223372036854775807)")
}

func (l language) Since() string {
	return "COALESCE((SELECT b.since FROM " + l.P() + "boot b WHERE b.one = 1), 0)"
}

// locked waits for a lock of the server until the end of the transaction. As a
// condition it is evaluated without a query.
func locked(how, key string) string {
	return "IF pg_advisory_xact_lock" + how + "(" + key + ") IS NULL THEN END IF;"
}

func (l language) Lock(name, slot string) string {
	return fmt.Sprintf("%s := hashtextextended(%s, %d); ", slot, name, l.seed("name")) + locked("", slot)
}

func (l language) sessionLock(id string) string {
	return fmt.Sprintf("hashtextextended(%s, %d)", id, l.seed("session"))
}

func (l language) ShareSession(id string) string { return locked("_shared", l.sessionLock(id)) }
func (l language) OwnSession(id string) string   { return locked("", l.sessionLock(id)) }

func (l language) tokens() string { return strings.ReplaceAll(l.P()+"tokens", "'", "''") }

func (l language) Mint(into, _, _ string) string { return into + " := nextval('" + l.tokens() + "');" }

// Durable: a step's answer must hold after a crash, whatever the user or
// the database set. Unlogged tables are gone then in any case.
func (l language) Durable(always bool) string {
	if l.unlogged && !always {
		return ""
	}
	return "IF current_setting('synchronous_commit') = 'off' THEN PERFORM set_config('synchronous_commit', 'on', true); END IF;"
}

// Alone lets one call at a time bury dead sessions.
func (l language) Alone(force string) string {
	return fmt.Sprintf("IF %s = 0 AND NOT pg_try_advisory_xact_lock(%d) THEN RETURN; END IF;", force, l.seed("bury"))
}

// Boot notes for how long a holder may believe. The next grace lasts that long.
func (l language) Boot(now, grace, since, belief string) string {
	note := ""
	if l.unlogged {
		note = strings.NewReplacer("P.", l.P(), "BELIEF", belief).Replace(
			"IF (SELECT m.ttl FROM P.meta m WHERE m.one = 1) < BELIEF THEN UPDATE P.meta m SET ttl = BELIEF WHERE m.one = 1 AND m.ttl < BELIEF; END IF; ")
	}
	return note + l.Booted(now, grace, since)
}

// Booted finds out whether this is the server that the tables were used on last,
// and as it left them. If not, tokens go on from the time of day. A promoted
// replica, a backup, a dump or a crash may not know the last tokens. If the unlogged
// tables are empty, nothing is given out for the longest belief there was.
func (l language) Booted(now, grace, since string) string {
	ends := map[bool]string{false: "0", true: "b.grace"}[l.unlogged]
	read := fmt.Sprintf("SELECT %s, b.since INTO %s, %s FROM %sboot b WHERE %s;", ends, grace, since, l.P(), marked)
	return fmt.Sprintf("%s IF NOT FOUND THEN CALL %sbooted(); %s := %s; %s := %s; %s := %s; END IF;", read, l.P(), now, l.Now(), grace, l.Grace(), since, l.Since())
}

func (l language) booted() string {
	return strings.NewReplacer("P.", l.P(), "LOCK", strconv.FormatInt(l.seed("boot"), 10), "NOW", l.Now(), "TOKENS", l.tokens()).Replace(bootText)
}

// Listens notes on which channel the client of a session is told. The channel is the client's
// secret: a user that knows it can say that a claim was granted.
func (l language) Listens(session, channel string) string {
	return fmt.Sprintf("IF %[3]s <> '' THEN INSERT INTO %[1]stold (session, channel) VALUES (%[2]s, %[3]s); END IF;", l.P(), session, channel)
}

// Tell sends a message to the client of a session, when this step is done, if that client
// listens. Tell sends none when the queue is full, because the step would fail: then the
// client asks.
func (l language) Tell(session, id, token, gone string) string {
	return fmt.Sprintf("PERFORM pg_notify(t.channel, concat_ws(' ', %s, %s, t.session, %s)) FROM %stold t "+
		"WHERE t.session = %s AND pg_notification_queue_usage() < 0.5;", token, gone, id, l.P(), session)
}

func (l language) Arg(n int) string { return fmt.Sprintf("$%d", n) }

func (l language) Call(name string, params int) string {
	args := make([]string, params)
	for i := range args {
		args[i] = l.Arg(i + 1)
	}
	return "SELECT * FROM " + l.P() + name + "(" + strings.Join(args, ", ") + ")"
}

func (l language) CallRows(name string) string { return l.Call(name, 1) }
