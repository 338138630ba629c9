package enginetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
)

// primitiveCases are the promises of the primitives that the root builds on the seam.
var primitiveCases = []Case{
	{"an update is never lost", "optimistic locking that loses updates, or spins under contention", updates, needs(engine.FeatureValues)},
	{"a party of a latch counts once", "a retry after a lost reply counts twice: the latch opens too early", latchCounts, needs(engine.FeatureValues)},
	{"nobody waits for an open latch", "the message of the last count is lost, and a waiter waits for ever", latchWakes, needs(engine.FeatureValues)},
	{"parties of a barrier leave together", "etcd double barrier: surplus parties, releases that are missed", barrierTogether, needs(engine.FeatureValues, engine.FeatureShared)},
	{"a dead party breaks the barrier", "a barrier waits for the dead for ever", barrierBreaks, needs(engine.FeatureValues, engine.FeatureShared)},
	{"one leads, and all see the leader", "two leaders; observers that miss the change; a dead leader that still shows", oneLeads, needs(engine.FeatureValues)},
	{"a downgraded lease lets readers in", "Redisson: a downgrade wakes nobody", leaseTurns, needs(engine.FeatureShared, engine.FeatureOrder)},
	{"a dead holder's lock is delayed", "the last requests of a dead holder meet the work of the next holder", delayed, needs(engine.FeatureDelay)},
}

func updates(t *testing.T, h *Harness) {
	const clients, each = 4, 10
	var all sync.WaitGroup
	var last *pawl.Value
	for range clients {
		v := h.steady(t, h.Open(t)).Value("updates")
		last = v
		all.Go(func() {
			for range each {
				if _, err := v.Update(t.Context(), func(is pawl.Snapshot) ([]byte, error) {
					n, _ := strconv.Atoi(string(is.Data))
					return strconv.AppendInt(nil, int64(n+1), 10), nil
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	is, err := last.Get(t.Context())
	if err != nil || string(is.Data) != strconv.Itoa(clients*each) {
		t.Errorf("%s of %d, %v", is.Data, clients*each, err)
	}
	if _, err := last.Put(t.Context(), nil, is.Number); err != nil {
		t.Error(err)
	}
}

func latchCounts(t *testing.T, h *Harness) {
	eng, net := h.troubled(t)
	latch, other := h.client(t, eng).Latch("counts", 3), h.client(t, h.Open(t)).Latch("counts", 3)
	net.FreezeReplies()
	ctx, cancel := context.WithTimeout(t.Context(), h.TTL/3)
	err := latch.CountDown(ctx, "a")
	cancel()
	if err == nil {
		t.Error("counted without a reply")
	}
	net.Heal()
	for range 2 { // counts down twice
		if err := latch.CountDown(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := other.Count(t.Context()); err != nil || n != 2 {
		t.Errorf("%d are missing, %v", n, err)
	}
	if err := other.Reset(t.Context()); err != nil {
		t.Error(err)
	}
}

func latchWakes(t *testing.T, h *Harness) {
	eng, net := h.troubled(t)
	latch, other := h.client(t, eng).Latch("wakes", 2), h.client(t, h.Open(t)).Latch("wakes", 2)
	open := make(chan error, 2)
	for _, l := range []*pawl.Latch{latch, other} {
		go func() { open <- l.Wait(t.Context()) }()
	}
	if err := other.CountDown(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	net.Cut()
	if err := other.CountDown(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	net.Heal()
	for range 2 {
		select {
		case err := <-open:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Fatal("a waiter of an open latch")
		}
	}
	if err := other.Reset(t.Context()); err != nil {
		t.Error(err)
	}
}

func barrierTogether(t *testing.T, h *Harness) {
	const parties, rounds = 3, 4
	var all sync.WaitGroup
	var mu sync.Mutex
	left := make([][]int, rounds)
	for range parties {
		b := h.steady(t, h.Open(t)).Barrier("together", parties)
		all.Go(func() {
			for round := range rounds {
				index, err := b.Wait(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				left[round] = append(left[round], index)
				if round > 0 && len(left[round-1]) < parties {
					t.Errorf("round %d is over, and only %d have left the one before", round, len(left[round-1]))
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	for round, indexes := range left {
		if slices.Sort(indexes); !slices.Equal(indexes, []int{0, 1, 2}) {
			t.Errorf("round %d: indexes %v", round, indexes)
		}
	}
}

func barrierBreaks(t *testing.T, h *Harness) {
	eng, net := h.troubled(t)
	ttl := max(h.TTL, 4*time.Second) // in which a busy machine has to renew, until both have arrived
	dies, lives := clientFor(t, eng, ttl), clientFor(t, h.Open(t), ttl).Barrier("breaks", 3)
	broken := make(chan error, 2)
	for _, b := range []*pawl.Barrier{dies.Barrier("breaks", 3), lives} {
		go func() {
			_, err := b.Wait(t.Context())
			broken <- err
		}()
	}
	twoArrived(t, h.Open(t), "pawl:barrier/breaks")
	net.Freeze()
	for range 2 {
		select {
		case err := <-broken:
			if !errors.Is(err, pawl.ErrBroken) {
				t.Errorf("a barrier with a dead party: %v", err)
			}
		case <-time.After(patience):
			t.Fatal("a barrier waits for the dead")
		}
	}
	net.Heal()
	_, err := lives.Wait(t.Context())
	var is *pawl.BrokenError
	if !errors.As(err, &is) {
		t.Fatalf("the later client: %v", err)
	}
	for range 2 { // the second comes too late, and does no harm
		if err := lives.Reset(t.Context(), is.Generation); err != nil {
			t.Error(err)
		}
	}
	if n, err := lives.Generation(t.Context()); err != nil || n != is.Generation+1 {
		t.Errorf("generation %d after a reset of %d, %v", n, is.Generation, err)
	}
}

// twoArrived waits until two parties have arrived at a barrier, in the form that the root stores.
func twoArrived(t *testing.T, eng engine.Engine, key string) {
	t.Helper()
	var barrier struct{ Arrived []string }
	for version := uint64(0); len(barrier.Arrived) < 2; {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		v, err := valuesOf(t, eng).Watch(ctx, key, version)
		cancel()
		if err == nil {
			err = json.Unmarshal(v.Data, &barrier)
		}
		if err != nil {
			t.Fatal(err)
		}
		version = v.Version
	}
}

func oneLeads(t *testing.T, h *Harness) {
	eng, net := h.troubled(t)
	mortal, heir, watcher := h.client(t, eng).Election("leads"), h.client(t, h.Open(t)).Election("leads"), h.client(t, h.Open(t)).Election("leads")
	first, err := mortal.Campaign(t.Context(), []byte("mortal"))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan time.Time, 1)
	context.AfterFunc(first.Context(), func() { ended <- time.Now() })
	if is, err := watcher.Leader(t.Context()); err != nil || string(is.Value) != "mortal" || is.Token != first.Token() {
		t.Errorf("leader %+v, %v", is, err)
	}
	seen := make(chan string, 100)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	all.Go(func() {
		for is, err := range watcher.Observe(ctx) {
			seen <- fmt.Sprint(string(is.Value), err)
		}
	})
	net.Freeze()
	second, err := heir.Campaign(t.Context(), []byte("heir"))
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	default:
		t.Error("the heir leads, and the first still believes")
	}
	if second.Token() <= first.Token() {
		t.Errorf("token %v after %v", second.Token(), first.Token())
	}
	net.Heal()
	for is := ""; is != "heir<nil>"; {
		select {
		case is = <-seen:
		case <-time.After(patience):
			t.Fatalf("the heir was not seen, but %q", is)
		}
	}
	if err := mortal.Proclaim(t.Context(), first, []byte("late")); !errors.Is(err, pawl.ErrLost) {
		t.Errorf("the first proclaims: %v", err)
	}
	if err := heir.Resign(t.Context(), second); err != nil {
		t.Error(err)
	}
	if is, err := watcher.Leader(t.Context()); err != nil || is.Token != 0 {
		t.Errorf("leader %+v, %v", is, err)
	}
}

func leaseTurns(t *testing.T, h *Harness) {
	a, b := h.steady(t, h.Open(t)).RWMutex("turns"), h.steady(t, h.Open(t)).RWMutex("turns")
	w := lock(t, a)
	reader := lockLater(t, b.RLocker())
	h.queued(t, "turns", 2)
	r, err := a.Downgrade(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	other := <-reader
	if other.err != nil || r.Token() != w.Token() {
		t.Fatal(other.err, r.Token(), w.Token())
	}
	if _, err := a.TryUpgrade(t.Context(), r); !errors.Is(err, pawl.ErrNotAcquired) {
		t.Errorf("an upgrade beside another reader: %v", err)
	}
	if err := other.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	again, err := a.TryUpgrade(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if again.Token() <= r.Token() {
		t.Errorf("the writer's token is %v, the reader's %v", again.Token(), r.Token())
	}
	if _, err := b.TryRLock(t.Context()); !errors.Is(err, pawl.ErrNotAcquired) {
		t.Errorf("a reader beside a writer: %v", err)
	}
	if err := again.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

func delayed(t *testing.T, h *Harness) {
	eng, net := h.troubled(t)
	delay := h.TTL
	mortal, err := pawl.New(t.Context(), eng, &pawl.Options{TTL: h.TTL, LockDelay: delay})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mortal.Close(context.Background()) }) //nolint:errcheck // the client may be closed already
	l := lock(t, mortal.Mutex("delayed"))
	got := lockLater(t, h.client(t, h.Open(t)).Mutex("delayed"))
	h.queued(t, "delayed", 2)
	net.Freeze()
	<-l.Context().Done()
	told := l.ValidUntil() // a busy machine runs this goroutine later
	next := <-got
	if next.err != nil {
		t.Fatal(next.err)
	}
	t.Logf("the next had it %v after the first was told, delay %v", next.at.Sub(told).Round(time.Millisecond), delay)
	if next.at.Sub(told) < delay {
		t.Errorf("the next had it %v after the first was told, delay %v", next.at.Sub(told), delay)
	}
	net.Heal()
	if err := next.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}
