package keytable

import (
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem"
)

// MySQL and SQLite claim a key in steps. An insert decides. A locking read then gets the row that was
// there. A takeover follows if that row has expired.

// Insert returns the statement that claims a key that has no row. An affected row is a claim.
//
// MySQL waits for the transaction that has inserted the row. Then it locks the row as a
// reader does, so repeats do not wait for each other. ON DUPLICATE KEY UPDATE would lock the row
// as a writer does. IGNORE hides no mistake, because the next step then finds no row.
func (t Table) Insert(c idem.TxClaim) *dialect.Statement {
	s := t.new()
	if t.Dialect == dialect.MySQL {
		s.Add(noWait(c), "INSERT IGNORE INTO ")
	} else {
		s.Add("INSERT INTO ")
	}
	s.Table(t.table.Name).Add(" (name, fingerprint, owner, state, expires) VALUES (").Value(c.Name).Add(", ").Value(c.Fingerprint[:]).
		Add(", ").Value(c.Owner).Add(", ").Value(int64(state(c))).Add(", ", t.now(), " + ").Value(seconds(c)).Add(")")
	if t.Dialect != dialect.MySQL {
		s.Add(" ON CONFLICT DO NOTHING")
	}
	return s
}

// noWait makes a statement of MariaDB give up at once. The clause is a comment for MySQL, which has no such thing:
// there innodb_lock_wait_timeout of the session ends the wait.
func noWait(c idem.TxClaim) string {
	if c.NoWait {
		return "/*M! SET STATEMENT innodb_lock_wait_timeout = 0 FOR */ "
	}
	return ""
}

// Read returns the statement that reads the row that was there, as it is now and not as the
// transaction's snapshot has it. The answer is for [Found].
func (t Table) Read(c idem.TxClaim) *dialect.Statement {
	s := t.new().Add("SELECT state, fingerprint, result, expires <= ", t.now(), " FROM ").Table(t.table.Name).Add(" WHERE name = ").Value(c.Name)
	if t.Dialect == dialect.MySQL {
		s.Add(" LOCK IN SHARE MODE")
	}
	return s
}

// Done returns the statement that counts the operations of a name that are done and committed. Done waits for no transaction.
func (t Table) Done(name string) *dialect.Statement {
	return t.new().Add("SELECT COUNT(*) FROM ").Table(t.table.Name).Add(" WHERE name = ").Value(name).
		Add(" AND expires > ", t.now(), " AND state <> ").Value(int64(idem.TxUnfinished))
}

// Found is the row that was there.
type Found struct {
	state               int64
	fingerprint, result []byte
	Expired             bool
}

// Columns returns the targets of the columns of Read.
func (f *Found) Columns() []any { return []any{&f.state, &f.fingerprint, &f.result, &f.Expired} }

// Row returns the row.
func (f *Found) Row() idem.TxRow { return row(f.state, f.fingerprint, f.result) }

// TakeOver returns the statement that claims a key that has expired. An affected row is a claim.
func (t Table) TakeOver(c idem.TxClaim) *dialect.Statement {
	s := t.new()
	if t.Dialect == dialect.MySQL {
		s.Add(noWait(c))
	}
	return s.Add("UPDATE ").Table(t.table.Name).Add(" SET fingerprint = ").Value(c.Fingerprint[:]).Add(", owner = ").Value(c.Owner).
		Add(", state = ").Value(int64(state(c))).Add(", result = NULL, expires = ", t.now(), " + ").Value(seconds(c)).
		Add(" WHERE name = ").Value(c.Name).Add(" AND expires <= ", t.now())
}
