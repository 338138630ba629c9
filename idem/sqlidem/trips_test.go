package sqlidem_test

import (
	"context"
	"database/sql"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/idem/pgxidem"
	"github.com/pawl-go/pawl/internal/testservers"
)

// counted is a relay to a server that counts round trips: bytes of a client after bytes of the server.
type counted struct {
	addr  string
	trips atomic.Int64
}

func count(t *testing.T, upstream string) *counted {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &counted{addr: listener.Addr().String()}
	var group sync.WaitGroup
	t.Cleanup(func() { listener.Close(); group.Wait() })
	group.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			group.Go(func() { c.relay(client, upstream) })
		}
	})
	return c
}

func (c *counted) relay(client net.Conn, upstream string) {
	defer client.Close()
	server, err := net.Dial("tcp", upstream)
	if err != nil {
		return
	}
	var answered atomic.Bool
	answered.Store(true)
	var group sync.WaitGroup
	group.Go(func() {
		copyBytes(server, client, func() {
			if answered.Swap(false) {
				c.trips.Add(1)
			}
		})
		server.Close()
	})
	copyBytes(client, server, func() { answered.Store(true) })
	client.Close()
	group.Wait()
}

func copyBytes(to io.Writer, from io.Reader, seen func()) {
	for buffer := make([]byte, 1<<16); ; {
		n, err := from.Read(buffer)
		if n > 0 {
			seen()
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// of returns how many round trips a function makes.
func (c *counted) of(f func()) int64 {
	before := c.trips.Load()
	f()
	return c.trips.Load() - before
}

// costs are the round trips beside those of the transaction and of fn.
type costs struct{ first, run, repeat, failed int64 }

// A first call sends the claim, the savepoint and the result; pgx sends the savepoint with the claim.
func TestRoundTrips(t *testing.T) {
	for _, s := range servers {
		if s.dialect == dialect.SQLite {
			continue // which has no wire
		}
		addr := testservers.SharedPostgres(t).Addr
		if s.dialect == dialect.MySQL {
			addr = testservers.SharedMariaDB(t).Addr
		}
		c := count(t, addr)
		driver, source := "pgx", testservers.PostgresURL(c.addr)
		repeat := int64(1)
		if s.dialect == dialect.MySQL {
			driver, source, repeat = "mysql", mariadb(c.addr, true), 2
		}
		t.Run(s.dialect.String(), func(t *testing.T) {
			f := newFixture(t, open(t, driver, source), s.dialect, s.levels[0], idem.TxOptions{})
			f.db.SetMaxOpenConns(1)
			f.trips(c, idem.TxOptions{}, costs{first: 3, run: 2, repeat: repeat, failed: 4})
			f.trips(c, idem.TxOptions{NoSavepoint: true}, costs{first: 2, run: 1, repeat: repeat, failed: 2})
			f.trips(c, idem.TxOptions{NoWait: true}, costs{first: 3, run: 2, repeat: repeat, failed: 4})
		})
	}
	t.Run("pgx", func(t *testing.T) {
		c := count(t, testservers.SharedPostgres(t).Addr)
		f := newFixture(t, open(t, "pgx", testservers.PostgresURL(c.addr)), dialect.PostgreSQL, sql.LevelReadCommitted, idem.TxOptions{})
		pool, err := pgxpool.New(t.Context(), testservers.PostgresURL(c.addr)+"&pool_max_conns=1")
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		store, err := pgxidem.New(&pgxidem.Options{Table: f.table})
		if err != nil {
			t.Fatal(err)
		}
		begin := func() (idem.Tx, func()) {
			tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return store.In(tx), func() { tx.Commit(t.Context()) } //nolint:errcheck // counted only
		}
		f.calls(c, "savepoint", begin, costs{first: 2, run: 1, repeat: 1, failed: 2})
		f.calls(c, "no savepoint", func() (idem.Tx, func()) {
			tx, end := begin()
			return tx.With(idem.TxOptions{NoSavepoint: true}), end
		}, costs{first: 2, run: 1, repeat: 1, failed: 2})
	})
}

func (f *fixture) trips(c *counted, opts idem.TxOptions, want costs) {
	f.Helper()
	f.calls(c, "database/sql", func() (idem.Tx, func()) {
		tx := f.begin()
		return f.store.In(tx).With(opts), func() { f.commit(tx) }
	}, want)
}

// calls makes each call twice, because a client prepares its statements the first time.
func (f *fixture) calls(c *counted, name string, begin func() (idem.Tx, func()), want costs) {
	f.Helper()
	var is costs
	for i := range 2 {
		id := func(kind string) idem.Key { return key(name + kind + string(rune('a'+i))) }
		for kind, trips := range map[string]*int64{"first": &is.first, "run": &is.run, "failed": &is.failed} {
			tx, end := begin()
			*trips = c.of(func() { f.call(tx, id(kind), kind) })
			end()
		}
		tx, end := begin()
		is.repeat = c.of(func() { f.call(tx, id("first"), "repeat") })
		end()
		if i == 1 {
			f.exec("DELETE FROM " + f.table + " WHERE name <> 'format'")
		}
	}
	if is != want {
		f.Errorf("%s: %+v, want %+v", name, is, want)
	}
}

func (f *fixture) call(tx idem.Tx, k idem.Key, kind string) {
	f.Helper()
	var replayed bool
	var err error
	if kind == "run" {
		replayed, err = idem.Run(f.Context(), tx, k, print("x"), func(context.Context) error { return nil })
	} else {
		_, replayed, err = idem.Do(f.Context(), tx, k, print("x"), func(context.Context) (int, error) {
			if kind == "failed" {
				return 0, io.EOF
			}
			return 1, nil
		})
	}
	if replayed != (kind == "repeat") || (err == io.EOF) != (kind == "failed") || err != nil && err != io.EOF {
		f.Errorf("%s: %t, %v", kind, replayed, err)
	}
}
