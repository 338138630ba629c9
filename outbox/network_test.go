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

// The replies of the database and of the lock store are lost, their connections break, and both servers are killed. Two relays send
// everything, and the first of each message in the order of its key.
func TestTrouble(t *testing.T) {
	for _, kind := range []dialect.Dialect{dialect.PostgreSQL, dialect.MySQL} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			var server *testservers.Server
			source := func(addr string) string {
				if kind == dialect.PostgreSQL {
					return testservers.PostgresURL(addr)
				}
				return testservers.MariaDBConfig(addr).FormatDSN()
			}
			if kind == dialect.PostgreSQL {
				server = testservers.Postgres(t)
			} else {
				server = testservers.MariaDB(t)
			}
			locks := testservers.Redis(t)
			d := newDatabaseAt(t, kind, source(server.Addr))
			behind, locksBehind := proxy.New(t, server.Addr), proxy.New(t, locks.Addr)
			far := &database{dialect: kind, source: source(behind.Addr), name: d.name}
			if err := far.open(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { far.db.Close() }) //nolint:errcheck // nothing is lost
			var relays []*outbox.Relay
			var faults atomic.Int64
			e := &effects{last: make(map[string]int)}
			for range 2 {
				eng, err := open.Open(t.Context(), "redis://"+locksBehind.Addr)
				if err != nil {
					t.Fatal(err)
				}
				client, err := pawl.New(t.Context(), eng, &pawl.Options{TTL: time.Second})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { client.Close(context.Background()); eng.Close() }) //nolint:errcheck // nothing is lost
				relay, _ := far.run(t, client, e, outbox.RelayOptions{Timeout: 500 * time.Millisecond, Balance: 100 * time.Millisecond, Window: 8,
					OnError: func(error) { faults.Add(1) }})
				relays = append(relays, relay)
			}
			n := 0
			round := func() {
				t.Helper()
				n++
				var batch []outbox.Message
				for k := range 40 {
					batch = append(batch, outbox.Message{ID: fmt.Sprint(k, "-", n), Topic: "t", Key: fmt.Sprint(k), Payload: []byte(strconv.Itoa(n))})
				}
				d.enqueue(t, batch...)
			}
			all := func() bool {
				is, err := d.table.Stats(t.Context(), d.db)
				return err == nil && is.Pending == 0
			}
			healed := func() { t.Helper(); round(); until(t, "all are confirmed", all) }
			healed()
			for i := range 4 {
				for _, p := range []*proxy.Proxy{behind, locksBehind} {
					before := faults.Load()
					p.FreezeReplies()
					round()
					until(t, "the relays suffer", func() bool {
						return p == behind && faults.Load() > before || relays[0].Stats().Partitions+relays[1].Stats().Partitions == 0
					})
					p.Cut()
					p.Thaw()
					p.Heal()
					healed()
				}
				p := []*testservers.Server{server, locks}[i%2]
				round()
				p.Kill()
				p.Restart()
				until(t, "the database is back", func() bool { return d.db.PingContext(t.Context()) == nil })
				healed()
			}
			// A connection that stays open without a reply, which only the time-out ends.
			behind.FreezeReplies()
			round()
			behind.Thaw()
			healed()
			if e.fault != "" {
				t.Error(e.fault)
			}
		})
	}
}
