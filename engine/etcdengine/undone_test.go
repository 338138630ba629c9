package etcdengine

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestReleaseThatCameUndone: a server starts again from an older state, in which there is a
// claim that has left since. The session is told of it by its next renewal. A tomb of the claim came undone, too.
func TestReleaseThatCameUndone(t *testing.T) {
	for _, inDoubt := range []bool{false, true} {
		t.Run(fmt.Sprint(inDoubt), func(t *testing.T) {
			t.Parallel()
			releaseThatCameUndone(t, inDoubt)
		})
	}
}

func releaseThatCameUndone(t *testing.T, inDoubt bool) {
	server := testservers.Etcd(t)
	client, _ := newClientOf(t, server.Addr)
	e, found := New(client, nil), make(chan string, 10)
	s, err := e.Open(ctx, engine.SessionOptions{TTL: time.Minute, Found: func(resource, claim string) { found <- resource + " " + claim }})
	if err != nil {
		t.Fatal(err)
	}
	renew := func(held ...*engine.Claim) {
		t.Helper()
		sessiontest.Until(t, "renewed", func() bool {
			gone, err := s.Renew(sessiontest.Soon(t), held)
			return err == nil && len(gone) == 0
		})
	}
	stays, left := sessiontest.Whole(t, fair), sessiontest.Whole(t, two)
	left.Resource += "/left ö"
	sessiontest.Hold(t, s, stays)
	if inDoubt {
		enterInDoubt(s, left)
	}
	sessiontest.Hold(t, s, left)
	renew(stays, left)
	restore := server.Snapshot()
	renew(stays, left)
	sessiontest.Leave(t, s, left)
	renew(stays)
	if len(found) > 0 {
		t.Errorf("found %q", <-found)
	}
	restore()
	sessiontest.Until(t, "it is found", func() bool { renew(stays); return len(found) > 0 })
	if is := <-found; is != left.Resource+" "+left.ID || len(found) > 0 {
		t.Errorf("found %q and %d more", is, len(found))
	}
	sessiontest.Leave(t, s, left)
	if err := s.Close(sessiontest.Soon(t)); err != nil {
		t.Error(err)
	}
}

// TestNextMeetsAClaimThatCameUndone: as TestReleaseThatCameUndone, and the next claim of the session wants the key of the claim
// that came back. The next claim waits until the client has left the other, and has a token of its own.
func TestNextMeetsAClaimThatCameUndone(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	client, _ := newClientOf(t, server.Addr)
	found := make(chan string, 10)
	s, err := New(client, nil).Open(ctx, engine.SessionOptions{TTL: time.Minute, Found: func(_, claim string) { found <- claim }})
	if err != nil {
		t.Fatal(err)
	}
	left, next := sessiontest.Whole(t, fair), sessiontest.Whole(t, fair)
	token := sessiontest.Hold(t, s, left)
	restore := server.Snapshot()
	sessiontest.Until(t, "renewed", func() bool { _, err := s.Renew(sessiontest.Soon(t), nil); return err == nil })
	sessiontest.Leave(t, s, left)
	restore()
	got, soon := make(chan fence.Token, 1), sessiontest.Soon(t)
	go func() { // as the root package does
		grant, err := s.Enter(soon, next, true)
		for errors.Is(err, engine.ErrUnavailable) {
			grant, err = s.Enter(soon, next, true)
		}
		if err == nil && !grant.Held() {
			grant, err = s.Await(soon, next)
		}
		if err != nil {
			t.Error(err)
		}
		got <- grant.Token
	}()
	var is fence.Token
	sessiontest.Until(t, "the next holds", func() bool {
		_, err := s.Renew(soon, nil)
		select {
		case claim := <-found:
			if claim == left.ID {
				err = s.Leave(soon, left.Resource, claim)
			}
		case is = <-got:
			return true
		default:
		}
		if err != nil && !errors.Is(err, engine.ErrUnavailable) {
			t.Error(err)
		}
		return false
	})
	if is <= token {
		t.Errorf("token %v after %v", is, token)
	}
}

// TestGrantThatCameUndone: the snapshot has an earlier claim under the key of a holder. The holder is told that its claim is
// gone, and the client is told of the earlier claim.
func TestGrantThatCameUndone(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	client, _ := newClientOf(t, server.Addr)
	var found []string
	s, err := New(client, nil).Open(ctx, engine.SessionOptions{TTL: time.Minute, Found: func(_, claim string) { found = append(found, claim) }})
	if err != nil {
		t.Fatal(err)
	}
	left, stays, holds := sessiontest.Claim(t, fair, 1, ""), sessiontest.Claim(t, fair, 1, ""), sessiontest.Claim(t, fair, 2, "")
	sessiontest.Hold(t, s, left)
	sessiontest.Hold(t, s, stays)
	restore := server.Snapshot()
	renew := func(held ...*engine.Claim) (gone []*engine.Claim) {
		t.Helper()
		sessiontest.Until(t, "renewed", func() (done bool) {
			gone, err = s.Renew(sessiontest.Soon(t), held)
			return err == nil
		})
		return gone
	}
	renew()
	sessiontest.Leave(t, s, left)
	sessiontest.Hold(t, s, holds)
	if gone := renew(holds, stays); len(gone) > 0 {
		t.Errorf("%v are gone", gone)
	}
	restore()
	if gone := renew(holds, stays); len(gone) != 1 || gone[0] != holds {
		t.Errorf("%v are gone, want %v", gone, holds)
	}
	sessiontest.Until(t, "the earlier claim is found", func() bool { renew(stays); return len(found) > 0 })
	if len(found) != 1 || found[0] != left.ID {
		t.Errorf("found %q", found)
	}
}
