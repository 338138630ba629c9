package seamtest

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/idem/sqlidem"
	"github.com/pawl-go/pawl/idem/state"
	"github.com/pawl-go/pawl/idem/stock"
	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/internal/sqltest"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
	"github.com/pawl-go/pawl/outbox/halfmsg"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

// shop is a database with the tables of all services.
type shop struct {
	*testing.T
	on       sqltest.Database
	db       *sql.DB
	keys     *sqlidem.Store
	orders   state.Table[string]
	stock    *stock.Table
	messages *outbox.Table
	inbox    *inbox.Inbox // in the table of keys
	barrier  *halfmsg.Barrier
	names    struct{ keys, orders, stock, messages, barrier string }
}

var machine = state.Must(state.New([]string{"created", "paid"}, state.Transition[string]{From: "created", To: "paid"}))

// newShop has 2 created orders, and 10 units and a message that is not done for each of them.
func newShop(t *testing.T, d sqltest.Database) *shop {
	t.Helper()
	s := &shop{T: t, on: d, db: d.Opened(t)}
	s.names.keys, s.names.orders, s.names.stock, s.names.messages = sqltest.NewName("keys"), sqltest.NewName("orders"), sqltest.NewName("stock"), sqltest.NewName("box")
	s.names.barrier = sqltest.NewName("barrier")
	s.orders = state.Table[string]{Dialect: d.Dialect, Name: s.names.orders, Machine: machine}
	var errs [5]error
	s.keys, errs[0] = sqlidem.New(d.Dialect, &sqlidem.Options{Table: s.names.keys})
	s.stock, errs[1] = stock.New(d.Dialect, &stock.Options{Table: s.names.stock, Parts: 4})
	s.messages, errs[2] = outbox.New(d.Dialect, &outbox.Options{Table: s.names.messages})
	s.inbox, errs[3] = inbox.New("shop", nil)
	s.barrier, errs[4] = halfmsg.NewBarrier(d.Dialect, &halfmsg.BarrierOptions{Table: s.names.barrier})
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.keys.Migrate(t.Context(), s.db), s.stock.Create(t.Context(), s.db), s.messages.Migrate(t.Context(), s.db), s.barrier.Migrate(t.Context(), s.db)); err != nil {
		t.Fatal(err)
	}
	d.Run(t, s.db, "CREATE TABLE "+s.names.orders+" (id varchar(20) PRIMARY KEY, state varchar(20) NOT NULL)")
	for _, id := range []string{"a", "b"} {
		d.Run(t, s.db, "INSERT INTO "+s.names.orders+" VALUES (?, 'created')", id)
		s.transact(func(tx dialect.DB) error {
			_, err := s.messages.Enqueue(t.Context(), tx, outbox.Message{ID: "created " + id, Topic: "orders", Key: id})
			return errors.Join(err, s.stock.Put(t.Context(), tx, id, 10))
		})
	}
	t.Cleanup(func() {
		for _, name := range []string{s.names.keys, s.names.orders, s.names.stock, s.names.messages, s.names.messages + "_parts", s.names.barrier} {
			d.Run(t, s.db, "DROP TABLE "+name)
		}
	})
	return s
}

// transact commits what f does.
func (s *shop) transact(f func(tx dialect.DB) error) {
	s.Helper()
	tx := s.begin()
	err := f(tx)
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		s.Fatal(err)
	}
}

func (s *shop) begin() sqltest.Tx {
	s.Helper()
	tx, err := s.on.Begin(s.Context(), s.db)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { tx.Rollback() }) //nolint:errcheck // it may have ended
	return tx
}

// pay uses every service in one transaction, and fails at the end if fails is not nil.
func (s *shop) pay(ctx context.Context, tx dialect.DB, id string, opts idem.TxOptions, fails error) (replayed bool, err error) {
	key := idem.Key{Scope: "pay", ID: id}
	order := inbox.Message{ID: "order " + id, Key: id, Time: time.Now()}
	message, replayed, err := idem.Do(ctx, s.keys.In(tx).With(opts), key, idem.FingerprintOf([]byte(id)), func(ctx context.Context) (string, error) {
		if err := s.barrier.Pass(ctx, tx, id); err != nil {
			return "", err
		}
		repeat, err := s.inbox.Do(ctx, s.keys.In(tx).With(opts), order, func(ctx context.Context) error {
			return s.messages.Complete(ctx, tx, "created "+id)
		})
		if err != nil || repeat {
			return "", errors.Join(err, errors.New("the inbox knows the message"))
		}
		if moved, err := s.orders.Apply(ctx, tx, state.Columns{"id": id}, "paid", nil); err != nil || moved.Outcome != state.Moved {
			return "", errors.Join(err, errors.New("the order was "+moved.State))
		}
		for _, n := range []int64{1, 6} { // of one part, and of all
			if err := s.stock.Take(ctx, tx, id, n); err != nil {
				return "", err
			}
		}
		ids, err := s.messages.Enqueue(ctx, tx, outbox.Message{ID: "paid " + id, Topic: "orders", Key: id, Payload: []byte{0, 255}})
		if err != nil {
			return "", err
		}
		return ids[0], fails
	})
	if err == nil && message != "paid "+id {
		err = errors.New("the result is " + message)
	}
	return replayed, err
}

// books count committed rows and units. A pay has two keys: one of its own, and one of the inbox.
type books struct{ keys, paid, left, messages, done, passed int64 }

var (
	unpaid = books{keys: 0, paid: 0, left: 20, messages: 0}
	onePay = books{keys: 2, paid: 1, left: 13, messages: 1, done: 1, passed: 1}
)

// see compares the books.
func (s *shop) see(want books, when string) {
	s.Helper()
	number := func(query string) int64 { s.Helper(); return s.on.Number(s, s.db, query) }
	is := books{
		keys: number("SELECT count(*) FROM " + s.names.keys + " WHERE name <> 'format'"),
		paid: number("SELECT count(*) FROM " + s.names.orders + " WHERE state = 'paid'"),
		left: number("SELECT sum(n) FROM " + s.names.stock), messages: number("SELECT count(*) FROM " + s.names.messages + " WHERE id LIKE 'paid %'"),
		done: number("SELECT count(*) FROM " + s.names.messages + " WHERE state = 3"), passed: number("SELECT count(*) FROM " + s.names.barrier),
	}
	if is != want {
		s.Errorf("%s: %+v, want %+v", when, is, want)
	}
}

// replays pays again, which changes nothing.
func (s *shop) replays(id string) {
	s.Helper()
	s.transact(func(tx dialect.DB) error {
		replayed, err := s.pay(s.Context(), tx, id, idem.TxOptions{}, nil)
		if !replayed {
			s.Error("a repeat runs")
		}
		return err
	})
}
