package id

import (
	"context"
	"fmt"
	"sync"

	"github.com/pawl-go/pawl"
)

// NewStrict returns a generator of strictly rising numbers: a call that begins after another call
// returned, in whichever process, gets a larger number. So each call has to be at the store, one
// round trip. The calls of one process that wait at the same time share a request. While a request
// is under way, all others gather for the next (combining). A caller that gives up leaves a gap,
// never a duplicate.
//
// For more IDs than the store can count, in an order that rises for each process only, take
// package segment.
func NewStrict(counter Counter) Generator[int64] { return &strict{counter: counter} }

type strict struct {
	counter Counter

	mu   sync.Mutex
	busy bool   // a call is at the store, or is about to be
	next *batch // the calls that gather meanwhile; nil: none
}

// batch is calls that share a request. Fields are guarded by the mutex until the request
// begins, and then belong to the call that makes it until done.
type batch struct {
	n       int64         // numbers asked for
	waiting int           // calls that have not given up
	turn    chan struct{} // has a token when one of the calls has to make the request
	done    chan struct{} // closed when last, err and again are there
	last    int64
	err     error
	again   bool // the call that made the request gave up: the others try again
}

func (s *strict) Next(ctx context.Context) (int64, error) {
	var one [1]int64
	_, err := s.NextN(ctx, one[:])
	return one[0], err
}

func (s *strict) NextN(ctx context.Context, dst []int64) (int, error) {
	if len(dst) == 0 {
		return 0, nil
	}
	for {
		if ctx.Err() != nil {
			return 0, fmt.Errorf("next number: %w", context.Cause(ctx))
		}
		b, offset := s.join(int64(len(dst)))
		select {
		case <-b.turn:
			s.ask(ctx, b)
		case <-b.done:
			if b.again {
				continue
			}
		case <-ctx.Done():
			s.giveUp(b)
			return 0, fmt.Errorf("next number: %w", pawl.Unavailable(ctx, ctx.Err())) // a request is under way
		}
		if b.err != nil {
			return 0, fmt.Errorf("next number: %w", b.err)
		}
		for i, first := 0, b.last-b.n+1+offset; i < len(dst); i++ {
			dst[i] = first + int64(i)
		}
		return len(dst), nil
	}
}

// join adds a call for n numbers to the batch that gathers. The call that finds nobody at
// the store finds the token there.
func (s *strict) join(n int64) (b *batch, offset int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		s.next = &batch{turn: make(chan struct{}, 1), done: make(chan struct{})}
	}
	b, offset = s.next, s.next.n
	b.n += n
	b.waiting++
	if !s.busy {
		s.busy = true
		b.turn <- struct{}{}
	}
	return b, offset
}

// ask makes the request of a batch with the ctx of one of its calls.
func (s *strict) ask(ctx context.Context, b *batch) {
	s.mu.Lock()
	s.next = nil // a call that comes now may not share a request that is under way: its number could be too small
	s.mu.Unlock()
	b.again = true // the calls that share the batch ask again if the counter panics
	defer func() { // also when the counter panics, because others wait
		close(b.done)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.pass()
	}()
	b.last, b.err = s.counter.Add(ctx, b.n)
	b.again = b.err != nil && ctx.Err() != nil
}

// pass gives the turn to the batch that gathers, if there is one.
func (s *strict) pass() {
	if s.busy = s.next != nil; s.busy {
		s.next.turn <- struct{}{}
	}
}

// giveUp takes a call out of its batch. The last call of a batch that had the turn passes
// it on.
func (s *strict) giveUp(b *batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.waiting--
	if b.waiting > 0 || s.next != b {
		return
	}
	s.next = nil
	select {
	case <-b.turn:
		s.pass()
	default:
	}
}
