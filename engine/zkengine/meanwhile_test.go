package zkengine

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

const (
	opSync  = 9
	opMulti = 14
)

// meanwhile opens a session, and returns how to arm it. An armed session takes a step before its next request of a kind, which
// then has a fate.
func meanwhile(t *testing.T, addr string, op int32, what fate) (s *session, arm func(step func())) {
	t.Helper()
	var armed atomic.Pointer[func()]
	s = open(t, tap(t, addr, func(is int32, _ string) fate {
		if is == op {
			if step := armed.Swap(nil); step != nil {
				(*step)()
				return what
			}
		}
		return arrives
	}), time.Minute)
	return s, func(step func()) { armed.Store(&step) }
}

var three = engine.Spec{Kind: engine.KindSemaphore, Capacity: 3}

// barges returns the same use of a resource, barging.
func barges(spec engine.Spec) engine.Spec {
	spec.Barging = true
	return spec
}

// TestFolderIsMadeAnew: a claim is about to hold, because nobody wrote the folder since it looked. Meanwhile ZooKeeper removes the
// empty folder, and another claim makes the folder anew and holds all. The versions of the new folder are those of the old one. A
// claim whose answer is lost does not hold either, and its owner cannot share what the claim has not.
func TestFolderIsMadeAnew(t *testing.T) {
	for _, row := range []struct {
		spec   engine.Spec
		weight int64
		wait   bool
		beside bool // another claim holds when the claim looks
	}{
		{fair, fair.Capacity, false, false},
		{three, 1, false, false},
		{three, 1, false, true},
		{barging, barging.Capacity, false, false},
		{barging, barging.Capacity, true, false},
		{barges(three), 1, false, true},
		{barges(three), 1, true, false},
		{barges(three), 1, true, true},
	} {
		for what, name := range map[fate]string{arrives: "answered", isNotAnswered: "not answered"} {
			t.Run(fmt.Sprintf("%v %d wait %v beside %v %s", row.spec, row.weight, row.wait, row.beside, name), func(t *testing.T) {
				intoAnotherFolder(t, row.spec, row.weight, row.wait, row.beside, what)
			})
		}
	}
}

func intoAnotherFolder(t *testing.T, spec engine.Spec, weight int64, wait, beside bool, what fate) {
	addr := testservers.SharedZooKeeper(t).Addr
	near, conn := open(t, newEngine(t, addr), time.Minute), raw(t, addr)
	s, arm := meanwhile(t, addr, opMulti, what)
	first, held := sessiontest.Claim(t, spec, weight, ""), sessiontest.Whole(t, spec)
	late, shares := sessiontest.Claim(t, spec, weight, "owner"), sessiontest.Claim(t, spec, weight, "owner")
	for _, c := range []*engine.Claim{first, held, late, shares} {
		c.Resource = fmt.Sprint("anew/", late.ID, time.Now().Unix()) // has no folder yet
	}
	sessiontest.Hold(t, near, first)
	if !beside {
		sessiontest.Leave(t, near, first)
	}
	arm(func() {
		if beside {
			sessiontest.Leave(t, near, first)
		}
		folder, _ := near.engine.folder(late.Resource)
		if err := conn.Delete(folder, -1); err != nil && !errors.Is(err, zk.ErrNoNode) {
			t.Error(err)
		}
		sessiontest.Hold(t, near, held)
	})
	g, err := s.Enter(sessiontest.Soon(t), late, wait)
	if what == isNotAnswered {
		if !errors.Is(err, engine.ErrUnavailable) {
			t.Fatalf("not answered: got %v, %v", g, err)
		}
		sessiontest.Refuse(t, near, shares, false, engine.ErrBusy)
		err = again(t, "enter", func() (err error) { g, err = s.Enter(sessiontest.Soon(t), late, wait); return err })
	}
	claims, want := 1, engine.ErrBusy
	if wait {
		claims, want = 2, nil
	}
	if g.Held() || !errors.Is(err, want) {
		t.Errorf("beside a holder: got %v, %v", g, err)
	}
	sessiontest.Refuse(t, near, shares, false, engine.ErrBusy)
	if r, err := near.engine.Show(sessiontest.Soon(t), late.Resource); err != nil || len(r.Claims) != claims || len(s.places) != claims-1 {
		t.Errorf("in the store: %+v, %v; %d places", r, err, len(s.places))
	}
	sessiontest.Leave(t, near, held)
	if wait {
		if token, shared := sessiontest.Await(t, s, late), sessiontest.Hold(t, near, shares); token != shared {
			t.Errorf("token %v, shared %v", token, shared)
		}
	}
}

// TestReckonsTheFolder: the name of a barging holder has the czxid of the folder, which counts among the bytes of the session.
func TestReckonsTheFolder(t *testing.T) {
	s := open(t, shared(t), time.Minute)
	for range 2 { // the first one makes the folder
		c := sessiontest.Whole(t, barging)
		sessiontest.Hold(t, s, c)
		if p := s.places[c.ID]; length+len(p.path) > p.bytes {
			t.Errorf("%s takes %d bytes, reckoned %d", p.path, length+len(p.path), p.bytes)
		}
		sessiontest.Leave(t, s, c)
	}
}

// TestShareTheLargestToken: the owner of a claim takes more, by another client, after the claim looked and before it shares.
func TestShareTheLargestToken(t *testing.T) {
	addr := testservers.SharedZooKeeper(t).Addr
	for name, row := range map[string]struct {
		spec  engine.Spec
		more  int64
		waits bool
	}{
		"lock":                         {fair, fair.Capacity, false},
		"barging permits":              {barges(three), 2, false},
		"barging permits, of a waiter": {barges(three), 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			near := open(t, newEngine(t, addr), time.Minute)
			s, arm := meanwhile(t, addr, opMulti, arrives)
			owner := "owner of " + t.Name()
			held := sessiontest.Whole(t, row.spec)
			one, more, shares := sessiontest.Claim(t, row.spec, 1, owner), sessiontest.Claim(t, row.spec, row.more, owner), sessiontest.Claim(t, row.spec, 1, owner)
			if row.waits {
				sessiontest.Hold(t, near, held)
				sessiontest.Wait(t, s, shares)
				sessiontest.Leave(t, near, held)
			}
			small := sessiontest.Hold(t, near, one)
			taken := make(chan fence.Token, 1)
			arm(func() { taken <- sessiontest.Hold(t, near, more) })
			ask := func() (engine.Grant, error) { return s.Enter(sessiontest.Soon(t), shares, false) }
			if row.waits {
				ask = func() (engine.Grant, error) { return s.Await(sessiontest.Soon(t), shares) }
			}
			g, err := ask()
			if large := <-taken; err != nil || g.Token != large || large <= small {
				t.Errorf("beside the tokens %v and %v a claim has %v, %v", small, large, g, err)
			}
		})
	}
}

// TestNoRoomToShare: a session has no bytes left for a re-entry. The re-entry waits for nothing, and nobody waits for it.
func TestNoRoomToShare(t *testing.T) {
	e := shared(t)
	s := open(t, e, time.Minute)
	held := sessiontest.Whole(t, fair)
	shares := sessiontest.Claim(t, fair, fair.Capacity, held.Owner)
	sessiontest.Hold(t, s, held)
	s.mu.Lock()
	used := s.bytes
	s.bytes = mostBytes - used - 50 // the name of the second is longer by its owner, and a mark would not fit
	s.mu.Unlock()
	for range 2 {
		sessiontest.Refuse(t, s, shares, true, engine.ErrUnsupported)
		if r, err := e.Show(sessiontest.Soon(t), held.Resource); err != nil || len(r.Claims) != 1 || len(s.places) != 1 {
			t.Errorf("in the store: %+v, %v; %d places", r, err, len(s.places))
		}
	}
	if left := s.bytes - (mostBytes - used - 50); left != 0 {
		t.Errorf("%d bytes of a claim that was refused", left)
	}
	s.bytes = used
	sessiontest.Hold(t, s, shares)
}

// TestNoRoomToShareLater: a claim that waited has no room to share, however often its client asks. When there is room, the claim shares.
func TestNoRoomToShareLater(t *testing.T) {
	e := shared(t)
	near, s := open(t, e, time.Minute), open(t, e, time.Minute)
	held := sessiontest.Whole(t, fair)
	one, other := sessiontest.Claim(t, fair, fair.Capacity, "owner"), sessiontest.Claim(t, fair, fair.Capacity, "owner")
	sessiontest.Hold(t, near, held)
	sessiontest.Wait(t, s, one)
	sessiontest.Wait(t, s, other)
	s.mu.Lock()
	used := s.bytes
	s.bytes = mostBytes - 10
	s.mu.Unlock()
	sessiontest.Leave(t, near, held)
	token := sessiontest.Await(t, s, one)
	for range 2 {
		if g, err := s.Await(sessiontest.Soon(t), other); !errors.Is(err, engine.ErrUnsupported) {
			t.Errorf("got %v, %v", g, err)
		}
	}
	s.mu.Lock()
	s.bytes = used
	s.mu.Unlock()
	if is := sessiontest.Await(t, s, other); is != token {
		t.Errorf("token %v, shared %v", token, is)
	}
}

// TestRefusedAfterALostAnswer: a claim came in, and its answer was lost. The claim is refused when its client asks again, and does not stay.
func TestRefusedAfterALostAnswer(t *testing.T) {
	addr := testservers.SharedZooKeeper(t).Addr
	near := open(t, newEngine(t, addr), time.Minute)
	s, arm := meanwhile(t, addr, opMulti, isNotAnswered)
	held, other := sessiontest.Whole(t, fair), sessiontest.Whole(t, five)
	sessiontest.Hold(t, near, held)
	arm(func() {})
	if g, err := s.Enter(sessiontest.Soon(t), other, true); !errors.Is(err, engine.ErrUnavailable) {
		t.Fatalf("not answered: got %v, %v", g, err)
	}
	if err := again(t, "enter", func() error { _, err := s.Enter(sessiontest.Soon(t), other, true); return err }); !errors.Is(err, engine.ErrMismatch) {
		t.Errorf("got %v", err)
	}
	folder, _ := near.engine.folder(held.Resource)
	if l, err := near.link.read(sessiontest.Soon(t), folder); err != nil || len(l.Claims) != 1 || len(s.places) > 0 { // Show does not list it
		t.Errorf("in the store: %+v, %v; %d places", l, err, len(s.places))
	}
}

// TestDeleteNothing: a value is deleted that is not there as far as the server knows. The server catches up before the answer.
func TestDeleteNothing(t *testing.T) {
	addr := testservers.SharedZooKeeper(t).Addr
	near, key := newEngine(t, addr), fmt.Sprint(t.Name(), time.Now().UnixNano())
	armed := true
	e := tap(t, addr, func(op int32, _ string) fate {
		if op == opSync && armed {
			armed = false
			if _, err := near.Put(sessiontest.Soon(t), key, []byte("x"), 0); err != nil {
				t.Error(err)
			}
		}
		return arrives
	})
	if _, err := e.Put(sessiontest.Soon(t), key, nil, 0); !errors.Is(err, engine.ErrConflict) {
		t.Errorf("got %v", err)
	}
}
