package outbox_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
)

// effects is a broker behind an inbox: the first of each message counts. A payload is a number that each key counts up.
type effects struct {
	mu    sync.Mutex
	last  map[string]int
	fault string
}

func (e *effects) Publish(_ context.Context, m outbox.Message) error {
	n, err := strconv.Atoi(string(m.Payload))
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case err != nil || n > e.last[m.Key]+1:
		e.fault = fmt.Sprintf("%q of key %s after %d", m.Payload, m.Key, e.last[m.Key])
	case n == e.last[m.Key]+1:
		e.last[m.Key] = n
	}
	return nil
}

// troubled is a database and a lock store behind proxies, with two relays.
type troubled struct {
	*database         // without a proxy
	server, locks     *testservers.Server
	toServer, toLocks *proxy.Proxy
	relays            []*outbox.Relay
	faults            atomic.Int64
	effects           effects
	rounds            int
}

func newTroubled(t *testing.T, kind dialect.Dialect) *troubled {
	t.Helper()
	w := &troubled{locks: testservers.Redis(t), effects: effects{last: make(map[string]int)}}
	source := func(addr string) string { return testservers.PostgresURL(addr) }
	if kind == dialect.PostgreSQL {
		w.server = testservers.Postgres(t)
	} else {
		w.server = testservers.MariaDB(t)
		source = func(addr string) string { return testservers.MariaDBConfig(addr).FormatDSN() }
	}
	w.database = newDatabaseAt(t, kind, source(w.server.Addr))
	w.toServer, w.toLocks = proxy.New(t, w.server.Addr), proxy.New(t, w.locks.Addr)
	far := &database{dialect: kind, source: source(w.toServer.Addr), name: w.name}
	if err := far.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.db.Close() }) //nolint:errcheck // nothing is lost
	for range 2 {
		eng, err := open.Open(t.Context(), "redis://"+w.toLocks.Addr)
		if err != nil {
			t.Fatal(err)
		}
		client, err := pawl.New(t.Context(), eng, &pawl.Options{TTL: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close(context.Background()); eng.Close() }) //nolint:errcheck // nothing is lost
		relay, _ := far.run(t, client, &w.effects, outbox.RelayOptions{Timeout: 500 * time.Millisecond, Balance: 100 * time.Millisecond, Window: 8,
			OnError: func(error) { w.faults.Add(1) }})
		w.relays = append(w.relays, relay)
	}
	return w
}

// round enqueues a message of each key.
func (w *troubled) round(t *testing.T) {
	t.Helper()
	w.rounds++
	var batch []outbox.Message
	for k := range 40 {
		batch = append(batch, outbox.Message{ID: fmt.Sprint(k, "-", w.rounds), Topic: "t", Key: fmt.Sprint(k), Payload: []byte(strconv.Itoa(w.rounds))})
	}
	w.enqueue(t, batch...)
}

// healed waits until all messages are confirmed, with another round of them.
func (w *troubled) healed(t *testing.T) {
	t.Helper()
	w.round(t)
	until(t, "all are confirmed", func() bool {
		is, err := w.table.Stats(t.Context(), w.db)
		return err == nil && is.Pending == 0
	})
}

// suffer waits until the relays have noticed the trouble since so many faults.
func (w *troubled) suffer(t *testing.T, p *proxy.Proxy, before int64) {
	t.Helper()
	until(t, "the relays suffer", func() bool {
		return p == w.toServer && w.faults.Load() > before || w.relays[0].Stats().Partitions+w.relays[1].Stats().Partitions == 0
	})
}

// The replies of the database and of the lock store are lost, their connections break, and both servers are killed. Two relays send
// everything, and the first of each message in the order of its key.
func TestTrouble(t *testing.T) {
	for _, kind := range []dialect.Dialect{dialect.PostgreSQL, dialect.MySQL} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			w := newTroubled(t, kind)
			w.healed(t)
			for i := range 4 {
				for _, p := range []*proxy.Proxy{w.toServer, w.toLocks} {
					before := w.faults.Load()
					p.FreezeReplies()
					w.round(t)
					w.suffer(t, p, before)
					if i%2 == 0 { // else the connections stay open, and only a time-out ends a statement
						p.Cut()
					}
					p.Thaw()
					if i%2 == 0 {
						p.Heal()
					}
					w.healed(t)
				}
				server := []*testservers.Server{w.server, w.locks}[i%2]
				w.round(t)
				server.Kill()
				server.Restart()
				until(t, "the database is back", func() bool { return w.db.PingContext(t.Context()) == nil })
				w.healed(t)
			}
			if w.effects.fault != "" {
				t.Error(w.effects.fault)
			}
		})
	}
}
