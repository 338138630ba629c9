package redlockengine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
)

// TestContention: also where every node that lives is needed, waiters come to hold, one after the
// other. Requests take different times, so each node has another order.
func TestContention(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { contention(t, seed) })
		})
	}
}

func contention(t *testing.T, seed uint64) {
	all, w := newNodes(5), &witness{t: t, tokens: true}
	all[1].forget(time.Hour)
	all[3].forget(time.Hour)
	ctx, cancel := context.WithTimeout(t.Context(), 20*ttl)
	defer cancel()
	var users sync.WaitGroup
	longest := make([]time.Duration, 4)
	for i := range longest {
		eng, links := all.client(t, nil)
		c, err := pawl.New(t.Context(), eng, &pawl.Options{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(t.Context()) //nolint:errcheck // checked elsewhere
		for _, l := range links {
			l.is = late(ttl / 500) // no more than a slow answer
		}
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		users.Go(func() {
			for asked := time.Now(); ctx.Err() == nil; asked = time.Now() {
				l, err := c.Mutex("contended").Lock(ctx)
				longest[i] = max(longest[i], time.Since(asked))
				if err != nil {
					continue
				}
				w.granted(l)
				<-time.After(time.Duration(r.Int64N(int64(ttl / 100))))
				w.left(l)
				l.Unlock(ctx) //nolint:errcheck // at the end ctx has ended
			}
		})
	}
	users.Wait()
	t.Logf("%d grants, longest wait %v", w.grants, longest)
	for i, d := range longest {
		if d > 3*ttl {
			t.Errorf("client %d waited for %v", i, d)
		}
	}
}
