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
	served            // without a proxy
	locks             *testservers.Server
	toServer, toLocks *proxy.Proxy
	relays            []*outbox.Relay
	faults            atomic.Int64
	effects           effects
	rounds            int
}

// served is a database on a server of its own.
type served struct {
	*database
	server *testservers.Server
}

func newServed(t *testing.T, kind dialect.Dialect) (s served) {
	t.Helper()
	if kind == dialect.PostgreSQL {
		s.server = testservers.Postgres(t)
	} else {
		s.server = testservers.MariaDB(t)
	}
	s.database = newDatabaseAt(t, kind, source(kind, s.server.Addr))
	return s
}

// source names a database at an address.
func source(kind dialect.Dialect, addr string) string {
	if kind == dialect.PostgreSQL {
		return testservers.PostgresURL(addr)
	}
	return testservers.MariaDBConfig(addr).FormatDSN()
}

func newTroubled(t *testing.T, kind dialect.Dialect) *troubled {
	t.Helper()
	w := &troubled{served: newServed(t, kind), locks: testservers.Redis(t), effects: effects{last: make(map[string]int)}}
	w.toServer, w.toLocks = proxy.New(t, w.server.Addr), proxy.New(t, w.locks.Addr)
	far := &database{dialect: kind, source: source(kind, w.toServer.Addr), name: w.name}
	if err := far.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.db.Close() }) //nolint:errcheck // nothing is lost
	for range 2 {
		client, end, err := connect(t.Context(), "redis://"+w.toLocks.Addr, &pawl.Options{TTL: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(end)
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
	t.Parallel()
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

// The database is away while the broker confirms a window of messages. The relay marks them when the database is back, and sends none of them twice.
func TestADatabaseThatIsAwayRepeatsNothing(t *testing.T) {
	t.Parallel()
	const keys = 40
	for _, kind := range []dialect.Dialect{dialect.PostgreSQL, dialect.MySQL} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			w := newServed(t, kind)
			var ids []string
			for range 3 {
				for k := range keys {
					ids = append(ids, w.enqueue(t, outbox.Message{Topic: "t", Key: fmt.Sprint(k)})...)
				}
			}
			var sent, faults atomic.Int64
			away := make(chan struct{})
			w.run(t, newClient(t), publish(func(context.Context, outbox.Message) error { sent.Add(1); <-away; return nil }), outbox.RelayOptions{
				OnError: func(error) { faults.Add(1) }})
			until(t, "the first message of each key is under way", func() bool { return sent.Load() == keys })
			w.server.Kill()
			close(away)
			until(t, "the relay suffers", func() bool { return faults.Load() > 3*outbox.Partitions })
			if n := sent.Load(); n != keys {
				t.Errorf("%d sendings while the database is away, of %d", n, keys)
			}
			w.server.Restart()
			until(t, "the database is back", func() bool { return w.db.PingContext(t.Context()) == nil })
			until(t, "all are confirmed", func() bool { return w.is(t, outbox.Confirmed, ids...) })
			if n := sent.Load(); n != int64(len(ids)) {
				t.Errorf("%d sendings of %d messages", n, len(ids))
			}
		})
	}
}
