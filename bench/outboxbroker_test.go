package bench

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
)

// BenchmarkOutboxBroker: a relay from a database to each broker. The floor is the sum of two times. Clients read
// and mark the rows. Then as many clients publish as many messages. Beside that, how long a message to a Redis stream takes
// from its commit to its confirm, at a fifth of that rate.
func BenchmarkOutboxBroker(b *testing.B) {
	b.Run("postgres", func(b *testing.B) {
		db := openDB(b, "pgx", testservers.PostgresURL(testservers.Postgres(b).Addr))
		benchBrokers(b, "PostgreSQL", dialect.PostgreSQL, db)
	})
	b.Run("mariadb", func(b *testing.B) { benchBrokers(b, "MariaDB", dialect.MySQL, openMariaDB(b)) })
}

func benchBrokers(b *testing.B, name string, d dialect.Dialect, db *sql.DB) {
	for broker, start := range map[string]func(*testing.B) outboxBroker{"redis": redisBroker, "nats": natsBroker, "rabbitmq": rabbitBroker} {
		b.Run(broker, func(b *testing.B) {
			o := start(b)
			var rows, bare, ours samples
			for b.Loop() {
				rows = append(rows, roundOf(b, d, db, bareRelay))
				bare = append(bare, o.round(b))
				ours = append(ours, roundOf(b, d, db, func(b *testing.B, _ dialect.Dialect, db *sql.DB, _ string, table *outbox.Table) {
					relayTo(b, db, table, o.publisher)
				}))
				if err := o.empty(); err != nil {
					b.Fatal(err)
				}
			}
			floor := rows.quantile(.5) + bare.quantile(.5)
			compare(b, name+" relay to "+o.name+", a message", micros(ours.quantile(.5)), micros(floor), 1/.7)
			if broker == "redis" {
				delays := delaysOf(b, d, db, o.publisher, 5*ours.quantile(.5))
				say("%s relay, from the commit to the confirm: p50 %v, p99 %v (goal 50 ms)", name, delays.quantile(.5), delays.quantile(.99))
				b.ReportMetric(delays.quantile(.99).Seconds()*1000, "p99-ms")
			}
		})
	}
}

// delaysOf commits a message a pace, and returns how long each took from its commit to its confirm.
func delaysOf(b *testing.B, d dialect.Dialect, db *sql.DB, publisher outbox.Publisher, pace time.Duration) samples {
	const messages = 5_000
	table, err := outbox.New(d, &outbox.Options{Table: fmt.Sprintf("outbox_%d", time.Now().UnixNano())})
	if err == nil {
		err = table.Migrate(ctx, db)
	}
	if err != nil {
		b.Fatal(err)
	}
	timed := &timedPublisher{Publisher: publisher, confirmed: make(map[string]time.Time), all: make(chan struct{}), left: messages}
	relay, stop := running(b, db, table, timed)
	defer stop()
	committed := make(map[string]time.Time)
	var group sync.WaitGroup
	var mu sync.Mutex
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for i := range messages {
		<-tick.C
		group.Go(func() {
			ids, err := table.Enqueue(ctx, db, outbox.Message{Topic: "timed", Key: fmt.Sprint("order-", i%keys), Payload: make([]byte, 256)})
			now := time.Now()
			if err != nil {
				b.Error(err)
				return
			}
			relay.Wake()
			mu.Lock()
			defer mu.Unlock()
			committed[ids[0]] = now
		})
	}
	group.Wait()
	until(b, "all is confirmed", func() bool {
		select {
		case <-timed.all:
			return true
		default:
			return false
		}
	})
	var delays samples
	for id, at := range committed {
		delays = append(delays, timed.confirmed[id].Sub(at))
	}
	return delays
}

// timedPublisher notes when each message was confirmed.
type timedPublisher struct {
	outbox.Publisher
	mu        sync.Mutex
	confirmed map[string]time.Time
	left      int
	all       chan struct{}
}

func (p *timedPublisher) Publish(ctx context.Context, m outbox.Message) error {
	err := p.Publisher.Publish(ctx, m)
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, again := p.confirmed[m.ID]; err == nil && !again {
		p.confirmed[m.ID] = time.Now()
		if p.left--; p.left == 0 {
			close(p.all)
		}
	}
	return err
}

// relayTo runs a relay until all is confirmed.
func relayTo(b *testing.B, db *sql.DB, table *outbox.Table, publisher outbox.Publisher) {
	counting := &counted{Publisher: publisher}
	_, stop := running(b, db, table, counting)
	defer stop()
	until(b, "all is confirmed", func() bool { return counting.confirmed.Load() >= relayed })
}

// counted counts what a publisher confirms.
type counted struct {
	outbox.Publisher
	confirmed atomic.Int64
}

func (p *counted) Publish(ctx context.Context, m outbox.Message) error {
	err := p.Publisher.Publish(ctx, m)
	if err == nil {
		p.confirmed.Add(1)
	}
	return err
}

// running runs a relay until stop is called.
func running(b *testing.B, db *sql.DB, table *outbox.Table, publisher outbox.Publisher) (relay *outbox.Relay, stop func()) {
	relay, err := table.Relay(client(b, memengine.New()), db, publisher, &outbox.RelayOptions{Window: outWindow, OnError: func(err error) { b.Error(err) }})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	return relay, func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	}
}
