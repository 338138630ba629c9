package inbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
)

const beat = time.Minute

// store is how a session is asked for its claims, and what it answers.
type store struct {
	began time.Time

	mu     sync.Mutex
	asked  map[string][]time.Duration // when each claim asked
	answer Ask
}

func newStore() *store {
	s := &store{began: time.Now(), asked: make(map[string][]time.Duration)}
	s.answers(engine.Grant{}, 0, nil)
	return s
}

func (s *store) answers(grant engine.Grant, pause time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = func(context.Context) (engine.Grant, time.Duration, error) { return grant, pause, err }
}

func (s *store) ask(claim string) Ask {
	return func(ctx context.Context) (engine.Grant, time.Duration, error) {
		s.mu.Lock()
		s.asked[claim] = append(s.asked[claim], time.Since(s.began))
		answer := s.answer
		s.mu.Unlock()
		return answer(ctx)
	}
}

// all returns how often claims have asked.
func (s *store) all() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, times := range s.asked {
		n += len(times)
	}
	return n
}

func claim(id string) *engine.Claim { return &engine.Claim{Resource: "resource", ID: id} }

type answer struct {
	engine.Grant
	err error
}

// enters enters a claim that waits in the store, and awaits it.
func enters(t *testing.T, b *Inbox, s *store, id string) <-chan answer {
	t.Helper()
	got, err := b.Enter(t.Context(), claim(id), true, func(context.Context) (engine.Grant, time.Duration, error) { return engine.Grant{}, 0, nil })
	if err != nil || got.Held() {
		t.Fatal(got, err)
	}
	return awaits(t, b, s, id)
}

func awaits(t *testing.T, b *Inbox, s *store, id string) <-chan answer {
	done := make(chan answer, 1)
	go func() {
		grant, err := b.Await(t.Context(), claim(id), s.ask(id))
		done <- answer{grant, err}
	}()
	synctest.Wait()
	return done
}

func (s *store) want(t *testing.T, claim string, at ...time.Duration) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if fmt.Sprint(s.asked[claim]) != fmt.Sprint(at) {
		t.Errorf("%s asked at %v, want %v", claim, s.asked[claim], at)
	}
}

// TestTold: the message of a grant is enough, and it may come before the answer of Enter.
func TestTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := New(Options{Heartbeat: beat}), newStore()
		done := enters(t, b, s, "later")
		b.Receive("later", 7, false)
		if got := <-done; got.Token != 7 || got.err != nil {
			t.Error(got)
		}
		_, err := b.Enter(t.Context(), claim("sooner"), true, func(context.Context) (engine.Grant, time.Duration, error) {
			if !b.Receive("sooner", 8, false) {
				t.Error("the inbox does not know a claim that enters")
			}
			return engine.Grant{}, 0, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := <-awaits(t, b, s, "sooner"); got.Token != 8 || got.err != nil {
			t.Error(got)
		}
		s.want(t, "later")
		s.want(t, "sooner")
		if b.Len() > 0 || len(b.lines) > 0 || b.Receive("later", 7, false) {
			t.Error("the inbox keeps what was granted")
		}
	})
}

// TestVerify: a message of a grant has the claim ask, where that is not enough.
func TestVerify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := New(Options{Heartbeat: beat, Verify: true}), newStore()
		done := enters(t, b, s, "a")
		s.answers(engine.Grant{Token: 9}, 0, nil)
		b.Receive("a", 8, false)
		if got := <-done; got.Token != 9 || got.err != nil {
			t.Error(got)
		}
		s.want(t, "a", 0)
	})
}

// TestAsks: without messages each claim asks once a heartbeat, or sooner where the store says so; of
// claims that ask together one does.
func TestAsks(t *testing.T) {
	for _, together := range []bool{false, true} {
		t.Run(fmt.Sprintf("together %v", together), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, s := New(Options{Heartbeat: beat, Together: together}), newStore()
				enters(t, b, s, "a")
				enters(t, b, s, "b")
				claims := 2
				if together {
					claims = 1
				}
				s.answers(engine.Grant{}, 2*beat, nil) // longer than a claim relies on messages
				<-time.After(beat + beat/2)
				s.answers(engine.Grant{}, beat/4, nil)
				<-time.After(beat + beat/8)
				if n, want := s.all(), claims*(1+3); n != want { // at 1; at 2, 2.25 and 2.5
					t.Errorf("asked %d times, want %d: %v", n, want, s.asked)
				}
				if together && !b.WaitsFor("resource") {
					t.Error("nothing waits for the resource")
				}
				for _, id := range []string{"a", "b"} {
					b.Receive(id, 1, false)
				}
				synctest.Wait()
				if b.Len() > 0 || b.WaitsFor("resource") {
					t.Error("a claim still waits")
				}
			})
		})
	}
}

// TestUnknownAsks: a claim of which nothing is known, as after a lost answer, asks at once. A claim
// asks at once after an error as well, and still waits.
func TestUnknownAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := New(Options{Heartbeat: beat}), newStore()
		away := errors.New("the store is away")
		s.answers(engine.Grant{}, 0, away)
		for range 2 {
			if got := <-awaits(t, b, s, "a"); !errors.Is(got.err, away) || !b.Waits("a") {
				t.Error(got, b.Waits("a"))
			}
		}
		done := enters(t, b, s, "stored")
		b.Receive("stored", 0, false)
		if got := <-done; !errors.Is(got.err, away) {
			t.Error(got)
		}
		if got := <-awaits(t, b, s, "stored"); !errors.Is(got.err, away) {
			t.Error(got)
		}
		s.want(t, "stored", 0, 0)
		s.answers(engine.Grant{}, 0, engine.ErrGone)
		if got := <-awaits(t, b, s, "a"); !errors.Is(got.err, engine.ErrGone) || b.Waits("a") {
			t.Error(got, b.Waits("a"))
		}
		s.want(t, "a", 0, 0, 0)
	})
}

// TestLook: claims ask when messages may have been lost, and once only.
func TestLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := New(Options{Heartbeat: beat, Together: true}), newStore()
		enters(t, b, s, "a")
		enters(t, b, s, "b")
		for _, w := range b.All() {
			w.Look()
		}
		synctest.Wait()
		s.want(t, "a", 0)
		s.want(t, "b", 0)
		b.Receive("a", 1, false)
		b.Receive("b", 2, false)
		synctest.Wait()
	})
}

// TestRemoved: a waiter learns that it was removed, also when that message comes after the answer of the
// store. The client is told of a removed claim that does not wait.
func TestRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gone []string
		b, s := New(Options{Heartbeat: beat, Gone: func(claim string) { gone = append(gone, claim) }}), newStore()
		s.answer = func(context.Context) (engine.Grant, time.Duration, error) {
			<-b.Removed("a")
			return engine.Grant{}, 0, engine.ErrGone
		}
		done := enters(t, b, s, "a")
		b.All()[0].Look()
		synctest.Wait()
		for range 2 {
			b.Receive("a", 0, true)
		}
		if got := <-done; !errors.Is(got.err, engine.ErrGone) {
			t.Error(got)
		}
		b.Receive("held", 0, true)
		if fmt.Sprint(gone) != "[held]" {
			t.Errorf("told of %v", gone)
		}
	})
}

// TestForgotten: a claim that left is in no line, and its Await ends with its context only.
func TestForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Options{Heartbeat: beat})
		for _, wait := range []bool{false, true} {
			away := errors.New("the store is away")
			if _, err := b.Enter(t.Context(), claim("a"), wait, func(context.Context) (engine.Grant, time.Duration, error) {
				if b.Waits("a") != wait {
					t.Error("a claim that only tries waits, or one that waits does not")
				}
				return engine.Grant{}, 0, away
			}); !errors.Is(err, away) || b.Len() > 0 {
				t.Error(err, b.Len())
			}
		}
		s := newStore()
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error, 1)
		go func() { _, err := b.Await(ctx, claim("a"), s.ask("a")); done <- err }()
		synctest.Wait()
		if w := b.Forget("a"); w == nil || w.Claim.ID != "a" || b.Forget("a") != nil || len(b.lines) > 0 {
			t.Error(w, b.lines)
		}
		why := errors.New("why")
		cancel(why)
		if err := <-done; !errors.Is(err, why) {
			t.Error(err)
		}
		b.Receive("a", fence.Token(1), false)
	})
}

// TestOneAsks: while one claim of a line asks, and the answer takes its time, the others rest.
func TestOneAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := New(Options{Heartbeat: beat, Together: true}), newStore()
		s.answer = func(context.Context) (engine.Grant, time.Duration, error) {
			<-time.After(beat / 2)
			return engine.Grant{}, 0, nil
		}
		for _, id := range []string{"a", "b", "c"} {
			enters(t, b, s, id)
		}
		<-time.After(beat + beat/4)
		if n := s.all(); n != 1 {
			t.Errorf("%d claims ask", n)
		}
		for _, w := range b.All() {
			b.Receive(w.Claim.ID, 1, false)
		}
		<-time.After(beat)
	})
}

// TestAskerLeaves: the claim that asked for its line stops to wait before it is to ask again, or even before
// the answer. Another claim of the line looks in its place. The end of any other claim asks for nothing.
func TestAskerLeaves(t *testing.T) {
	const takes = beat / 100
	for name, leaves := range map[string]time.Duration{"after the answer": 2 * takes, "before the answer": takes / 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, s := New(Options{Heartbeat: beat, Together: true}), newStore()
				s.answer = func(ctx context.Context) (engine.Grant, time.Duration, error) {
					select {
					case <-time.After(takes):
						return engine.Grant{}, beat / 20, nil
					case <-ctx.Done():
						return engine.Grant{}, 0, context.Cause(ctx)
					}
				}
				ends := make(map[string]func())
				for _, id := range []string{"a", "b", "c", "d"} {
					ctx, cancel := context.WithCancel(t.Context())
					ends[id] = func() { cancel(); synctest.Wait(); b.Forget(id) }
					defer cancel()
					b.Enter(ctx, claim(id), true, func(context.Context) (engine.Grant, time.Duration, error) { return engine.Grant{}, 0, nil }) //nolint:errcheck // it waits
					go b.Await(ctx, claim(id), s.ask(id))                                                                                       //nolint:errcheck // it ends with ctx
				}
				<-time.After(beat + leaves)
				synctest.Wait()
				first := slices.Collect(maps.Keys(s.asked))
				s.answers(engine.Grant{}, 0, nil)
				for _, id := range first {
					ends[id]()
				}
				synctest.Wait()
				second := slices.DeleteFunc(slices.Collect(maps.Keys(s.asked)), func(id string) bool { return slices.Contains(first, id) })
				if len(first) != 1 || len(second) != 1 {
					t.Fatalf("asked %v, and then %v", first, second)
				}
				for id, end := range ends {
					if s.asked[id] == nil {
						end()
						break
					}
				}
				<-time.After(beat / 2)
				if s.want(t, second[0], beat+leaves); s.all() != 2 {
					t.Errorf("asked %v", s.asked)
				}
			})
		})
	}
}
