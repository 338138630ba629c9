package seamtest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/internal/sqltest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// each runs a test on every database and with every client.
func each(t *testing.T, test func(s *shop)) {
	t.Helper()
	for _, d := range sqltest.All(t) {
		levels := []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelSerializable}
		if d.Dialect == dialect.SQLite {
			levels = []sql.IsolationLevel{sql.LevelDefault}
		}
		for _, level := range levels {
			d := d.At(level)
			t.Run(d.Name, func(t *testing.T) { test(newShop(t, d)) })
		}
	}
}

// The writes of all services in a transaction of the caller are committed together, or not at all.
func TestCommitAndRollback(t *testing.T) {
	each(t, func(s *shop) {
		tx := s.begin()
		if replayed, err := s.pay(s.Context(), tx, "a", idem.TxOptions{}, nil); replayed || err != nil {
			s.Fatal(replayed, err)
		}
		if replayed, err := s.pay(s.Context(), tx, "a", idem.TxOptions{}, nil); !replayed || err != nil {
			s.Error("in the same transaction:", replayed, err)
		}
		if err := tx.Rollback(); err != nil {
			s.Error(err)
		}
		s.see(unpaid, "rolled back")
		s.transact(func(tx dialect.DB) error { _, err := s.pay(s.Context(), tx, "a", idem.TxOptions{}, nil); return err })
		s.see(onePay, "committed")
		s.replays("a")
		s.see(onePay, "replayed")
	})
}

// A failed function undoes what all services wrote in it, and the rest of the transaction is committed.
func TestAFailedFunctionUndoesAll(t *testing.T) {
	each(t, func(s *shop) {
		no := errors.New("no")
		s.transact(func(tx dialect.DB) error {
			s.on.Run(s, tx, "INSERT INTO "+s.names.orders+" VALUES ('c', 'paid')")
			if _, err := s.pay(s.Context(), tx, "a", idem.TxOptions{}, no); err != no {
				s.Error(err)
			}
			return nil
		})
		s.see(books{keys: 0, paid: 1, left: 20}, "failed")
		s.transact(func(tx dialect.DB) error { _, err := s.pay(s.Context(), tx, "a", idem.TxOptions{}, nil); return err })
		s.see(books{keys: 2, paid: 2, left: 13, messages: 1, done: 1, passed: 1}, "paid")
	})
}

// branch is a part of a distributed transaction.
type branch struct {
	dialect.DB
	prepare func() error // and the transaction belongs to no client any more
}

// way is a way to a branch in a database, and to its end by anybody.
type way struct {
	on     sqltest.Database
	begin  func(s *shop, xid string) branch
	commit func(s *shop, xid string) error
	undo   func(s *shop, xid string) error
}

func by(query string) func(*shop, string) error {
	return func(s *shop, xid string) (err error) {
		// MariaDB refuses the end of a branch until the server has noticed that the connection of the branch is gone.
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			if err = s.on.Exec(s.Context(), s.db, query+" '"+xid+"'"); err == nil {
				return nil
			}
		}
		return err
	}
}

// ways are the database/sql and the pgx transaction and the bare connection of PostgreSQL, and the connection of MariaDB.
func ways(t *testing.T) map[string]way {
	postgres := sqltest.Postgres(t, "")
	// As shipped PostgreSQL prepares no transaction.
	postgres.Source = testservers.PostgresURL(testservers.Postgres(t, "-c", "max_prepared_transactions=8").Addr)
	begin := func(s *shop, xid string) branch {
		tx := s.begin()
		return branch{tx, func() error {
			err := s.on.Exec(s.Context(), tx, "PREPARE TRANSACTION '"+xid+"'")
			return errors.Join(err, tx.Commit()) // of nothing
		}}
	}
	onConn := func(start string, ends ...string) func(s *shop, xid string) branch {
		return func(s *shop, xid string) branch {
			conn, err := s.db.Conn(s.Context())
			if err != nil {
				s.Fatal(err)
			}
			do := func(query string) error {
				return s.on.Exec(context.WithoutCancel(s.Context()), conn, strings.ReplaceAll(query, "XID", "'"+xid+"'"))
			}
			if err := do(start); err != nil {
				s.Fatal(err)
			}
			return branch{conn, func() (err error) {
				for _, query := range ends {
					err = errors.Join(err, do(query))
				}
				// MariaDB gives a prepared transaction to others when its connection ends.
				conn.Raw(func(any) error { return driver.ErrBadConn }) //nolint:errcheck // as above
				return err
			}}
		}
	}
	commit, undo := by("COMMIT PREPARED"), by("ROLLBACK PREPARED")
	return map[string]way{
		"*sql.Tx":             {postgres, begin, commit, undo},
		"pgx.Tx":              {postgres.WithPgx(), begin, commit, undo},
		"*sql.Conn":           {postgres, onConn("BEGIN", "PREPARE TRANSACTION XID"), commit, undo},
		"*sql.Conn, XA START": {sqltest.MariaDB(t, sqltest.Interpolated), onConn("XA START XID", "XA END XID", "XA PREPARE XID"), by("XA COMMIT"), by("XA ROLLBACK")},
	}
}

// A branch in which all services wrote can be prepared. Nobody sees those writes before the branch is committed, and
// its key is in flight while the branch is in doubt. The end of the branch decides about all of the writes.
func TestABranchIsPrepared(t *testing.T) {
	for name, w := range ways(t) {
		t.Run(name, func(t *testing.T) {
			s := newShop(t, w.on)
			for _, end := range []string{"undo", "commit"} {
				xid := sqltest.NewName("xid")
				b := w.begin(s, xid)
				if replayed, err := s.pay(s.Context(), b, "a", idem.TxOptions{}, nil); replayed || err != nil {
					t.Fatal(replayed, err)
				}
				if err := b.prepare(); err != nil {
					t.Fatal(err)
				}
				s.see(unpaid, "prepared")
				other := s.begin()
				if _, err := s.pay(t.Context(), other, "a", idem.TxOptions{NoWait: true}, nil); !errors.Is(err, idem.ErrInFlight) {
					t.Error(err)
				}
				if err := other.Rollback(); err != nil {
					t.Error(err)
				}
				ended, want := w.commit, onePay
				if end == "undo" {
					ended, want = w.undo, unpaid
				}
				if err := ended(s, xid); err != nil {
					t.Fatal(err)
				}
				s.see(want, end)
			}
			s.replays("a")
			s.see(onePay, "replayed")
			s.transact(func(tx dialect.DB) error { _, err := s.pay(t.Context(), tx, "b", idem.TxOptions{}, nil); return err })
			s.see(books{keys: 4, paid: 2, left: 6, messages: 2, done: 2, passed: 2}, "both paid")
		})
	}
}

// A failed function is undone in a branch too, which is then prepared with the rest.
func TestAFailedFunctionInABranch(t *testing.T) {
	for name, w := range ways(t) {
		t.Run(name, func(t *testing.T) {
			s, no, xid := newShop(t, w.on), errors.New("no"), sqltest.NewName("xid")
			b := w.begin(s, xid)
			if _, err := s.pay(t.Context(), b, "a", idem.TxOptions{}, no); !errors.Is(err, no) || err != no {
				t.Error(err)
			}
			if _, err := s.pay(t.Context(), b, "b", idem.TxOptions{}, nil); err != nil {
				t.Error(err)
			}
			if err := b.prepare(); err != nil {
				t.Fatal(err)
			}
			if err := w.commit(s, xid); err != nil {
				t.Fatal(err)
			}
			s.see(onePay, "committed")
			s.replays("b")
		})
	}
}

// The check finds what a branch must not have: a transaction that notifies is not prepared.
func TestANaiveBranchIsFoundOut(t *testing.T) {
	for name, w := range ways(t) {
		if w.on.Dialect != dialect.PostgreSQL {
			continue
		}
		t.Run(name, func(t *testing.T) {
			s := newShop(t, w.on)
			b := w.begin(s, sqltest.NewName("xid"))
			if _, err := s.pay(t.Context(), b, "a", idem.TxOptions{}, nil); err != nil {
				t.Error(err)
			}
			s.on.Run(t, b, "NOTIFY pawl")
			if err := b.prepare(); err == nil || !strings.Contains(err.Error(), "NOTIFY") {
				t.Error(err)
			}
			s.see(unpaid, "refused")
		})
	}
}
