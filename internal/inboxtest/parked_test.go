package inboxtest_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/inbox/natsjs"
	"github.com/pawl-go/pawl/inbox/rabbit"
	"github.com/pawl-go/pawl/inbox/redisstream"
)

// few is how many messages that are not settled a source with a small bound leaves to a process.
const few = 20

// bounded is a broker whose source has a small bound.
type bounded struct{ broker }

func (b bounded) source() (inbox.Source, error) {
	switch b := b.broker.(type) {
	case *redisBroker:
		return redisstream.New(b.client, b.stream, "g", &redisstream.Options{Hold: hold, Block: 200 * time.Millisecond, Dead: b.stream + ":dead", MaxPending: few})
	case *natsBroker:
		return natsjs.New(b.js, b.name, "g", &natsjs.Options{Hold: hold, Block: 200 * time.Millisecond, MaxAckPending: few})
	case *rabbitBroker:
		return rabbit.New(b.dial, b.queue, &rabbit.Options{Prefetch: few})
	}
	return nil, errors.New("no such broker")
}

// TestParkedThroughTrouble: a key fails with more messages than the process may have, the window has one place, and the broker is killed and
// started again. The consumer ends soon, and the next one lets all take effect. On NATS the server may give them again in another order.
func TestParkedThroughTrouble(t *testing.T) {
	for _, kind := range []string{"redis", "nats"} { // RabbitMQ starts slowly, and has TestBrokerInTrouble
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := brokers[kind].own(t, brokers[kind].durable...)
			w := newWorld(t, kind, server)
			w.broker = bounded{w.broker}
			var open atomic.Bool
			var failures atomic.Int64
			w.opts.Workers, w.opts.Window, w.opts.MaxAttempts = 1, 1, 1_000_000
			w.fail = func(m inbox.Message, _ int) error {
				if m.Key == "a" && !open.Load() {
					failures.Add(1)
					return errors.New("bad luck")
				}
				return nil
			}
			often := func() {
				t.Helper()
				before := failures.Load()
				until(t, "the key fails more", func() bool { return failures.Load() > before+20 })
			}
			restart := func() {
				server.Kill()
				server.Restart()
				until(t, "the broker answers", func() bool { _, err := w.unsettled(t.Context()); return err == nil })
			}
			stop := w.run(t)
			for n := 1; n <= 2*few; n++ {
				w.send(t, message("a", n))
			}
			often()
			restart()
			often()
			began := time.Now()
			stop()
			if took := time.Since(began); took > 15*time.Second {
				t.Errorf("the end took %v", took)
			}
			w.run(t)
			often()
			restart()
			open.Store(true)
			for n := 1; n <= few; n++ {
				w.send(t, message("b", n))
			}
			all := w.took(t, 3*few)
			if f := check(all, 1, 3*few); f.lost+f.twice > 0 || kind == "redis" && f.disordered > 0 {
				t.Error(f, all)
			}
			w.idle(t)
		})
	}
}
