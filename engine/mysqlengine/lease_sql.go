package mysqlengine

import (
	"fmt"
	"strings"

	"github.com/pawl-go/pawl/internal/sqlengine"
)

// slots is how many locks there are for all names, and again for all sessions. The locks are rows that
// are never added or removed, so that no lock is a lock of a gap. Each remembers the last token
// that was given out under it.
const slots = 1024

// language is the language of stored procedures, as package sqlengine wants it. The procedures that
// clients call run the others in a transaction.
type language struct {
	prefix string
	params map[string][]string // of the procedures so far
}

func (l language) P() string { return l.prefix }

// Text is longer than any column. In a session that cuts long texts a parameter is still too long
// for its column, and the procedure cuts nothing.
func (l language) Text() string                        { return "VARBINARY(2048)" }
func (l language) Blob() string                        { return "MEDIUMBLOB" }
func (l language) Key(n int) string                    { return fmt.Sprintf("VARBINARY(%d)", n) }
func (l language) Table(bool) string                   { return "CREATE TABLE IF NOT EXISTS" }
func (l language) TableEnd() string                    { return " ENGINE=InnoDB ROW_FORMAT=DYNAMIC" }
func (l language) Inside(name, on string) string       { return ", INDEX " + name + " (" + on + ")" }
func (l language) After(string, string, string) string { return "" }

// pick returns the parameters whose names begin so.
func pick(typed []string, prefix, format string) string {
	return strings.Join(sqlengine.Typed(typed, prefix, format), ", ")
}

func (l language) Proc(name string, typed ...string) string {
	l.params[name] = typed
	params := append(sqlengine.Typed(typed, "p_", "%s %s"), sqlengine.Typed(typed, "r_", "INOUT %s %s")...)
	return "CREATE PROCEDURE " + l.prefix + name + "(" + strings.Join(params, ", ") + ") MODIFIES SQL DATA"
}

func (l language) Rows(name string, typed ...string) string {
	return "CREATE PROCEDURE " + l.prefix + name + "(" + pick(typed, "p_", "%s %s") + ") MODIFIES SQL DATA"
}

// wrap is what clients call. The procedure sees all that others committed before it got its lock, and leaves
// no transaction open when something fails.
func (l language) wrap(name string) string {
	typed := l.params[name]
	declare := strings.Join(sqlengine.Typed(typed, "r_", "  DECLARE %s %s DEFAULT 0;\n"), "")
	p, r := pick(typed, "p_", "%[1]s"), pick(typed, "r_", "%[1]s")
	return fmt.Sprintf(`CREATE PROCEDURE %[1]scall_%[2]s(%[3]s) MODIFIES SQL DATA
BEGIN
%[4]s  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  CALL %[1]s%[2]s(%[5]s, %[6]s);
  %[7]s
  COMMIT;
  SELECT %[6]s;
END`, l.prefix, name, pick(typed, "p_", "%s %s"), declare, p, r, writable)
}

// writable fails on a server that was made read-only because another has taken over. The procedures
// would write all the same, because they run with the rights of their creator.
const writable = `IF CAST(@@GLOBAL.read_only AS CHAR) NOT IN ('0', 'OFF') THEN
    SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 1290, MESSAGE_TEXT = 'the server is read-only: another may have taken over';
  END IF;`

// Writable comes first in procedures that are not wrapped.
func (l language) Writable() string { return writable }

func (l language) Vars(typed ...string) string {
	return "BEGIN" + strings.Join(sqlengine.Typed(typed, "", "\n  DECLARE %s %s;"), "")
}

func (l language) End() string    { return "END" }
func (l language) Return() string { return "" }
func (l language) CallStep(args ...string) string {
	return "CALL " + l.prefix + "step(" + strings.Join(args, ", ") + ");"
}

func (l language) Quick() string { return "" }
func (l language) Set() string   { return "SET" }
func (l language) Do() string    { return "DO" }
func (l language) Loop() string  { return "WHILE" }

// Now is of the statement that it is in, not of the procedure.
func (l language) Now() string {
	return "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
}

func (l language) Durable(bool) string           { return "" }
func (l language) Alone(string) string           { return "" }
func (l language) Listens(string, string) string { return "" }

// weak says that a crash of the machine can take back an answer.
const weak = "(@@GLOBAL.innodb_flush_log_at_trx_commit <> 1 OR (@@GLOBAL.log_bin = 1 AND @@GLOBAL.sync_binlog <> 1))"

func (l language) Grace() string {
	return fmt.Sprintf("COALESCE((SELECT g.grace FROM %[1]sboot g), ("+next+"), 0)", l.prefix, l.Now())
}
func (l language) Since() string { return "COALESCE((SELECT g.since FROM " + l.prefix + "boot g), 0)" }

// Boot notes for how long a holder may believe, and whether the server may forget.
func (l language) Boot(now, grace, since, belief string) string {
	return l.Booted(now, grace, since) + fmt.Sprintf(`
  IF NOT EXISTS (SELECT 1 FROM %[1]sbelief b WHERE b.ttl >= %[2]s AND b.weak = %[3]s) THEN
    INSERT INTO %[1]sbelief (one, ttl, weak) VALUES (1, %[2]s, %[3]s) ON DUPLICATE KEY UPDATE ttl = GREATEST(ttl, %[2]s), weak = %[3]s;
  END IF;`, l.prefix, belief, weak)
}

// Booted finds out whether the server has started anew: that empties the table boot,
// which is in its memory. The table is read once, because each statement of a procedure takes its time.
func (l language) Booted(now, grace, since string) string {
	read := fmt.Sprintf("SELECT g.grace, g.since INTO %s, %s FROM %sboot g;", grace, since, l.prefix)
	return fmt.Sprintf("%[1]s IF %[2]s IS NULL THEN CALL %[3]sbooted(); SET %[4]s := %[5]s; %[1]s END IF;", read, since, l.prefix, now, l.Now())
}

// next is the end of a grace that begins now. A server that may have forgotten grants nothing for the longest
// belief there was. A durable server has forgotten nothing.
const next = "SELECT CASE WHEN COALESCE(MAX(b.weak), 0) = 1 THEN %[2]s + MAX(b.ttl) ELSE 0 END FROM %[1]sbelief b"

func (l language) booted() string {
	return fmt.Sprintf("CREATE PROCEDURE %[1]sbooted() MODIFIES SQL DATA INSERT IGNORE INTO %[1]sboot (one, since, grace) SELECT 1, %[2]s, ("+next+")", l.prefix, l.Now())
}

func (l language) Lock(name, slot string) string {
	return fmt.Sprintf("SELECT l.id INTO %s FROM %sslots l WHERE l.id = CRC32(%s) %% %d FOR UPDATE;", slot, l.prefix, name, slots)
}

// The locks of sessions are rows after those of names, and not the sessions themselves. An Enter
// may wait long for its name, and a heartbeat must not wait for that Enter.
func (l language) sessionLock(id, how string) string {
	return fmt.Sprintf("SELECT l.id INTO v_ends FROM %[1]sslots l WHERE l.id = %[3]d + CRC32(%[2]s) %% %[3]d %[4]s;", l.prefix, id, slots, how)
}

func (l language) ShareSession(id string) string { return l.sessionLock(id, "LOCK IN SHARE MODE") }
func (l language) OwnSession(id string) string   { return l.sessionLock(id, "FOR UPDATE") }

// Mint needs no second look at the slot: the manuals of LAST_INSERT_ID(expr) recommend it for sequences.
func (l language) Mint(into, slot, now string) string {
	return fmt.Sprintf("UPDATE %sslots SET last = LAST_INSERT_ID(GREATEST(last + 1, %s)) WHERE id = %s; SET %s := LAST_INSERT_ID();", l.prefix, now, slot, into)
}

func (l language) Tell(string, string, string, string) string { return "DO 0;" } // waiters ask
func (l language) Arg(int) string                             { return "?" }

func (l language) Call(name string, params int) string {
	return "CALL " + l.prefix + "call_" + name + "(" + strings.Repeat("?, ", params-1) + "?)"
}

func (l language) CallRows(name string) string { return "CALL " + l.prefix + name + "(?)" }
