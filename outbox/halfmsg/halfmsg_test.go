package halfmsg_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
	"github.com/pawl-go/pawl/outbox/halfmsg"
)

// A question about an open transaction decides nothing. The next one decides as the transaction has ended.
func TestAskedWhileTheTransactionIsOpen(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		for order, commits := range map[string]bool{"kept": true, "gone": false} {
			id := d.prepare(t, order)
			tx := d.begin(t)
			if err := errors.Join(d.barrier.Pass(t.Context(), tx, id), d.insertOrder(t.Context(), tx, order)); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if is, err := d.barrier.Answer(t.Context(), d.db, id, 0); is != halfmsg.Open || err != nil {
					t.Error(is, err)
				}
			}
			end := map[bool]func() error{true: tx.Commit, false: tx.Rollback}[commits]
			if err := end(); err != nil {
				t.Fatal(err)
			}
		}
		d.run(t, d.ask)
		until(t, "decided", func() bool { return d.decided(t) })
		if orders, missing, extra := d.check(t); orders != 1 || missing+extra > 0 {
			t.Errorf("%d orders, %d without a message, %d messages without an order", orders, missing, extra)
		}
	})
}

// A question about a transaction that is prepared and in doubt decides nothing, also when no connection has the transaction any more.
func TestAskedWhileTheTransactionIsInDoubt(t *testing.T) {
	for _, c := range []struct {
		kind                  dialect.Dialect
		source                string
		begin, prepare        []string
		commits, rolls        string
		endsWithItsConnection bool
	}{
		{dialect.PostgreSQL, testservers.PostgresURL(testservers.Postgres(t, "-c", "max_prepared_transactions=4").Addr),
			[]string{"BEGIN"}, []string{"PREPARE TRANSACTION 'half'"}, "COMMIT PREPARED 'half'", "ROLLBACK PREPARED 'half'", false},
		{dialect.MySQL, mariadb(testservers.SharedMariaDB(t)),
			[]string{"XA START 'half'"}, []string{"XA END 'half'", "XA PREPARE 'half'"}, "XA COMMIT 'half'", "XA ROLLBACK 'half'", true},
	} {
		d := newDatabase(t, c.kind, c.source)
		for order, end := range map[string]string{"kept": c.commits, "gone": c.rolls} {
			id := d.prepare(t, order)
			conn, err := d.db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			run := func(db dialect.DB, statements ...string) {
				t.Helper()
				for _, s := range statements {
					if _, err := db.ExecContext(t.Context(), s); err != nil {
						t.Fatal(err)
					}
				}
			}
			run(conn, c.begin...)
			if err := errors.Join(d.barrier.Pass(t.Context(), conn, id), d.insertOrder(t.Context(), conn, order)); err != nil {
				t.Fatal(err)
			}
			run(conn, c.prepare...)
			if !c.endsWithItsConnection {
				conn.Close() //nolint:errcheck // the transaction stays
			}
			if is, err := d.barrier.Answer(t.Context(), d.db, id, 0); is != halfmsg.Open || err != nil {
				t.Error(is, err)
			}
			if c.endsWithItsConnection {
				run(conn, end)
				conn.Close() //nolint:errcheck // nothing is lost
			} else {
				run(d.db, end)
			}
		}
		d.run(t, d.ask)
		until(t, "decided", func() bool { return d.decided(t) })
		if orders, missing, extra := d.check(t); orders != 1 || missing+extra > 0 {
			t.Errorf("%d orders, %d without a message, %d messages without an order", orders, missing, extra)
		}
	}
}

// A question that comes before the transaction aborts it for good. The same holds for a transaction whose snapshot is older.
func TestAskedBeforeTheTransactionHasBegun(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		id := d.prepare(t, "late")
		var old *sql.Tx
		if d.dialect != dialect.SQLite { // whose file has one writer
			old = d.begin(t)
			if _, err := old.Exec(map[dialect.Dialect]string{dialect.PostgreSQL: "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", dialect.MySQL: "DO 0"}[d.dialect]); err != nil {
				t.Fatal(err)
			}
			var n int
			if err := old.QueryRow("SELECT COUNT(*) FROM " + d.name + "_barrier").Scan(&n); err != nil {
				t.Fatal(err)
			}
		}
		stop := d.run(t, d.ask)
		until(t, "decided", func() bool { return d.decided(t) })
		stop()
		if e := d.status(t, id); e.State != halfmsg.Aborted || e.Asks != 1 || e.Producer != "shop" {
			t.Errorf("%+v", e)
		}
		if old != nil {
			if err := d.barrier.Pass(t.Context(), old, id); !errors.Is(err, halfmsg.ErrAborted) && !dialect.Again(err) {
				t.Error("with an old snapshot: ", err)
			}
			if err := old.Rollback(); err != nil {
				t.Fatal(err)
			}
		}
		tx := d.begin(t)
		if err := d.barrier.Pass(t.Context(), tx, id); !errors.Is(err, halfmsg.ErrAborted) {
			t.Error(err)
		}
		tx.Rollback() //nolint:errcheck // nothing to undo
		if err := d.coordinator.Submit(t.Context(), id); !errors.Is(err, halfmsg.ErrAborted) {
			t.Error(err)
		}
	})
}

// Repeats, unknown IDs, and IDs that were decided otherwise.
func TestDecisionsAreForGood(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		ctx := t.Context()
		sent, aborted := d.prepare(t, "sent"), d.prepare(t, "aborted")
		for range 2 {
			if err := errors.Join(d.coordinator.Submit(ctx, sent), d.coordinator.Abort(ctx, aborted)); err != nil {
				t.Error(err)
			}
		}
		for _, c := range []struct{ is, want error }{{d.coordinator.Abort(ctx, sent), halfmsg.ErrSubmitted}, {d.coordinator.Submit(ctx, aborted), halfmsg.ErrAborted},
			{d.coordinator.Submit(ctx, "no"), halfmsg.ErrUnknown}, {d.coordinator.Abort(ctx, "no"), halfmsg.ErrUnknown}} {
			if !errors.Is(c.is, c.want) {
				t.Errorf("%v instead of %v", c.is, c.want)
			}
		}
		for range 2 {
			_, err := halfmsg.Send(ctx, repeated{d.coordinator, sent}, "shop", d.barrier, d.db, nil, nil, func(context.Context, *sql.Tx) error { return nil })
			if err != nil && !errors.Is(err, halfmsg.ErrRepeated) {
				t.Error(err)
			}
			sent = d.status(t, sent).ID
		}
		if _, err := d.barrier.Answer(ctx, d.db, sent, 29*24*time.Hour); !errors.Is(err, halfmsg.ErrTooOld) {
			t.Error(err)
		}
		if _, err := dialect.New(d.dialect).Add("UPDATE ", d.name, "_barrier SET created = 0").Exec(ctx, d.db); err != nil {
			t.Fatal(err)
		}
		if n, err := d.barrier.Clean(ctx, d.db); n != 1 || err != nil {
			t.Error(n, err)
		}
	})
}

// TestCleanBesideAnOpenTransaction: old rows of a small barrier go although a transaction has a new row there, and may be in doubt.
func TestCleanBesideAnOpenTransaction(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		if d.dialect == dialect.SQLite {
			return // whose file has one writer
		}
		insert := func(tx dialect.DB, id string, age int) {
			if _, err := dialect.New(d.dialect).Add("INSERT INTO ", d.name, "_barrier (id, outcome, owner, created) VALUES (").Value(id).Add(", 1, 0, ", dialect.Seconds(d.dialect), " - ").
				Value(age).Add(")").Exec(t.Context(), tx); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 1050 { // a DELETE takes 1,000
			insert(d.db, fmt.Sprint("old-", i), 90*86400)
		}
		insert(d.begin(t), "new", 0)
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		if n, err := d.barrier.Clean(ctx, d.db); n != 1050 || err != nil {
			t.Error(n, err)
		}
	})
}

// repeated is a coordinator that prepares one ID always.
type repeated struct {
	*halfmsg.Coordinator
	id string
}

func (r repeated) Prepare(context.Context, string, ...outbox.Message) (string, error) {
	return r.id, nil
}

// A producer that is away delays the answers about its own half messages only, and gets few questions. When the producer
// comes back, all is decided.
func TestAProducerIsAway(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		var away atomic.Bool
		away.Store(true)
		var questions atomic.Int64
		ask := func(ctx context.Context, producer, id string, age time.Duration) (halfmsg.Outcome, error) {
			if producer == "shop" && away.Load() {
				questions.Add(1)
				<-ctx.Done()
				return halfmsg.Open, ctx.Err()
			}
			return d.ask(ctx, producer, id, age)
		}
		var last string
		for i := range 60 {
			last = d.prepare(t, fmt.Sprint("order-", i))
		}
		other, err := d.coordinator.Prepare(t.Context(), "other", outbox.Message{Topic: "t"})
		if err != nil {
			t.Fatal(err)
		}
		d.run(t, ask)
		d.run(t, ask) // a second process
		until(t, "the other producer has answered", func() bool { return d.status(t, other).State == halfmsg.Aborted })
		until(t, "the reason is there", func() bool {
			all, err := d.coordinator.Undecided(t.Context(), 1000)
			return err == nil && len(all) > 0 && strings.Contains(all[len(all)-1].Reason, "deadline exceeded")
		})
		if d.status(t, last).State != halfmsg.Prepared {
			t.Error("decided without an answer")
		}
		away.Store(false)
		until(t, "decided", func() bool { return d.decided(t) })
		t.Log(questions.Load(), "questions without an answer")
	})
}

// failing is a transport that returns an error.
type failing struct{ err error }

func (f failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.err }

// TestNoSecretsInErrors: the reason that a coordinator keeps has no secret of a URL, also where the transport asks another server for a token.
func TestNoSecretsInErrors(t *testing.T) {
	inner := &url.Error{Op: "Post", URL: "https://elsewhere.example/?token=hidden", Err: errors.New("no answer")}
	client := &http.Client{Transport: failing{fmt.Errorf("get a token: %w", inner)}}
	ask := halfmsg.AskHTTP(client, map[string]string{"shop": "https://user:hidden@shop.example/?token=hidden"}, nil)
	if _, err := ask(t.Context(), "shop", "1", time.Second); err == nil || strings.Contains(err.Error(), "hidden") || !strings.Contains(err.Error(), "no answer") {
		t.Error(err)
	}
}

// TestManyProducers: producers are slow, change their minds, and lose their submissions, while two coordinators ask. The naive coordinator
// asks without the insert of the barrier, and is found wrong by the same check.
func TestManyProducers(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		for _, way := range []struct {
			name string
			ask  halfmsg.Asker
		}{{"naive", d.naiveAsk}, {"barrier", d.ask}} {
			for _, table := range []string{"", "_box", "_orders", "_barrier"} {
				if _, err := d.db.Exec("DELETE FROM " + d.name + table); err != nil {
					t.Fatal(err)
				}
			}
			stops := []func(){d.run(t, way.ask), d.run(t, way.ask)}
			var group sync.WaitGroup
			for i := range 8 {
				group.Go(func() {
					for j := range 6 {
						d.slowOrder(t, fmt.Sprintf("%d-%d", i, j))
					}
				})
			}
			group.Wait()
			until(t, "decided", func() bool { return d.decided(t) })
			for _, stop := range stops {
				stop()
			}
			orders, missing, extra := d.check(t)
			t.Logf("%s: %d orders, %d without a message, %d messages without an order", way.name, orders, missing, extra)
			if wrong := missing+extra > 0; wrong != (way.name == "naive") || orders == 0 {
				t.Errorf("%s: %d orders, %d are wrong", way.name, orders, missing+extra)
			}
		}
	})
}

// slowOrder is an order whose transaction begins late or takes long, now and then, and whose submission may be lost.
func (d *database) slowOrder(t *testing.T, order string) {
	ctx := t.Context()
	id := d.prepare(t, order)
	pause := func() {
		if rand.IntN(4) == 0 {
			<-time.After(rand.N(2500 * time.Millisecond)) // the load
		}
	}
	pause()
	for range 20 {
		err := func() error {
			tx, err := d.db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback() //nolint:errcheck // after the commit there is nothing to undo
			if err := errors.Join(d.barrier.Pass(ctx, tx, id), d.insertOrder(ctx, tx, order)); err != nil {
				return err
			}
			if d.dialect != dialect.SQLite { // whose file has one writer
				pause()
			}
			if rand.IntN(4) == 0 {
				return nil
			}
			return tx.Commit()
		}()
		if !dialect.Again(err) && !dialect.LockTimeout(err) {
			if err != nil && !errors.Is(err, halfmsg.ErrAborted) {
				t.Error(err)
			}
			return
		}
	}
}

// TestCleaning: old half messages go in one cleaning, however many there are. A newer one stays.
func TestCleaning(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		const old = 6000
		for state := 1; state <= 2; state++ {
			for from := 0; from < old/2; from += 500 {
				s := dialect.New(d.dialect).Add("INSERT INTO ", d.name, " (id, producer, state, asks, due, created, changed, messages, reason) VALUES ")
				for i := range 500 {
					s.Add([]string{"", ", "}[min(i, 1)], "(").Value(fmt.Sprintf("old-%d-%d", state, from+i)).Add(", 'shop', ").Value(state).Add(", 0, 0, 0, 0, ").Value([]byte("[]")).Add(", '')")
				}
				if _, err := s.Exec(t.Context(), d.db); err != nil {
					t.Fatal(err)
				}
			}
		}
		id := d.prepare(t, "order")
		if err := d.coordinator.Abort(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		d.run(t, d.ask)
		until(t, "the old ones are gone", func() bool {
			var n int
			if err := d.db.QueryRow("SELECT COUNT(*) FROM " + d.name).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n == 1
		})
		if is := d.status(t, id); is.State != halfmsg.Aborted {
			t.Error(is.State)
		}
	})
}

// Send over HTTP, with questions over HTTP.
func TestHTTP(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		ctx := t.Context()
		server := httptest.NewServer(d.coordinator.Handler(func(r *http.Request) (string, error) {
			if r.Header.Get("Authorization") == "" {
				return "", errors.New("not known here")
			}
			return r.Header.Get("Authorization"), nil
		}))
		defer server.Close()
		answers := httptest.NewServer(d.barrier.Handler(d.db, func(r *http.Request) error {
			if r.Header.Get("Authorization") != "coordinator" {
				return errors.New("not known here")
			}
			return nil
		}))
		defer answers.Close()
		as := func(name string) func(*http.Request) error {
			return func(r *http.Request) error { r.Header.Set("Authorization", name); return nil }
		}
		shop := &halfmsg.Client{URL: server.URL, Authorize: as("shop")}
		send := func(to halfmsg.Preparer, order string, err error) (string, error) {
			return halfmsg.Send(ctx, to, "", d.barrier, d.db, nil, []outbox.Message{{ID: order, Topic: "t"}}, func(ctx context.Context, tx *sql.Tx) error {
				return errors.Join(d.insertOrder(ctx, tx, order), err)
			})
		}
		id, err := send(shop, "sent", nil)
		if err != nil || d.status(t, id).State != halfmsg.Submitted {
			t.Error(err)
		}
		refused := errors.New("no such customer")
		if id, err := send(shop, "refused", refused); !errors.Is(err, refused) || d.status(t, id).State != halfmsg.Aborted {
			t.Error(err)
		}
		lost, err := send(deaf{shop}, "lost", nil)
		if err != nil || d.status(t, lost).State != halfmsg.Prepared {
			t.Error(err)
		}
		stranger := &halfmsg.Client{URL: server.URL, Authorize: as("stranger")}
		for what, is := range map[string]struct{ err, want error }{
			"abort of another's": {stranger.Abort(ctx, lost), halfmsg.ErrUnknown}, "unknown": {shop.Submit(ctx, "no"), halfmsg.ErrUnknown}, "submitted": {shop.Abort(ctx, id), halfmsg.ErrSubmitted},
		} {
			if !errors.Is(is.err, is.want) {
				t.Errorf("%s: %v", what, is.err)
			}
		}
		if _, err := (&halfmsg.Client{URL: server.URL}).Prepare(ctx, "", outbox.Message{Topic: "t"}); err == nil || !strings.Contains(err.Error(), "403") {
			t.Error(err)
		}
		if _, err := shop.Prepare(ctx, "", outbox.Message{}); !errors.Is(err, pawl.ErrInvalid) {
			t.Error(err)
		}
		d.run(t, halfmsg.AskHTTP(nil, map[string]string{"shop": answers.URL}, as("coordinator")))
		until(t, "decided", func() bool { return d.decided(t) })
		if orders, missing, extra := d.check(t); orders != 2 || missing+extra > 0 {
			t.Errorf("%d orders, %d without a message, %d messages without an order", orders, missing, extra)
		}
	})
}

// A producer cannot make the coordinator send a request to another address, and neither can a coordinator a producer.
func TestNoRedirectIsFollowed(t *testing.T) {
	t.Parallel()
	var reached atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	defer other.Close()
	redirects := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer redirects.Close()
	_, err := halfmsg.AskHTTP(nil, map[string]string{"p": redirects.URL}, nil)(t.Context(), "p", "id", 0)
	for _, err := range []error{err, (&halfmsg.Client{URL: redirects.URL}).Submit(t.Context(), "id")} {
		if err == nil || !strings.Contains(err.Error(), "status 307") {
			t.Error(err)
		}
	}
	if n := reached.Load(); n > 0 {
		t.Errorf("%d requests at the other address", n)
	}
}

// deaf is a coordinator that no submission reaches.
type deaf struct{ halfmsg.Preparer }

func (deaf) Submit(context.Context, string) error { return errors.New("lost") }

func TestBadInput(t *testing.T) {
	for field, opts := range map[string]halfmsg.Options{"Table": {Table: "a b"}, "AskAfter": {AskAfter: 1}, "MaxWait": {MaxWait: 1}, "Timeout": {Timeout: -1}, "Retention": {Retention: 1}} {
		if _, err := halfmsg.New(dialect.SQLite, nil, nil, &opts); !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), "Options."+field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	for field, opts := range map[string]halfmsg.BarrierOptions{"Table": {Table: "a b"}, "Wait": {Wait: 1}, "Retention": {Retention: 1}} {
		if _, err := halfmsg.NewBarrier(dialect.SQLite, &opts); !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), "BarrierOptions."+field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
