// Package sessiontest holds the steps of a session that tests of engines take. A step fails its
// test unless the step ends as its name says.
package sessiontest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
)

// The uses of resources.
var (
	Fair    = engine.Spec{Kind: engine.KindLock, Capacity: engine.LockCapacity}
	Barging = engine.Spec{Kind: engine.KindLock, Capacity: engine.LockCapacity, Barging: true}
	Five    = engine.Spec{Kind: engine.KindSemaphore, Capacity: 5}
)

const (
	patience = time.Minute      // what a busy machine needs
	farewell = 10 * time.Second // to a store that may be away
)

// Soon bounds a step that should happen at once on a machine that is not busy.
func Soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// Until looks again and again until done says so.
func Until(t testing.TB, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !done(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// Open opens a session, which the end of the test closes. The session may be gone by then, or its
// store away.
func Open(t testing.TB, e engine.Engine, ttl time.Duration) engine.Session {
	t.Helper()
	s, err := e.Open(Soon(t), engine.SessionOptions{TTL: ttl, Label: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), farewell)
		defer cancel()
		s.Close(ctx) //nolint:errcheck // the session may be gone
	})
	return s
}

var claims atomic.Int64

// Claim returns a new claim to the resource of the test. An empty owner stands for an owner of its
// own.
func Claim(t testing.TB, spec engine.Spec, weight int64, owner string) *engine.Claim {
	id := fmt.Sprintf("%s/%d", t.Name(), claims.Add(1))
	if owner == "" {
		owner = id
	}
	return &engine.Claim{Spec: spec, Resource: "test/" + t.Name(), ID: id, Owner: owner, Weight: weight, Label: "label of " + id}
}

// Whole returns a new claim to all of the resource, of an owner of its own.
func Whole(t testing.TB, spec engine.Spec) *engine.Claim { return Claim(t, spec, spec.Capacity, "") }

// Enter enters, to hold or to wait.
func Enter(t testing.TB, s engine.Session, c *engine.Claim) engine.Grant {
	t.Helper()
	grant, err := s.Enter(Soon(t), c, true)
	if err != nil {
		t.Fatalf("enter %s: %v", c.ID, err)
	}
	return grant
}

// Hold enters and holds at once.
func Hold(t testing.TB, s engine.Session, c *engine.Claim) fence.Token {
	t.Helper()
	grant := Enter(t, s, c)
	if !grant.Held() {
		t.Fatalf("enter %s: it waits; want a grant", c.ID)
	}
	return grant.Token
}

// Wait enters and has to wait.
func Wait(t testing.TB, s engine.Session, c *engine.Claim) {
	t.Helper()
	if grant := Enter(t, s, c); grant.Held() {
		t.Fatalf("enter %s: got %v; want to wait", c.ID, grant)
	}
}

// Refuse enters, or tries if the claim may not wait, and meets an error.
func Refuse(t testing.TB, s engine.Session, c *engine.Claim, wait bool, want error) {
	t.Helper()
	if grant, err := s.Enter(Soon(t), c, wait); !errors.Is(err, want) {
		t.Fatalf("enter %s: got %v, %v; want %v", c.ID, grant, err, want)
	}
}

// Answer is the result of Await, with its time.
type Answer struct {
	engine.Grant
	Err error
	At  time.Time
}

// Awaiting awaits in the background.
func Awaiting(t testing.TB, s engine.Session, c *engine.Claim) <-chan Answer {
	got, ctx := make(chan Answer, 1), Soon(t)
	go func() {
		grant, err := s.Await(ctx, c)
		got <- Answer{grant, err, time.Now()}
	}()
	return got
}

// Granted waits until the awaiting claim holds.
func Granted(t testing.TB, got <-chan Answer) Answer {
	t.Helper()
	a := <-got
	if a.Err != nil || !a.Held() {
		t.Fatalf("await: got %v, %v; want a grant", a.Grant, a.Err)
	}
	return a
}

// Await awaits and then holds.
func Await(t testing.TB, s engine.Session, c *engine.Claim) fence.Token {
	t.Helper()
	grant, err := s.Await(Soon(t), c)
	if err != nil || !grant.Held() {
		t.Fatalf("await %s: got %v, %v; want a grant", c.ID, grant, err)
	}
	return grant.Token
}

// Leave leaves.
func Leave(t testing.TB, s engine.Session, c *engine.Claim) {
	t.Helper()
	if err := s.Leave(Soon(t), c.Resource, c.ID); err != nil {
		t.Fatalf("leave %s: %v", c.ID, err)
	}
}

// Evict takes a claim away, as an operator does.
func Evict(t testing.TB, e engine.Engine, c *engine.Claim) {
	t.Helper()
	if err := e.Evict(Soon(t), c.Resource, c.ID); err != nil {
		t.Fatalf("evict %s: %v", c.ID, err)
	}
}
