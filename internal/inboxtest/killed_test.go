package inboxtest_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/internal/killtest"
	"github.com/pawl-go/pawl/internal/testservers"
)

const (
	killedKeys = 10
	perKey     = 60
)

// flow publishes numbers 1 to perKey of all keys, spread over a time. Some are published twice.
func flow(ctx context.Context, t *testing.T, b broker, pause time.Duration) {
	t.Helper()
	for n := 1; n <= perKey; n++ {
		var batch []inbox.Message
		for k := range killedKeys {
			m := message(strconv.Itoa(k), n)
			batch = append(batch, m)
			if (n+k)%7 == 0 {
				batch = append(batch, m)
			}
		}
		for err := b.publish(ctx, batch...); err != nil; err = b.publish(ctx, batch...) { // again: the inbox absorbs repeats
			if ctx.Err() != nil {
				t.Error(err)
				return
			}
		}
		<-time.After(pause)
	}
}

// killedConsumers are consumers of a kind in processes of their own, which the test kills.
type killedConsumers struct {
	*database
	broker
	worker string
	start  func(n int) *killtest.Workers
}

func (d *database) consumers(t *testing.T, kind, worker string) *killedConsumers {
	t.Helper()
	server := brokers[kind].shared(t)
	b, err := brokers[kind].connect(server.Addr, d.name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	if r, ok := b.(*rabbitBroker); ok {
		r.server = server
	}
	env := []string{workerEnv + "=" + worker, "PAWL_INBOX_KIND=" + kind, "PAWL_INBOX_BROKER=" + server.Addr, "PAWL_INBOX_DIALECT=" + strconv.Itoa(int(d.kind)), "PAWL_INBOX_SOURCE=" + d.dsn,
		"PAWL_INBOX_TABLE=" + d.name, "PAWL_INBOX_MESSAGES=" + strconv.Itoa(killedKeys*perKey), "PAWL_INBOX_STORE=redis://" + testservers.SharedRedis(t).Addr}
	return &killedConsumers{d, b, worker, func(n int) *killtest.Workers { return killtest.Start(t, n, env...) }}
}

// found compares the effects with the messages, when none is left.
func (c *killedConsumers) found(t *testing.T, kills int) faults {
	t.Helper()
	until(t, "no message is left", func() bool { left, err := c.unsettled(t.Context()); return err == nil && left == 0 }) // RabbitMQ tells late
	all, err := c.effects(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f := check(all, killedKeys, perKey)
	t.Logf("%s: killed %d consumers: %+v", c.worker, kills, f)
	return f
}

// TestKilled: consumers are killed again and again while messages are delivered. Each message takes effect once, and those of a
// key in their order.
func TestKilled(t *testing.T) {
	for kind := range brokers {
		t.Run(kind, func(t *testing.T) {
			databases(t, func(t *testing.T, d *database) {
				t.Parallel()
				c := d.consumers(t, kind, "inbox")
				flowing := make(chan struct{})
				go func() { defer close(flowing); flow(t.Context(), t, c, 60*time.Millisecond) }()
				kills := c.start(3).KillUntilDone(8, 600*time.Millisecond)
				<-flowing
				if f := c.found(t, kills); f != (faults{}) {
					t.Errorf("%+v", f)
				}
			})
		})
	}
}

// TestKilledNaive: the checker finds what consumers without an inbox do when they are killed at work. A consumer that acknowledges
// before the effect loses messages. A consumer that acknowledges behind the effect repeats some.
func TestKilledNaive(t *testing.T) {
	for kind := range brokers {
		for _, worker := range []string{"naive", "forgetful"} {
			t.Run(kind+"/"+worker, func(t *testing.T) {
				t.Parallel()
				d := newDatabase(t, dialect.PostgreSQL)
				c := d.consumers(t, kind, worker)
				flow(t.Context(), t, c, 0)
				kills := c.start(1).KillAtWork(6, func() int {
					all, err := d.effects(t.Context())
					if err != nil {
						t.Error(err)
					}
					return len(all)
				})
				f := c.found(t, kills)
				if worker == "naive" && f.lost == 0 {
					t.Errorf("acknowledged before the effect, and nothing was lost: %+v", f)
				}
				if worker == "forgetful" && f.twice == 0 {
					t.Errorf("without an inbox, and nothing took effect twice: %+v", f)
				}
			})
		}
	}
}
