package sequence

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pawl-go/pawl"
)

// request is a call that waits for numbers. The fields are guarded by the mutex of the
// Sequence until done is closed.
type request struct {
	want int
	got  []int64
	tick uint64 // when it came
	err  error
	done chan struct{}
}

func (r *request) finish(err error) {
	r.err = err
	close(r.done)
}

// laneState is the rest that is known of a database.
type laneState struct {
	err  error
	tick uint64 // when it failed last
}

// maxBlock is how many numbers one statement takes at most.
const maxBlock = 1 << 20

func (s *Sequence) enqueue(r *request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.ticks++
	r.tick = s.ticks
	s.queue = append(s.queue, r)
	s.kick()
	return true
}

// withdraw ends a call that gives up, unless it has ended.
func (s *Sequence) withdraw(r *request, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.queue, r); i >= 0 {
		s.queue = slices.Delete(s.queue, i, i+1)
		r.finish(err)
	}
}

// why is the end of ctx, with the errors of the databases, if there are any.
func (s *Sequence) why(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := named(s.errs()); err != nil {
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return pawl.Unavailable(ctx, ctx.Err()) // no database has answered yet
}

func (s *Sequence) errs() []error {
	all := make([]error, len(s.states))
	for i, h := range s.plan.lanes {
		if !h.good {
			all[i] = s.states[i].err
		}
	}
	return all
}

func (s *Sequence) now() time.Duration { return time.Since(s.since) }

// kick starts statements for numbers that no other statement brings soon, and looks at
// databases that failed. The caller has the mutex.
func (s *Sequence) kick() {
	if s.closed {
		return
	}
	need := -s.asked
	for _, r := range s.queue {
		need += int64(r.want - len(r.got))
	}
	for need > 0 {
		i, ok := s.plan.next()
		if !ok {
			break
		}
		n := min(need, maxBlock)
		need -= n
		s.plan.begin(i)
		s.asked += n
		tick := s.ticks
		s.wg.Go(func() { s.ask(i, n, tick) })
	}
	waiting := len(s.queue) > 0
	for i, ok := s.plan.due(s.now(), waiting); ok; i, ok = s.plan.due(s.now(), waiting) {
		s.plan.begin(i)
		s.wg.Go(func() { s.lookAgain(i) })
	}
	if at, ok := s.plan.wake(waiting); ok {
		if s.wake != nil {
			s.wake.Stop()
		}
		s.wake = time.AfterFunc(max(at-s.now(), 0), func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.kick()
		})
	}
}

// ask takes n numbers of a database. The numbers are for the calls that came up to a tick. When that
// takes long, other databases are asked for as many. The late numbers are for calls that
// still wait.
func (s *Sequence) ask(i int, n int64, tick uint64) {
	ctx, cancel := context.WithTimeout(s.base, s.timeout)
	defer cancel()
	open := true // guarded by the mutex: counted on still
	release := func() {
		if open {
			open = false
			s.asked -= n
		}
	}
	late := time.AfterFunc(s.timeout/8, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		release()
		s.kick()
	})
	defer late.Stop()
	count, err := s.counts[i].Add(ctx, n)
	var last int64
	if err == nil {
		last, err = s.number(i, count)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	release()
	if err == nil {
		s.deal(last-(n-1)*s.step, n, tick)
	}
	s.ended(i, was(err, gave), err)
}

// deal hands numbers out, to calls that came before they were asked for: a later call may
// have seen larger ones.
func (s *Sequence) deal(first, n int64, tick uint64) {
	for len(s.queue) > 0 && n > 0 && s.queue[0].tick <= tick {
		r := s.queue[0]
		for ; n > 0 && len(r.got) < r.want; n-- {
			r.got = append(r.got, first)
			first += s.step
		}
		if len(r.got) == r.want {
			s.queue = s.queue[1:]
			r.finish(nil)
		}
	}
}

func (s *Sequence) lookAgain(i int) {
	ctx, cancel := context.WithTimeout(s.base, s.timeout)
	defer cancel()
	err := s.look(ctx, i)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended(i, was(err, looked), err)
}

// ended notes how a statement ended. A call fails when each database has failed since it came.
func (s *Sequence) ended(i int, how outcome, err error) {
	if s.base.Err() != nil { // that ended it
		return
	}
	s.plan.end(i, how, s.now())
	s.states[i].err = err
	if err != nil {
		s.ticks++
		s.states[i].tick = s.ticks
		s.fail()
	}
	s.kick()
}

func (s *Sequence) fail() {
	if s.plan.anyGood() {
		return
	}
	last := s.ticks
	for _, state := range s.states {
		last = min(last, state.tick)
	}
	for len(s.queue) > 0 && s.queue[0].tick < last {
		s.queue[0].finish(named(s.errs()))
		s.queue = s.queue[1:]
	}
}
