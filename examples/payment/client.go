package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pawl-go/pawl"
)

// trial is one test of all forms.
type trial struct {
	*home
	settings
	server *process
	at     atomic.Value // the URL of the server, a string
}

// test runs one test of all forms, and returns how often each of them has paid.
func test(ctx context.Context, ttl time.Duration, of func(*trial, context.Context) error) (paid []int, err error) {
	dir, err := os.MkdirTemp("", "pawl-payment-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := create(ctx, dir); err != nil {
		return nil, err
	}
	h, err := newHome()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	t := &trial{home: h, settings: settings{Dir: dir, Home: h.url, TTL: ttl}}
	if err := t.start(ctx); err != nil {
		return nil, err
	}
	if err := of(t, ctx); err != nil {
		return nil, errors.Join(err, t.server.kill())
	}
	if err := t.server.stop(); err != nil {
		return nil, err
	}
	return h.paid(ctx, dir)
}

// killedServer kills the server when it is in the middle of the payments of all forms.
func (t *trial) killedServer(ctx context.Context) error {
	clients, ctx := errgroup.WithContext(ctx)
	for i := range forms {
		clients.Go(func() error { return t.pay(ctx, i, first) })
	}
	err := func() error {
		for i := range forms {
			if err := t.await(ctx, t.reached[i]); err != nil {
				return err
			}
		}
		if err := t.server.kill(); err != nil {
			return err
		}
		return t.start(ctx)
	}()
	if err != nil {
		clients.Go(func() error { return err }) // ends the clients
	}
	return clients.Wait()
}

// slowServer lets the client of each form send a second request while the first one is in its middle.
func (t *trial) slowServer(ctx context.Context) error {
	operator, end, err := t.client(ctx)
	if err != nil {
		return err
	}
	defer end()
	all, ctx := errgroup.WithContext(ctx)
	for i := range forms {
		all.Go(func() error { return t.payTwice(ctx, i, operator) })
	}
	return all.Wait()
}

func (t *trial) payTwice(ctx context.Context, form int, operator *pawl.Client) error {
	requests, ctx := errgroup.WithContext(ctx)
	requests.Go(func() error { return t.pay(ctx, form, first) })
	requests.Go(func() error {
		if err := t.await(ctx, t.reached[form]); err != nil {
			return err
		}
		if lock := forms[form].lock; lock != "" {
			if _, err := operator.Break(ctx, lock, pawl.BreakOptions{Reason: "the holder is slow"}); err != nil {
				return err
			}
		}
		if !forms[form].waits {
			defer close(t.release[form])
			return t.pay(ctx, form, second)
		}
		requests.Go(func() error { return t.pay(ctx, form, second) })
		defer close(t.release[form])
		return t.await(ctx, t.begun[form])
	})
	return requests.Wait()
}

// pay is the client: it sends the request again, with the same key, until it gets an answer.
func (t *trial) pay(ctx context.Context, form int, click string) error {
	header := http.Header{"Idempotency-Key": {"click-1"}, "Click": {click}}
	for {
		err := post(ctx, fmt.Sprintf("%s/pay/%d", t.at.Load(), form), header)
		header.Del("Click") // repeats are not held up
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", forms[form].text, errors.Join(ctx.Err(), err))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (t *trial) await(ctx context.Context, event <-chan struct{}) error {
	select {
	case <-event:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-t.server.ended:
		return fmt.Errorf("the server has ended: %w", t.server.err)
	}
}

// process is the server as its clients see it.
type process struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	ended chan struct{} // is closed at the end of the process
	err   error         // of cmd.Wait; read it after the end
}

// start starts the server, and tells clients its address.
func (t *trial) start(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, serverArg)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	unhooked := context.AfterFunc(ctx, func() { cmd.Process.Kill() }) //nolint:errcheck // it may have ended
	defer unhooked()
	var at string
	err = json.NewEncoder(in).Encode(t.settings)
	if err == nil {
		err = json.NewDecoder(out).Decode(&at)
	}
	p := &process{cmd: cmd, in: in, ended: make(chan struct{})}
	go func() { p.err = cmd.Wait(); close(p.ended) }()
	t.server = p
	if err != nil {
		return fmt.Errorf("the server does not start: %w", errors.Join(ctx.Err(), err, p.kill()))
	}
	t.at.Store(at)
	return nil
}

// kill ends the process at once, and does nothing if it has ended.
func (p *process) kill() error {
	err := p.cmd.Process.Kill()
	<-p.ended
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// stop lets the server end by itself.
func (p *process) stop() error {
	err := p.in.Close()
	<-p.ended
	return errors.Join(err, p.err)
}
