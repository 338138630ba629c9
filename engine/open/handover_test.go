package open_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/sessiontest"
)

// TestHandOvers counts in the server what a hand-over asks for. Among many waiters, a hand-over asks for about as much as among few.
// PostgreSQL counts too late for that, so package pgengine counts in the client.
func TestHandOvers(t *testing.T) {
	for name, most := range map[string]float64{"MariaDB": 5, "Redis": 20, "etcd": 6, "ZooKeeper": 6, "NATS": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url, requests := counted[name](t)
			known(t, url)
			few, many := handOver(t, url, requests, 10+turnsCounted), handOver(t, url, requests, 300)
			t.Logf("%.1f requests a hand-over among few, %.1f among many", few, many)
			if few > most || many > 2*few+2 {
				t.Errorf("%.1f requests a hand-over among few (want at most %v), %.1f among many", few, most, many)
			}
		})
	}
}

const (
	turnsCounted = 20
	partsCounted = 4
)

// known lets a new server end its grace with a client of a short TTL.
func known(t *testing.T, url string) {
	t.Helper()
	c, err := pawl.New(t.Context(), connect(t, url), &pawl.Options{TTL: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background()) //nolint:errcheck // the session ends by itself
	l, err := c.Mutex("known").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// handOver has n waiters of one client wait for a lock of another, and says how many requests each of the first hand-overs
// took. The cheapest part of the hand-overs counts: on a busy machine some of what waiters ask for at first comes very late.
func handOver(t *testing.T, url string, requests func() float64, n int) float64 {
	t.Helper()
	name := fmt.Sprintf("turns/%d", n)
	var clients []*pawl.Client
	for range 2 {
		c, err := pawl.New(t.Context(), connect(t, url), &pawl.Options{TTL: 5 * time.Minute}) // each waiter looks again each TTL/3, and that is not to be counted
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(context.Background()) //nolint:errcheck // the session ends by itself
		clients = append(clients, c)
	}
	held, err := clients[0].Mutex(name).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	granted := make(chan *pawl.Lease)
	var waiters sync.WaitGroup
	for range n {
		waiters.Go(func() {
			l, err := clients[1].Mutex(name).Lock(ctx)
			if err != nil {
				if ctx.Err() == nil || !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				return
			}
			select {
			case granted <- l:
			case <-ctx.Done():
				if err := l.Unlock(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	sessiontest.Until(t, "all wait", func() bool {
		r, err := clients[0].Show(t.Context(), name)
		return err == nil && len(r.Waiters) == n
	})
	answered(t, requests)
	asked, before := math.Inf(1), requests()
	for range partsCounted {
		for range turnsCounted / partsCounted {
			if err := held.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
			held = <-granted
		}
		is := requests()
		asked, before = min(asked, is-before), is
	}
	cancel()
	waiters.Wait()
	if err := held.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	return asked * partsCounted / turnsCounted
}

// answered waits until the waiters ask for nothing more than polls and heartbeats.
func answered(t *testing.T, requests func() float64) {
	t.Helper()
	last, since, quiet := requests(), time.Now(), 0
	sessiontest.Until(t, "what the waiters asked for at first is answered", func() bool {
		if time.Since(since) < 300*time.Millisecond {
			return false
		}
		is := requests()
		if quiet++; is-last >= 15 { // this look is among them
			quiet = 0
		}
		last, since = is, time.Now()
		return quiet == 5 // on a busy machine waiters pause in between
	})
}
