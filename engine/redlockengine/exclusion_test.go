package redlockengine_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/fence"
)

const ttl = time.Second

// witness sees who believes to hold.
type witness struct {
	mu     sync.Mutex
	t      *testing.T
	holder *pawl.Lease // not yet unlocked
	last   fence.Token
	grants int
	tokens bool // they must grow
}

func (w *witness) granted(l *pawl.Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.holder != nil && w.holder.Err() == nil && l.Err() == nil {
		w.t.Errorf("%v: two believe: tokens %v and %v", time.Now(), w.holder.Token(), l.Token())
	}
	if w.tokens && l.Token() <= w.last {
		w.t.Errorf("token %v after %v", l.Token(), w.last)
	}
	w.holder, w.last = l, l.Token()
	w.grants++
}

func (w *witness) left(l *pawl.Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.holder == l {
		w.holder = nil
	}
}

// use takes the lock again and again.
func (w *witness) use(ctx context.Context, r *rand.Rand, m *pawl.Mutex) {
	for ctx.Err() == nil {
		bound, cancel := context.WithTimeout(ctx, 3*ttl)
		take := m.Lock
		if r.IntN(3) == 0 {
			take = m.TryLock
		}
		l, err := take(bound)
		cancel()
		if err != nil {
			if !errors.Is(err, pawl.ErrNotAcquired) && !errors.Is(err, pawl.ErrUnavailable) {
				w.t.Errorf("lock: %v", err)
			}
			time.Sleep(time.Duration(r.Int64N(int64(ttl / 10))))
			continue
		}
		w.granted(l)
		hold := time.Duration(r.Int64N(int64(ttl / 4)))
		if r.IntN(8) == 0 {
			hold = 2 * ttl
		}
		select {
		case <-time.After(hold):
		case <-l.Context().Done():
		}
		w.left(l)
		l.Unlock(ctx) //nolint:errcheck // it may be lost
	}
}

// harass troubles links and servers, but never for so long that nobody could
// hold.
func harass(ctx context.Context, r *rand.Rand, all nodes, links []*link, forget bool) {
	for ctx.Err() == nil {
		for range 1 + r.IntN(6) {
			l := links[r.IntN(len(links))]
			l.mu.Lock()
			l.is = []trouble{none, fails, hangs, loses, late(ttl / 2)}[r.IntN(5)]
			l.mu.Unlock()
		}
		if forget && r.IntN(4) == 0 {
			all[r.IntN(len(all))].forget(ttl + ttl/50) // and drift
		}
		time.Sleep(time.Duration(r.Int64N(int64(ttl))))
		if r.IntN(3) == 0 {
			heal(links)
			time.Sleep(ttl)
		}
	}
}

func heal(links []*link) {
	for _, l := range links {
		l.set(none)
	}
}

// TestExclusion: whatever happens to the network and to single nodes, no two clients believe that
// they hold. Tokens grow as long as no node forgets. When all is well again every client can lock,
// and nothing stays behind.
func TestExclusion(t *testing.T) {
	for seed := range uint64(60) {
		forget := seed%3 == 2
		t.Run(fmt.Sprintf("seed %d, forget %v", seed, forget), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { exclusion(t, seed, forget) })
		})
	}
}

func exclusion(t *testing.T, seed uint64, forget bool) {
	all, w := newNodes(3+2*int(seed%2)), &witness{t: t, tokens: !forget}
	ctx, cancel := context.WithTimeout(t.Context(), 60*ttl)
	defer cancel()
	var links []*link
	var clients []*pawl.Client
	var users sync.WaitGroup
	for i := range 4 {
		eng, mine := all.client(t, nil)
		c, err := pawl.New(t.Context(), eng, &pawl.Options{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		for k, l := range mine {
			l.news = time.Duration(seed/2%2) * ttl * time.Duration(k+i) / 60
		}
		links, clients = append(links, mine...), append(clients, c)
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		users.Go(func() { w.use(ctx, r, c.Mutex("contended")) })
	}
	users.Go(func() { harass(ctx, rand.New(rand.NewPCG(seed, 99)), all, links, forget) })
	users.Wait()
	heal(links)
	if w.grants < 20 {
		t.Errorf("only %d grants in %v", w.grants, 60*ttl)
	}
	calm, end := context.WithTimeout(t.Context(), 10*ttl)
	defer end()
	for i, c := range clients {
		l, err := c.Mutex("contended").Lock(calm)
		if err != nil {
			t.Fatalf("client %d, when all is well again: %v", i, err)
		}
		w.granted(l)
		w.left(l)
		if err := l.Unlock(calm); err != nil {
			t.Error(err)
		}
	}
	time.AfterFunc(2*ttl, end) // late requests have arrived
	<-calm.Done()
	for i, s := range all {
		for name := range s.now().List(t.Context(), "") {
			r, _ := s.now().Show(t.Context(), name)
			t.Errorf("node %d still has %+v", i, r)
		}
	}
	for _, c := range clients {
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
