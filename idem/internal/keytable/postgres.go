package keytable

import (
	"fmt"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem"
)

// ClaimOrRead returns the statement of PostgreSQL that claims a key or, if it is kept, reads it. The
// answer is one row for [Answer].
//
// A kept row never changes before it expires, so the statement reads the row without a lock and writes
// nothing. Else the insert decides. The insert follows a lock of the key, which ends with the transaction,
// because an INSERT has no NOWAIT.
func (t Table) ClaimOrRead(c idem.TxClaim) *dialect.Statement {
	s, now := t.new(), t.now()
	s.Add("WITH kept AS (SELECT fingerprint, state, result FROM ").Table(t.table.Name).
		Add(" WHERE name = ").Value(c.Name).Add(" AND expires > ", now, "), turn AS (SELECT CASE WHEN EXISTS (SELECT 1 FROM kept) THEN false ELSE ")
	if c.NoWait {
		s.Add("pg_try_advisory_xact_lock(").Value(t.turn(c)).Add("::bigint)")
	} else {
		s.Add("(SELECT true FROM (SELECT pg_advisory_xact_lock(").Value(t.turn(c)).Add("::bigint)) AS waited)")
	}
	s.Add(" END AS mine), claim AS (INSERT INTO ").Table(t.table.Name).Add(" AS k (name, fingerprint, owner, state, expires) SELECT ").
		Value(c.Name).Add("::text, ").Value(c.Fingerprint[:]).Add("::bytea, ").Value(c.Owner).Add("::bigint, ").
		Value(int64(state(c))).Add("::bigint, ", now, " + ").Value(seconds(c)).Add("::bigint FROM turn WHERE mine").
		Add(" ON CONFLICT (name) DO UPDATE SET fingerprint = excluded.fingerprint, owner = excluded.owner, state = excluded.state, expires = excluded.expires, result = NULL").
		Add(" WHERE k.expires <= ", now, " RETURNING 1)")
	return s.Add(" SELECT (SELECT count(*) FROM claim), (SELECT mine FROM turn), kept.state, kept.fingerprint, kept.result FROM (SELECT 1) AS one LEFT JOIN kept ON true")
}

// Answer is the answer to ClaimOrRead.
type Answer struct {
	claims              int64
	turn                bool
	state               *int64
	fingerprint, result []byte
}

// Columns returns the targets of the columns of the answer.
func (a *Answer) Columns() []any {
	return []any{&a.claims, &a.turn, &a.state, &a.fingerprint, &a.result}
}

// Row returns the row of the answer. Row returns again if another transaction was committed while the
// statement waited. The statement does not see the row of that transaction, and the next statement does.
func (a *Answer) Row() (r idem.TxRow, again bool, err error) {
	switch {
	case a.claims == 1:
		return idem.TxRow{State: idem.TxClaimed}, false, nil
	case a.state != nil:
		return row(*a.state, a.fingerprint, a.result), false, nil
	case !a.turn:
		return idem.TxRow{}, false, idem.ErrInFlight
	}
	return idem.TxRow{}, true, nil
}

// ErrRestless says that a key was never at rest while a claim looked at it.
var ErrRestless = fmt.Errorf("%w: the key changed again and again", idem.ErrInFlight)

// Looks is how often a claim looks at a key that others change.
const Looks = 10
