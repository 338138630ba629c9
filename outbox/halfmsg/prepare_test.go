package halfmsg_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
	"github.com/pawl-go/pawl/outbox/halfmsg"
)

// A half message that could never be submitted is refused before the transaction of its producer.
func TestPrepareRefusesAnIDThatIsTaken(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		if err := d.coordinator.Submit(t.Context(), d.prepare(t, "sent")); err != nil {
			t.Fatal(err)
		}
		for name, messages := range map[string][]outbox.Message{
			"twice in one call":    {{ID: "a", Topic: "t"}, {ID: "b", Topic: "t"}, {ID: "a", Topic: "t"}},
			"in the outbox before": {{ID: "c", Topic: "t"}, {Topic: "t"}, {ID: "sent", Topic: "t"}},
		} {
			if id, err := d.coordinator.Prepare(t.Context(), "shop", messages...); !errors.Is(err, pawl.ErrInvalid) || id != "" {
				t.Errorf("%s: %q, %v", name, id, err)
			}
		}
		id, err := d.coordinator.Prepare(t.Context(), "shop", outbox.Message{ID: "a", Topic: "t"}, outbox.Message{ID: "A", Topic: "t"}, outbox.Message{Topic: "t"}, outbox.Message{Topic: "t"})
		if err == nil {
			err = d.coordinator.Submit(t.Context(), id)
		}
		if err != nil {
			t.Error(err)
		}
	})
}

// TestALockedHalfMessage: a transaction that has the rows of many half messages keeps no producer from being asked about others.
func TestALockedHalfMessage(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		if d.dialect == dialect.SQLite {
			return // whose lock is that of the file
		}
		var locked string
		for i := range 20 {
			locked = d.prepare(t, fmt.Sprint("locked-", i))
		}
		var others []string // more than are asked about at once
		for i := range 9 {
			others = append(others, d.prepare(t, fmt.Sprint("other-", i)))
		}
		tx, err := d.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted}) // where MariaDB locks no other rows
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback() //nolint:errcheck // nothing to undo
		if _, err := tx.ExecContext(t.Context(), "UPDATE "+d.name+" SET asks = asks WHERE id NOT IN ('"+strings.Join(others, "', '")+"')"); err != nil {
			t.Fatal(err)
		}
		d.run(t, func(context.Context, string, string, time.Duration) (halfmsg.Outcome, error) {
			<-time.After(700 * time.Millisecond) // the producer is slow: meanwhile there are further rounds
			return halfmsg.RolledBack, nil
		})
		for _, other := range others {
			until(t, "the other half message is decided", func() bool { return d.status(t, other).State == halfmsg.Aborted })
		}
		if is := d.status(t, locked).State; is != halfmsg.Prepared {
			t.Error(is)
		}
	})
}

// bounded returns the same tables, on a database that ends each statement after 300 ms.
func (d *database) bounded(t *testing.T) *database {
	t.Helper()
	b := &database{dialect: d.dialect, name: d.name, source: d.source + map[dialect.Dialect]string{dialect.PostgreSQL: "&statement_timeout=300", dialect.MySQL: "&max_statement_time=0.3"}[d.dialect]}
	if err := b.open(nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.db.Close() }) //nolint:errcheck // nothing is lost
	return b
}

// The server ends a statement before the statement has waited for a lock for as long as it may. That is a lock all the same: the answer of the
// barrier is "open", and a producer is asked about other half messages.
func TestALockBehindAStatementTimeout(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		if d.dialect == dialect.SQLite {
			return // which has no such time
		}
		b := d.bounded(t)
		barrier, err := halfmsg.NewBarrier(d.dialect, &halfmsg.BarrierOptions{Table: d.name + "_barrier", Wait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		locked := d.prepare(t, "locked")
		tx, err := d.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback() //nolint:errcheck // nothing to undo
		if err := d.barrier.Pass(t.Context(), tx, locked); err != nil {
			t.Fatal(err)
		}
		if is, err := barrier.Answer(t.Context(), b.db, locked, 0); is != halfmsg.Open || err != nil {
			t.Error(is, err)
		}
		if _, err := tx.ExecContext(t.Context(), "UPDATE "+d.name+" SET asks = asks WHERE id = '"+locked+"'"); err != nil {
			t.Fatal(err)
		}
		other := d.prepare(t, "other")
		b.run(t, func(context.Context, string, string, time.Duration) (halfmsg.Outcome, error) {
			return halfmsg.RolledBack, nil
		})
		until(t, "the other half message is decided", func() bool { return d.status(t, other).State == halfmsg.Aborted })
		if is := d.status(t, locked).State; is != halfmsg.Prepared {
			t.Error(is)
		}
	})
}

// A database that does not answer is given up after Options.Timeout, and asked again.
func TestADatabaseThatDoesNotAnswer(t *testing.T) {
	d := newDatabase(t, dialect.PostgreSQL, testservers.PostgresURL(testservers.SharedPostgres(t).Addr)) // where a lock holds up reads, too
	d.db.Close()                                                                                         //nolint:errcheck // open makes another
	late := make(chan string, 1000)
	if err := d.open(func(err error) {
		if errors.Is(err, context.DeadlineExceeded) {
			late <- err.Error()
		}
	}); err != nil {
		t.Fatal(err)
	}
	lock := func(mode string) (end func() error) {
		tx, err := d.db.BeginTx(t.Context(), nil)
		if err == nil {
			_, err = tx.ExecContext(t.Context(), "LOCK TABLE "+d.name+" IN "+mode+" MODE")
		}
		if err != nil {
			t.Error(err)
		}
		return tx.Rollback
	}
	givenUp := func(what string) {
		t.Helper()
		for patience := time.After(time.Minute); ; {
			select {
			case is := <-late:
				if strings.Contains(is, what) {
					return
				}
			case <-patience:
				t.Fatal("never given up: ", what)
			}
		}
	}
	id := d.prepare(t, "one")
	end := lock("ACCESS EXCLUSIVE")
	ends := make(chan func() error, 1)
	once := sync.OnceFunc(func() { ends <- lock("SHARE") }) // which holds up writes
	d.run(t, func(context.Context, string, string, time.Duration) (halfmsg.Outcome, error) {
		once()
		return halfmsg.RolledBack, nil
	})
	givenUp("read half messages")
	end() //nolint:errcheck // nothing to undo
	end = <-ends
	givenUp("and so to be aborted")
	end() //nolint:errcheck // nothing to undo
	until(t, "decided", func() bool { return d.status(t, id).State == halfmsg.Aborted })
}

// The database cannot keep the reason why a producer does not answer, because the encoding lacks a character. Operators read the reason all the same.
func TestAReasonThatTheDatabaseCannotKeep(t *testing.T) {
	for encoding, url := range testservers.PostgresEncodedURLs(t) {
		t.Run(encoding, func(t *testing.T) {
			d := newDatabase(t, dialect.PostgreSQL, url)
			id := d.prepare(t, "order")
			d.run(t, func(context.Context, string, string, time.Duration) (halfmsg.Outcome, error) {
				return halfmsg.Open, errors.New("5 €")
			})
			until(t, "the reason is there", func() bool { return d.status(t, id).Reason == `5 \u20ac` })
		})
	}
}
