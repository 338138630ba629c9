package inboxtest_test

import (
	"context"
	"strconv"
	"strings"
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
	tick := time.NewTicker(pause)
	defer tick.Stop()
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
		<-tick.C
	}
}

// killed runs consumers of a kind in processes of their own, kills them, and checks the effects. Trouble goes on meanwhile.
func (d *database) killed(t *testing.T, kind, addr, worker string, n int, trouble func()) faults {
	t.Helper()
	b, err := brokers[kind].connect(addr, d.name)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	until := time.Now().Add(time.Hour)
	if worker != "inbox" {
		until = time.Now().Add(7 * time.Second)
		if n == 1 {
			until = time.Now().Add(30 * time.Second)
		}
	}
	env := []string{workerEnv + "=" + worker, "PAWL_INBOX_KIND=" + kind, "PAWL_INBOX_BROKER=" + addr, "PAWL_INBOX_DIALECT=" + strconv.Itoa(int(d.kind)), "PAWL_INBOX_SOURCE=" + d.dsn,
		"PAWL_INBOX_TABLE=" + d.name, "PAWL_INBOX_DEADLINE=" + strconv.FormatInt(until.UnixMilli(), 10), "PAWL_INBOX_MESSAGES=" + strconv.Itoa(killedKeys*perKey),
		"PAWL_INBOX_STORE=redis://" + testservers.SharedRedis(t).Addr}
	flowing := make(chan struct{})
	go func() { defer close(flowing); flow(t.Context(), t, b, 60*time.Millisecond) }()
	workers := killtest.Start(t, n, env...)
	troubled := make(chan struct{})
	go func() { defer close(troubled); trouble() }()
	kills := workers.KillUntilDone(8, 600*time.Millisecond)
	<-flowing
	<-troubled
	all, err := d.effects(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n == 1 { // what the broker still has is not lost
		if left, err := b.unsettled(t.Context()); err != nil || left > 0 {
			t.Errorf("%s has left %d messages: %v", worker, left, err)
		}
	}
	f := check(all, killedKeys, perKey)
	t.Logf("%s: killed %d consumers: %+v", worker, kills, f)
	return f
}

// TestKilled: consumers are killed again and again while messages are delivered. Each message takes effect once, and those of a
// key in their order. A consumer that acknowledges before the effect loses messages. A consumer that acknowledges behind the effect, without an inbox, repeats some.
func TestKilled(t *testing.T) {
	for kind, is := range brokers {
		t.Run(kind, func(t *testing.T) {
			server := is.server(t)
			databases(t, func(t *testing.T, d *database) {
				t.Parallel()
				if f := d.killed(t, kind, server.Addr, "inbox", 3, func() {}); f != (faults{}) {
					t.Errorf("%+v", f)
				}
			})
		})
	}
}

// TestKilledNaive: the checker finds what consumers without an inbox do under the same load.
func TestKilledNaive(t *testing.T) {
	for kind, is := range brokers {
		t.Run(kind, func(t *testing.T) {
			server := is.server(t)
			for _, worker := range []string{"naive", "forgetful"} {
				t.Run(worker, func(t *testing.T) {
					t.Parallel()
					n := 3
					if strings.HasPrefix(kind, "rabbitmq") { // of several readers most would have nothing in hand when killed
						n = 1
					}
					f := newDatabase(t, dialect.PostgreSQL).killed(t, kind, server.Addr, worker, n, func() {})
					if worker == "naive" && f.lost == 0 {
						t.Errorf("acknowledged before the effect, and nothing was lost: %+v", f)
					}
					if worker == "forgetful" && f.twice == 0 {
						t.Errorf("without an inbox, and nothing took effect twice: %+v", f)
					}
				})
			}
		})
	}
}
