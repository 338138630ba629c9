package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// trial is a shop and a warehouse with tables of their own.
type trial struct {
	settings
	orders, stock *database
	payments      *database                   // nil: nothing is paid
	roles         []string                    // of the processes
	expected      string                      // words of the books; empty: not known
	route         func(*settings)             // changes the settings of a process for its role, or nil
	meanwhile     func(context.Context) error // is called when each customer has ordered, or nil

	mu                    sync.Mutex
	running               map[*child]bool
	kills                 map[string]int // processes that ended as if by kill -9, by role
	votes                 int            // requests to prepare or commit a payment
	between               int            // producers that were killed between the phases of a transaction
	committed, rolledBack int64          // payments that this program has finished after that
	through               chan struct{}  // is closed when each customer has ordered
	once                  sync.Once
}

// child is a process as its parent sees it.
type child struct {
	role string
	cmd  *exec.Cmd
	in   io.WriteCloser
}

const (
	// quiet is how long the books stay the same before they are final. The time is longer than a broker keeps the messages of a
	// killed consumer, or a store its locks.
	quiet = 2 * time.Second
	// within is how long the books have to balance after the last order.
	within = 2 * time.Minute
	// endsWithin is how long a process may take to end.
	endsWithin = 3 * time.Second
)

// run runs all processes until the books are final.
func (t *trial) run(ctx context.Context, killing bool) (b books, err error) {
	t.running, t.kills, t.through = make(map[*child]bool), make(map[string]int), make(chan struct{})
	defer t.close() //nolint:errcheck // nothing is lost with it
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if killing && t.payments != nil && !t.Naive {
		end, err := t.endanger(ctx)
		if err != nil {
			return b, err
		}
		defer end()
	}
	var all errgroup.Group
	for _, role := range t.roles {
		all.Go(func() error {
			err := t.keepRunning(ctx, role)
			if err != nil {
				stop()
			}
			return err
		})
	}
	if killing {
		all.Go(func() error { t.killSome(ctx); return nil })
	}
	b, err = t.settle(ctx)
	stop()
	if failed := all.Wait(); failed != nil { // the reason why ctx has ended
		return b, failed
	}
	return b, err
}

func (t *trial) close() (err error) {
	for _, d := range []*database{t.orders, t.payments, t.stock} {
		if d != nil {
			err = errors.Join(err, d.db.Close())
		}
	}
	return err
}

// keepRunning starts a process again when it was killed, and ends it when ctx ends.
func (t *trial) keepRunning(ctx context.Context, role string) error {
	s := t.settings
	s.Role = role
	if t.route != nil {
		t.route(&s)
	}
	for ctx.Err() == nil {
		c, out, err := start(s)
		if err != nil {
			return err
		}
		t.mu.Lock()
		t.running[c] = true
		t.mu.Unlock()
		unhooked := context.AfterFunc(ctx, func() {
			c.in.Close()
			time.AfterFunc(endsWithin, func() { c.cmd.Process.Kill() }) //nolint:errcheck // it has ended, in most cases
		})
		for lines := bufio.NewScanner(out); lines.Scan(); {
			t.once.Do(func() { close(t.through) }) // the producer says only that
		}
		err = c.cmd.Wait()
		unhooked()
		c.in.Close()
		t.mu.Lock()
		delete(t.running, c)
		if ctx.Err() == nil {
			t.kills[role]++
		}
		t.mu.Unlock()
		var exit *exec.ExitError
		if ctx.Err() == nil && (err == nil || errors.As(err, &exit) && exit.ExitCode() == childFailed) {
			return fmt.Errorf("the %s ended by itself: %w", role, errors.Join(err, ctx.Err()))
		}
		s.Die = "" // each cut comes once
	}
	return nil
}

func start(s settings) (*child, io.Reader, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(self, childArg)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	if err := json.NewEncoder(in).Encode(s); err != nil {
		return nil, nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	return &child{s.Role, cmd, in}, out, nil
}

// killSome kills a process again and again, until each customer has ordered.
func (t *trial) killSome(ctx context.Context) {
	for {
		select {
		case <-time.After(time.Duration(200+rand.IntN(500)) * time.Millisecond):
		case <-t.through:
			return
		case <-ctx.Done():
			return
		}
		t.mu.Lock()
		for c := range t.running { // the order of a map is random
			c.cmd.Process.Kill() //nolint:errcheck // it may have ended
			break
		}
		t.mu.Unlock()
	}
}

// endanger lets the producer be killed between the phases of transactions. This program recovers, because a producer that lives for less than a lease
// cannot.
func (t *trial) endanger(ctx context.Context) (end func(), err error) {
	w, err := newWire(host(t.Payments), t.killBetween)
	if err != nil {
		return nil, err
	}
	t.route = func(s *settings) {
		if s.Role == producer {
			s.Payments = by(w, s.Payments)
		}
	}
	p, err := openShop(ctx, &t.settings)
	if err != nil {
		return nil, errors.Join(err, w.close())
	}
	return func() {
		s := p.coordinator.Status()
		t.committed, t.rolledBack = s.Committed, s.RolledBack
		p.close()
		w.close() //nolint:errcheck // nothing is lost with it
	}, nil
}

// killBetween kills the producer between the phases of some of its transactions. Either the request to prepare the payment passes and nothing
// is decided, or commit is decided and that request does not pass.
func (t *trial) killBetween(request []byte) (pass bool) {
	prepare := bytes.Contains(request, []byte("PREPARE TRANSACTION")) || bytes.Contains(request, []byte("XA PREPARE"))
	commit := bytes.Contains(request, []byte(commitPrepared)) || bytes.Contains(request, []byte("XA COMMIT"))
	if !prepare && !commit {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.votes++; t.votes < 7+60*t.between {
		return true
	}
	for c := range t.running {
		if c.role == producer {
			c.cmd.Process.Kill() //nolint:errcheck // it may have ended
			t.between++
			return prepare
		}
	}
	return true
}

// settle returns the books when they do not change any more.
func (t *trial) settle(ctx context.Context) (b books, err error) {
	select {
	case <-t.through:
	case <-ctx.Done():
		return b, fmt.Errorf("not all customers have ordered: %w", ctx.Err())
	}
	if t.meanwhile != nil {
		if err := t.meanwhile(ctx); err != nil {
			return b, err
		}
	}
	since, deadline := time.Now(), time.Now().Add(within)
	for {
		now, err := t.readBooks(ctx)
		if err != nil {
			return b, err
		}
		if now != b {
			b, since = now, time.Now()
		}
		// Books without the outbox are final when they are quiet. Those with it have to balance first. A busy machine may be
		// quiet for longer before the expected comes.
		final := (t.Naive || b.balance()) && (t.expected == "" || t.expected == b.words())
		if time.Since(since) > quiet && final || time.Now().After(deadline) {
			return b, nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return b, ctx.Err()
		}
	}
}
