package sqlidem_test

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/internal/sqltest"
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
	for _, d := range sqltest.All(t) {
		if d.Dialect == dialect.SQLite {
			continue // which has no wire
		}
		t.Run(d.Name, func(t *testing.T) {
			addr, repeat := testservers.SharedPostgres(t).Addr, int64(1)
			if d.Dialect == dialect.MySQL {
				addr, repeat = testservers.SharedMariaDB(t).Addr, 2
			}
			c := count(t, addr)
			d.Source = strings.Replace(d.Source, addr, c.addr, 1)
			f := newFixture(t, d)
			f.db.SetMaxOpenConns(1)
			whole, bare := costs{first: 3, run: 2, repeat: repeat, failed: 4}, costs{first: 2, run: 1, repeat: repeat, failed: 2}
			if d.Pgx {
				whole = bare
				whole.failed = 3
			}
			f.calls(c, idem.TxOptions{}, whole)
			f.calls(c, idem.TxOptions{NoSavepoint: true}, bare)
			f.calls(c, idem.TxOptions{NoWait: true}, whole)
		})
	}
}

// calls makes each call twice, because a client prepares its statements the first time.
func (f *fixture) calls(c *counted, opts idem.TxOptions, want costs) {
	f.Helper()
	var is costs
	for i := range 2 {
		id := func(kind string) idem.Key { return key(kind + string(rune('a'+i))) }
		for kind, trips := range map[string]*int64{"first": &is.first, "run": &is.run, "failed": &is.failed} {
			tx := f.begin()
			*trips = c.of(func() { f.call(f.store.In(tx).With(opts), id(kind), kind) })
			f.commit(tx)
		}
		tx := f.begin()
		is.repeat = c.of(func() { f.call(f.store.In(tx).With(opts), id("first"), "repeat") })
		f.commit(tx)
		if i == 1 {
			f.exec("DELETE FROM " + f.table + " WHERE name <> 'format'")
		}
	}
	if is != want {
		f.Errorf("%+v: %+v, want %+v", opts, is, want)
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
