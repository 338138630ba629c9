package pgengine

import (
	_ "embed"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

var (
	//go:embed lease_quick.sql
	quickText string
	//go:embed lease_boot.sql
	bootText string
)

// language is PL/pgSQL, for package sqlengine. Two locks of the server's keep
// steps apart that must not go on together: those of one name, and the end of a
// session and its Enters. They cost no write, as a lock of a row would.
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
func (l language) Logged() string   { return "CREATE TABLE IF NOT EXISTS" }
func (l language) TableEnd() string { return "" }

func (l language) Table() string {
	if l.unlogged {
		return "CREATE UNLOGGED TABLE IF NOT EXISTS"
	}
	return l.Logged()
}

func (l language) Inside(string, string) string { return "" }

func (l language) After(name, table, on string) string {
	return fmt.Sprintf("CREATE INDEX IF NOT EXISTS %s ON %s%s (%s);", name, l.P(), table, on)
}

// params lists parameters; results are marked.
func params(typed []string, results string) string {
	var all []string
	for i := 0; i < len(typed); i += 2 {
		mode := ""
		if strings.HasPrefix(typed[i+1], "r_") {
			mode = results
		}
		all = append(all, mode+typed[i+1]+" "+typed[i])
	}
	return strings.Join(all, ", ")
}

// rights: who may call a procedure needs none on the tables. A plan without an
// index would be kept when a table that was small has grown.
const rights = " SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off"

// Proc begins a function where clients call it, for that takes less time than a
// procedure, and a procedure where the others do.
func (l language) Proc(name string, typed ...string) string {
	if name == "fits" || name == "advance" {
		return "CREATE OR REPLACE PROCEDURE " + l.P() + name + "(" + params(typed, "INOUT ") + ") LANGUAGE plpgsql AS $pawl$"
	}
	return "CREATE OR REPLACE FUNCTION " + l.P() + name + "(" + params(typed, "OUT ") + ") LANGUAGE plpgsql" + rights + " AS $pawl$"
}

func (l language) Rows(name string, typed ...string) string {
	return "CREATE OR REPLACE FUNCTION " + l.P() + name + "(" + params(typed[:2], "") + ") RETURNS TABLE (" + params(typed[2:], "") +
		") LANGUAGE plpgsql" + rights + " AS $pawl$"
}

// CallStep: the results of step are its last six.
func (l language) CallStep(args ...string) string {
	in, out := args[:len(args)-6], args[len(args)-6:]
	return "SELECT * INTO " + strings.Join(out, ", ") + " FROM " + l.P() + "step(" + strings.Join(in, ", ") + ");"
}

// Quick enters where nobody is, and leaves where nobody else is, in one
// statement and at most one more.
func (l language) Quick() string {
	grace := ""
	if l.unlogged {
		grace = " AND (SELECT b.grace FROM " + l.P() + "boot b) <= v_now"
	}
	return strings.NewReplacer("P.", l.P(), "GRACE", grace, "TOKENS", l.tokens()).Replace(quickText)
}

func (l language) Count(into string) string { return "GET DIAGNOSTICS " + into + " = ROW_COUNT;" }

func (l language) Vars(typed ...string) string {
	text := "DECLARE"
	for i := 0; i < len(typed); i += 2 {
		text += " " + typed[i+1] + " " + typed[i] + ";"
	}
	return text + "\nBEGIN"
}

func (l language) End() string    { return "END $pawl$" }
func (l language) Return() string { return "RETURN QUERY" }
func (l language) Set() string    { return "" }
func (l language) Do() string     { return "LOOP" }
func (l language) Loop() string   { return "LOOP" }

func (l language) Now() string { return "(date_part('epoch', clock_timestamp()) * 1000000)::bigint" }

func (l language) Grace() string {
	if !l.unlogged {
		return "0"
	}
	return "COALESCE((SELECT b.grace FROM " + l.P() + "boot b), 9223372036854775807)"
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

// Boot finds out whether the unlogged tables are as the server left them: a
// crash empties them. Then nothing is given out for the longest TTL there was,
// and tokens go on from the time of day, in case that some were lost too.
func (l language) Boot(now, ttl string) string {
	if !l.unlogged {
		return ""
	}
	return strings.NewReplacer("P.", l.P(), "THEN_NOW", now, "TTL", ttl, "LOCK", strconv.FormatInt(l.seed("boot"), 10), "NOW", l.Now(), "TOKENS", l.tokens()).Replace(bootText)
}

// Tell sends a message to the client of a session, when this step is done. One
// that has no listener begins its name with a dash.
func (l language) Tell(session, id, token, gone string) string {
	return fmt.Sprintf("PERFORM pg_notify('pawl_' || s.client, concat_ws(' ', %s, %s, s.id, %s)) FROM %ssessions s "+
		"WHERE s.id = %s AND left(s.client, 1) <> '-';", token, gone, id, l.P(), session)
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
