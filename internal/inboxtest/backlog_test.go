package inboxtest_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl/inbox"
)

// TestBacklog: a key that failed for long has very many messages. When it works again, with a failure now and then, the key has its share
// beside the others, which always have more.
func TestBacklog(t *testing.T) {
	const ahead, keys = 100, 3
	test := func(t *testing.T, w *world, backlog int64) {
		var open atomic.Bool
		var others, late atomic.Int64
		w.opts.MaxAttempts = 1_000_000
		w.fail = func(m inbox.Message, run int) error {
			slow := m.Key == "slow"
			if slow && (!open.Load() || run == 1 && strings.HasSuffix(m.ID, "0")) {
				return errors.New("bad luck")
			}
			if slow {
				late.Add(1)
			} else {
				others.Add(1)
			}
			return nil
		}
		w.run(t)
		sent := 0
		feed := func() {
			var batch []inbox.Message
			for ; sent < int(others.Load())+ahead; sent++ {
				batch = append(batch, message(string(rune('a'+sent%keys)), sent))
			}
			w.send(t, batch...)
		}
		for n := 1; n <= int(backlog); {
			var batch []inbox.Message
			for range 20 {
				batch = append(batch, message("slow", n))
				n++
			}
			w.send(t, batch...)
			feed()
		}
		until(t, "all are read", func() bool { return others.Load() >= int64(sent) })
		open.Store(true)
		began := others.Load()
		for deadline := time.Now().Add(10 * time.Minute); late.Load() < backlog && others.Load()-began <= 5*backlog*keys; time.Sleep(10 * time.Millisecond) {
			feed()
			if time.Now().After(deadline) {
				t.Fatalf("the key took %d messages, and the others %d", late.Load(), others.Load()-began)
			}
		}
		if n := (others.Load() - began) / keys; n > 3*backlog {
			t.Errorf("the key took %d messages, and each other took %d meanwhile", late.Load(), n)
		}
	}
	for kind, backlog := range map[string]int64{"redis": 400, "nats": 200} { // with Redis the content leaves memory, and with all others it stays
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, newWorld(t, kind, brokers[kind].shared(t)), backlog)
		})
	}
}
