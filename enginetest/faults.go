package enginetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
)

var faultCases = []Case{
	{"a holder stops believing before another holds", "told too late: the deadline counted from the reply; told never", stopsBelieving, nil},
	{"trouble of a moment loses nothing", "one failed heartbeat is taken for a loss", momentaryTrouble, nil},
	{"a wait survives a cut connection", "a lost message stalls a waiter to the TTL, or for ever", waitSurvives, nil},
	{"a lost reply counts once", "an ambiguous acquire retried: held twice, or blocked by itself", lostReply, nil},
	{"an unlock that was not heard is said again", "the local state says free, the server says held: a dead lock for ever", unheardUnlock, nil},
	{"a store that is away is not busy", "errors say taken when they mean that the server is down", awayIsNotBusy, nil},
	{"a store that forgot gives nothing out", "a restart without data grants what another still holds", forgets, nil},
	{"a lock lost is taken again with a new session", "the client of a lost session never works again", newSession, nil},
}

// client is for rows that wait for the end of its session.
func (h *Harness) client(t *testing.T, eng engine.Engine) *pawl.Client {
	t.Helper()
	return clientFor(t, eng, h.TTL)
}

// steady is for rows that wait for no end of a session. A machine may be busy for one TTL of the
// harness, and none of its requests fail.
func (h *Harness) steady(t *testing.T, eng engine.Engine) *pawl.Client {
	t.Helper()
	return clientFor(t, eng, max(h.TTL, steadyTTL))
}

const steadyTTL = 10 * time.Second

func clientFor(t *testing.T, eng engine.Engine, ttl time.Duration) *pawl.Client {
	t.Helper()
	c, err := pawl.New(t.Context(), eng, &pawl.Options{TTL: ttl})
	for tries := 1; errors.Is(err, pawl.ErrUnavailable) && tries < 5; tries++ { // a busy machine may need longer than a short TTL
		c, err = pawl.New(t.Context(), eng, &pawl.Options{TTL: ttl})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		c.Close(ctx) //nolint:errcheck // some stores are away by then
	})
	return c
}

func lock(t *testing.T, m pawl.Locker) *pawl.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	l, err := m.Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

type held struct {
	*pawl.Lease
	err error
	at  time.Time
}

func lockLater(t *testing.T, m pawl.Locker) <-chan held {
	got := make(chan held, 1)
	go func() {
		l, err := m.Lock(t.Context())
		got <- held{l, err, time.Now()}
	}()
	return got
}

func (h *Harness) queued(t *testing.T, name string, n int) {
	t.Helper()
	p := &party{t: t, engine: h.Open(t), ctx: t.Context()}
	p.until("queued", name, func(r engine.Resource) bool { return len(r.Claims) == n })
}

// troubled returns an engine with a network. For a store without a network, the calls of the engine
// meet the same trouble.
func (h *Harness) troubled(t *testing.T) (engine.Engine, Network) {
	t.Helper()
	if h.Network == nil {
		eng := h.Open(t)
		need(t, eng.Caps().Processes != engine.ReachNetwork, "Network", "this row has trouble on the network, over which Caps say that the store is reached")
		return hanging(eng)
	}
	eng, net := h.Network(t)
	need(t, net.Freeze != nil && net.FreezeReplies != nil && net.Cut != nil && net.Heal != nil, "Network", "it returned a Network that lacks a function")
	return eng, net
}

func stopsBelieving(t *testing.T, h *Harness) {
	eng, net := h.troubled(t)
	a, b := h.client(t, eng), h.client(t, h.Open(t))
	l := lock(t, a.Mutex("believes"))
	ended := make(chan time.Time, 1)
	context.AfterFunc(l.Context(), func() { ended <- time.Now() })
	got := lockLater(t, b.Mutex("believes"))
	h.queued(t, "believes", 2)
	net.Freeze()
	next := <-got
	if next.err != nil {
		t.Fatal(next.err)
	}
	select {
	case at := <-ended:
		t.Logf("told %v before the next had it", next.at.Sub(at).Round(time.Millisecond))
		if !at.Before(next.at) {
			t.Errorf("told %v after the next had it", at.Sub(next.at))
		}
	default:
		t.Error("the next holds, and the first still believes")
	}
	if err := l.Err(); !errors.Is(err, pawl.ErrLost) || !errors.Is(context.Cause(l.Context()), pawl.ErrLost) {
		t.Errorf("lost: %v, cause %v", err, context.Cause(l.Context()))
	}
	if next.Token() <= l.Token() {
		t.Errorf("token %v after %v", next.Token(), l.Token())
	}
	net.Heal()
	if err := l.Unlock(t.Context()); !errors.Is(err, pawl.ErrLost) {
		t.Errorf("unlock of a lost lock: %v", err)
	}
	if err := next.Err(); err != nil {
		t.Errorf("the next lost it to the late unlock: %v", err)
	}
	if err := next.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

func momentaryTrouble(t *testing.T, h *Harness) {
	eng, net := h.troubled(t)
	ttl := max(h.TTL, 5*time.Second) // on a busy machine a renewal may take a good part of a second
	l := lock(t, clientFor(t, eng, ttl).Mutex("moment"))
	if eng.Caps().Expiry == engine.ExpiryConnection {
		lostWithConnection(t, h, net, l)
		return
	}
	for range 2 {
		net.Cut()
		timer := time.NewTimer(ttl / 3)
		<-timer.C
		net.Heal()
		until := time.Now().Add(ttl - ttl/10)
		for l.Err() == nil && l.ValidUntil().Before(until) { // until a renewal succeeds
			timer.Reset(ttl / 50)
			<-timer.C
		}
		if err := l.Err(); err != nil {
			t.Fatalf("lost by trouble of a third of the TTL: %v", err)
		}
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// lostWithConnection is the rest of the promise where the connection is the lock. The holder learns
// of the loss long before its trust window ends, and other clients go on.
func lostWithConnection(t *testing.T, h *Harness, net Network, l *pawl.Lease) {
	start := time.Now()
	net.Cut()
	select {
	case <-l.Context().Done():
	case <-time.After(patience):
		t.Fatal("never told")
	}
	if told := time.Since(start); told > h.TTL/2 || !errors.Is(l.Err(), pawl.ErrLost) {
		t.Errorf("told after %v of a TTL of %v: %v", told, h.TTL, l.Err())
	}
	net.Heal()
	next := lock(t, h.client(t, h.Open(t)).Mutex("moment"))
	if next.Token() <= l.Token() {
		t.Errorf("token %v after %v", next.Token(), l.Token())
	}
	if err := next.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

func waitSurvives(t *testing.T, h *Harness) {
	eng, net := h.troubled(t)
	holder := h.client(t, h.Open(t))
	l := lock(t, holder.Mutex("survives"))
	got := lockLater(t, h.client(t, eng).Mutex("survives"))
	h.queued(t, "survives", 2)
	net.Cut()
	if err := l.Unlock(t.Context()); err != nil { // the message reaches nobody
		t.Fatal(err)
	}
	net.Heal()
	select {
	case next := <-got:
		if next.err != nil {
			t.Fatal(next.err)
		}
		if err := next.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("the waiter never had it")
	}
}

func lostReply(t *testing.T, h *Harness) {
	eng, net := h.troubled(t)
	a, other := h.client(t, eng), h.client(t, h.Open(t))
	net.FreezeReplies()
	ctx, cancel := context.WithTimeout(t.Context(), h.TTL/3)
	defer cancel()
	if l, err := a.Mutex("reply").Lock(ctx); err == nil {
		t.Fatalf("locked without a reply: %v", l.Token())
	} else if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the wait ended with %v", err)
	}
	net.Heal()
	// A withdrawal, or the end of the session, undoes the work of the store.
	l := lock(t, other.Mutex("reply"))
	if err := l.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if err := lock(t, a.Mutex("reply")).Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

func unheardUnlock(t *testing.T, h *Harness) {
	eng, net := h.troubled(t)
	a, b := clientFor(t, eng, max(h.TTL, 4*time.Second)), h.client(t, h.Open(t)) // a busy machine may be late by a second
	l := lock(t, a.Mutex("unheard"))
	net.Cut()
	if err := l.Unlock(t.Context()); !errors.Is(err, pawl.ErrUnavailable) {
		t.Errorf("unlock while the store is away: %v", err)
	}
	net.Heal()
	for _, c := range []*pawl.Client{b, a, b} {
		// A busy machine may not answer within a request's time. The release is said again then, too, and the next holder shows that.
		if err := lock(t, c.Mutex("unheard")).Unlock(t.Context()); err != nil && !errors.Is(err, pawl.ErrUnavailable) {
			t.Error(err)
		}
	}
}

func awayIsNotBusy(t *testing.T, h *Harness) {
	eng, net := h.troubled(t)
	c := clientFor(t, eng, max(h.TTL, 4*time.Second)) // a Lock retries for so long: a busy machine has to connect again meanwhile
	net.Cut()
	for range 2 {
		if l, err := c.Mutex("away").TryLock(t.Context()); !errors.Is(err, pawl.ErrUnavailable) || errors.Is(err, pawl.ErrNotAcquired) {
			t.Errorf("try while the store is away: %v, %v", l, err)
		}
	}
	if l, err := c.Mutex("away").Lock(t.Context()); !errors.Is(err, pawl.ErrUnavailable) || errors.Is(err, pawl.ErrNotAcquired) {
		t.Errorf("lock while the store is away: %v, %v", l, err)
	}
	net.Heal()
	if err := lock(t, c.Mutex("away")).Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

func forgets(t *testing.T, h *Harness) {
	if !h.Open(t).Caps().Forgets {
		return // its capabilities say so, and the row on capabilities checks that
	}
	need(t, h.Forgetful != nil, "Forgetful", "this row has the store forget everything, which Caps say that it may")
	open, forget := h.Forgetful(t)
	a, b := h.client(t, open(t)), h.client(t, open(t))
	l := lock(t, a.Mutex("forgets"))
	token := l.Token()
	ended := make(chan time.Time, 1)
	context.AfterFunc(l.Context(), func() { ended <- time.Now() })
	forget()
	early, err := b.Mutex("forgets").TryLock(t.Context())
	for errors.Is(err, pawl.ErrUnavailable) { // the store may be starting again
		early, err = b.Mutex("forgets").TryLock(t.Context())
	}
	switch {
	case err == nil: // the store was away for as long as its grace
		if l.Context().Err() == nil {
			t.Errorf("a try was granted, and the first still believes until %v", l.ValidUntil())
		}
		if err := early.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	case !errors.Is(err, pawl.ErrNotAcquired) || !means(err, engine.ErrGrace):
		t.Errorf("a try after it forgot: %v, want the grace", err)
	}
	if r, err := b.Show(t.Context(), "forgets"); err != nil || !r.Grace.On() {
		if _, later := b.Mutex("another").TryLock(t.Context()); means(later, engine.ErrGrace) {
			t.Errorf("Show tells of no grace: %+v, %v; a later try: %v", r, err, later)
		}
	}
	next := <-lockLater(t, b.Mutex("forgets"))
	if next.err != nil {
		t.Fatal(next.err)
	}
	select {
	case at := <-ended:
		t.Logf("told %v before the next had it", next.at.Sub(at).Round(time.Millisecond))
	default:
		t.Errorf("the next holds (token %v), and the first still believes until %v", next.Token(), l.ValidUntil())
	}
	if next.Token() <= token {
		t.Errorf("token %v after %v: the store forgot the tokens too", next.Token(), token)
	}
	if err := next.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// snapshotCase is for stores that a test can restore.
var snapshotCase = Case{"a restored store keeps no lock that was released", "a backup is put back, and a name stays taken as long as its former holder lives", restored, nil}

// snapshotTTL outlives two restarts of a server on a quiet machine.
const snapshotTTL = 12 * time.Second

// restored puts back a copy of the store. A lock that was released after the copy becomes free
// while its former holder goes on. The holder of a lock that was granted after the copy is
// notified. If the store promises so, the notice comes before the next grant.
func restored(t *testing.T, h *Harness) {
	need(t, h.Snapshot != nil, "Snapshot", orSayWhy)
	open, keep := h.Snapshot(t)
	began := time.Now()
	keep() // how long a restart takes on this machine now
	ttl := min(max(snapshotTTL, 4*time.Since(began)), 3*patience)
	a, b, c := clientFor(t, open(t), ttl), clientFor(t, open(t), ttl), clientFor(t, open(t), ttl)
	released, other := lock(t, a.Mutex("released")), lock(t, b.Mutex("other"))
	restore := keep()
	if err := errors.Join(released.Err(), other.Err()); err != nil {
		t.Fatalf("lost by a restart, though the TTL is %v: %v", ttl, err)
	}
	if err := released.Unlock(t.Context()); err != nil && !errors.Is(err, pawl.ErrUnavailable) { // the heartbeat retries it
		t.Fatal(err)
	}
	if err := lock(t, b.Mutex("released")).Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	late := lock(t, b.Mutex("late"))
	notified := make(chan time.Time, 1)
	context.AfterFunc(late.Context(), func() { notified <- time.Now() })
	restore()

	free, next := lockLater(t, c.Mutex("released")), lockLater(t, c.Mutex("late"))
	for name, got := range map[string]<-chan held{"released": free, "late": next} {
		select {
		case l := <-got:
			if l.err != nil {
				t.Fatal(name, l.err)
			}
			if name == "late" {
				checkNotified(t, open(t).Caps(), late, notified, l.at, ttl)
			}
			t.Logf("%s: token %v after %v and %v", name, l.Token(), released.Token(), late.Token())
			if err := l.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		case <-time.After(4 * ttl):
			r, err := c.Show(t.Context(), name)
			t.Fatalf("%s is not free: %+v, %v", name, r, err)
		}
	}
}

func checkNotified(t *testing.T, caps engine.Caps, late *pawl.Lease, notified <-chan time.Time, next time.Time, ttl time.Duration) {
	t.Helper()
	select {
	case at := <-notified:
		if caps.Forgets && at.After(next) {
			t.Errorf("the holder was notified %v after the next grant", at.Sub(next))
		}
	case <-time.After(ttl):
		t.Errorf("the holder believes until %v, and there is another", late.ValidUntil())
	}
}

func newSession(t *testing.T, h *Harness) {
	inner := h.Open(t)
	eng := &spy{Engine: inner}
	c := h.client(t, engine.Like(inner, eng))
	l := lock(t, c.Mutex("new session"))
	h.kill(t, eng.session())
	select {
	case <-l.Context().Done():
	case <-time.After(patience):
		t.Fatal("never told")
	}
	next := lock(t, c.Mutex("new session"))
	if next.Token() <= l.Token() {
		t.Errorf("token %v after %v", next.Token(), l.Token())
	}
	if err := next.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}
