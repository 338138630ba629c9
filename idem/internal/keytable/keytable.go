// Package keytable has the table of keys of package idem, and its SQL, once for every client of
// the databases.
package keytable

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem"
)

// Table is a table of keys in a database. A Table is safe for concurrent use.
type Table struct {
	Dialect dialect.Dialect
	table   dialect.Table
}

// New returns the table of this name, or of the default name.
func New(d dialect.Dialect, name string) (Table, error) {
	if name == "" {
		name = "pawl_idem"
	}
	t := Table{d, dialect.Table{Name: name, Columns: []dialect.Column{
		{Name: "name", Type: dialect.Text, Key: true},
		{Name: "fingerprint", Type: dialect.Bytes},
		{Name: "owner", Type: dialect.Integer},
		{Name: "state", Type: dialect.Integer},
		{Name: "expires", Type: dialect.Integer, Index: true}, // in seconds since 1970
		{Name: "result", Type: dialect.Bytes, Null: true},
	}}}
	if _, err := t.table.Schema(d); err != nil {
		return Table{}, fmt.Errorf("%w: Options.Table or dialect: %w", pawl.ErrInvalid, err)
	}
	return t, nil
}

func (t Table) now() string { return dialect.Seconds(t.Dialect) }

func (t Table) new() *dialect.Statement { return dialect.New(t.Dialect) }

// state is the state of a fresh claim.
func state(c idem.TxClaim) idem.TxState {
	if c.Result {
		return idem.TxUnfinished
	}
	return idem.TxDone
}

// seconds is the time after which a claim expires, rounded up.
func seconds(c idem.TxClaim) int64 {
	whole := c.Expiry.Truncate(time.Second)
	if whole < c.Expiry {
		return int64(whole/time.Second) + 1
	}
	return int64(whole / time.Second)
}

// Keep returns the statement that keeps a result: a compare-and-set on owner and state.
func (t Table) Keep(c idem.TxClaim, result []byte) *dialect.Statement {
	s := t.new().Add("UPDATE ").Table(t.table.Name).Add(" SET result = ").Value(result).Add(", state = ").Value(int64(idem.TxKept))
	return s.Add(" WHERE name = ").Value(c.Name).Add(" AND owner = ").Value(c.Owner).Add(" AND state = ").Value(int64(idem.TxUnfinished))
}

// Remove returns the statement that deletes a claim: a compare-and-set on owner and state.
func (t Table) Remove(c idem.TxClaim) *dialect.Statement {
	return t.new().Add("DELETE FROM ").Table(t.table.Name).Add(" WHERE name = ").Value(c.Name).
		Add(" AND owner = ").Value(c.Owner).Add(" AND state = ").Value(int64(state(c)))
}

// One returns an error unless a compare-and-set has changed its row.
func One(rows int64, err error) error {
	if err == nil && rows != 1 {
		err = fmt.Errorf("%w: its row has another owner or state, or is gone (%d rows)", idem.ErrTakenOver, rows)
	}
	return err
}

// Failed gives an error of a claim its class.
func Failed(err error) error {
	if dialect.LockTimeout(err) {
		return fmt.Errorf("%w: %w", idem.ErrInFlight, err)
	}
	return err
}

// Aborted reports whether the error says that the transaction of PostgreSQL has failed before: its
// commit is a rollback, so there is nothing to remove.
func Aborted(err error) bool {
	var failed interface{ SQLState() string }
	return errors.As(err, &failed) && failed.SQLState() == "25P02"
}

// turn is the number of the advisory lock of a key on PostgreSQL.
func (t Table) turn(c idem.TxClaim) int64 {
	sum := sha256.Sum256([]byte(t.table.Name + "\x00" + c.Name))
	return int64(binary.BigEndian.Uint64(sum[:]))
}

// TxRow makes a row of its columns as they were read.
func row(state int64, fingerprint, result []byte) idem.TxRow {
	r := idem.TxRow{State: idem.TxState(state), Result: result}
	copy(r.Fingerprint[:], fingerprint)
	return r
}
