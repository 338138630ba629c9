package redisengine

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestStepsGoTogether: what a busy session asks for goes in few requests, each
// step has its own answer, and the error of one is no other's.
func TestStepsGoTogether(t *testing.T) {
	client := dial(t, testservers.Redis(t).Addr)
	eng := New(client, nil)
	awaitGrace(t, eng)
	opened, err := eng.Open(t.Context(), engine.SessionOptions{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	s := opened.(*session)
	defer s.Close(t.Context())
	broken := eng.keys("broken", "")[0]
	if err := client.Do(t.Context(), client.B().Hset().Key(broken).FieldValue().FieldValue("a", "string").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	const many = 200
	s.batch.mu.Lock() // nothing is sent until all of them wait
	s.batch.flying = maxFlying
	s.batch.mu.Unlock()
	var all sync.WaitGroup
	errs := make([]error, many)
	for i := range many {
		name := "n" + strconv.Itoa(i)
		if i == 7 {
			name = "broken"
		}
		all.Go(func() { errs[i] = enterLeaveTwice(s, name, i) })
	}
	for waiting := 0; waiting < many; {
		s.batch.mu.Lock()
		waiting = len(s.batch.waiting)
		s.batch.mu.Unlock()
	}
	before := scriptCalls(t, client)
	s.landed()
	all.Wait()
	for i, err := range errs {
		if i == 7 {
			if !errors.Is(err, engine.ErrUnavailable) {
				t.Errorf("a key of another type: %v", err)
			}
		} else if err != nil {
			t.Errorf("step %d: %v", i, err)
		}
	}
	if calls := scriptCalls(t, client) - before; calls > 3*many/4 {
		t.Errorf("%d steps took %d requests", 3*many, calls)
	}
}

// TestGivenUpIsNotSent: a step whose caller has gone while it waited for others is
// not sent any more, and leaves no place for one of those.
func TestGivenUpIsNotSent(t *testing.T) {
	eng := New(dial(t, testservers.SharedRedis(t).Addr), nil)
	awaitGrace(t, eng)
	s := visit(t, eng, time.Minute, "given up")
	s.batch.mu.Lock()
	s.batch.flying = maxFlying
	s.batch.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := s.Leave(ctx, s.name, "nobody's"); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	s.batch.mu.Lock()
	defer s.batch.mu.Unlock()
	if n := len(s.batch.waiting); n > 0 {
		t.Errorf("%d steps wait", n)
	}
	s.batch.flying = 0
}

// TestDemotedInBatch: a step of a batch that a replica refuses has the scripts be loaded anew, as
// a step alone does.
func TestDemotedInBatch(t *testing.T) {
	s := sessionOn(answering{answer: func(context.Context, Command) Reply {
		return Reply{Value: []any{int64(1), errors.New("READONLY You can't write against a read only replica.")}}
	}}, nil, time.Minute)
	s.life, s.end = context.WithCancel(t.Context())
	defer s.end()
	steps := make([]*step, 2)
	for i := range steps {
		steps[i] = &step{leave, s.engine.keys("name", ""), [4]string{}, make(chan Reply, 1)}
	}
	s.batch.flying = 1
	s.fly(steps)
	if one, other := <-steps[0].done, <-steps[1].done; one.Err != nil || !other.says("READONLY") {
		t.Errorf("answers %+v and %+v", one, other)
	}
	if s.engine.suspected.Load() == s.engine.cleared.Load() {
		t.Error("not noticed")
	}
}

// enterLeaveTwice takes a free lock and leaves it, and finds that it has left.
func enterLeaveTwice(s *session, name string, i int) error {
	id := s.id + "." + strconv.Itoa(i)
	g, err := s.Enter(context.Background(), &engine.Claim{
		Spec:     engine.Spec{Kind: engine.KindLock, Capacity: engine.LockCapacity},
		Resource: name, ID: id, Owner: id, Weight: engine.LockCapacity,
	}, true)
	if err == nil && !g.Held() {
		return errors.New("not granted")
	}
	if err == nil {
		err = s.Leave(context.Background(), name, id)
	}
	if err != nil {
		return err
	}
	if err := s.Leave(context.Background(), name, id); !errors.Is(err, engine.ErrGone) {
		return fmt.Errorf("left again: %v", err)
	}
	return nil
}

var evalsha = regexp.MustCompile(`cmdstat_evalsha:calls=(\d+)`)

func scriptCalls(t *testing.T, c rueidis.Client) int {
	t.Helper()
	text, err := c.Do(t.Context(), c.B().Info().Section("commandstats").Build()).ToString()
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(evalsha.FindStringSubmatch(text)[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}
