package main

import (
	"bufio"
	"context"
	"errors"
	"net/url"
	"strings"
	"time"
)

// scene is a trial whose processes are on wires, in which a fault is shown.
type scene struct {
	*trial
	toOrders, toPayments, toStock *wire // of a clerk
	toWarehouse, toShop           *wire // of relays, and of consumers
	hired                         []*hired
}

// hired is a clerk as the program sees it.
type hired struct {
	*child
	lines chan string // is closed when the process has ended
}

const (
	// stuck is how long a thing that never comes is waited for. Dtx needs a lease and a pass of recovery.
	stuck = 3 * ttl
	// takes is how long a thing that comes may take on a busy machine.
	takes = 100 * time.Second
)

func (p *places) scene(ctx context.Context, s settings) (*scene, error) {
	t, err := p.trial(ctx, s)
	if err != nil {
		return nil, err
	}
	sc := &scene{trial: t}
	for _, w := range []struct {
		wire **wire
		to   string
	}{{&sc.toOrders, host(t.Orders)}, {&sc.toPayments, host(t.Payments)}, {&sc.toStock, host(t.Stock)}, {&sc.toWarehouse, host(t.Broker)}, {&sc.toShop, t.Shop}} {
		if *w.wire, err = newWire(w.to, nil); err != nil {
			return nil, errors.Join(err, sc.end())
		}
	}
	return sc, nil
}

func host(of string) string {
	u, err := url.Parse(of)
	if err != nil {
		panic(err) // the program made it
	}
	return u.Host
}

// by returns the URL by a wire.
func by(w *wire, url string) string { return strings.Replace(url, w.server, w.addr, 1) }

// hire starts a clerk. A clerk that is far has wires to its databases.
func (sc *scene) hire(s settings, far bool) (*hired, error) {
	s.Role = clerk
	if far {
		s.Orders, s.Payments, s.Stock = by(sc.toOrders, s.Orders), by(sc.toPayments, s.Payments), by(sc.toStock, s.Stock)
	}
	c, out, err := start(s)
	if err != nil {
		return nil, err
	}
	h := &hired{c, make(chan string, 64)}
	sc.hired = append(sc.hired, h)
	go func() {
		defer close(h.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			h.lines <- lines.Text()
		}
		c.cmd.Wait() //nolint:errcheck // it is killed
	}()
	return h, nil
}

// hear returns what the clerk says, or nothing if the clerk says nothing for a time.
func (h *hired) hear(ctx context.Context, within time.Duration) (string, error) {
	select {
	case line, ok := <-h.lines:
		if !ok {
			return "", errors.New("the clerk has ended by itself")
		}
		return line, nil
	case <-time.After(within):
		return "", nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// await waits until the clerk waits for a word.
func (h *hired) await(ctx context.Context) error {
	for {
		line, err := h.hear(ctx, takes)
		if err != nil || line == ready {
			return err
		}
		if line == "" {
			return errors.New("the clerk says nothing")
		}
	}
}

// meets waits until a customer has met a fault. On a busy machine a transaction may fail before that, and the customer comes again.
func (h *hired) meets(ctx context.Context, fault <-chan struct{}) error {
	for {
		line, err := h.hear(ctx, takes)
		if err != nil {
			return err
		}
		select {
		case <-fault:
			return nil
		default:
		}
		switch line {
		case "", ordered:
			return errors.New("the network has not failed")
		case ready:
			if err := h.say(goOn); err != nil {
				return err
			}
		}
	}
}

func (h *hired) say(word string) error {
	_, err := h.in.Write([]byte(word + "\n"))
	return err
}

// fire kills the process, and waits for its end.
func (h *hired) fire() {
	h.in.Close()
	h.cmd.Process.Kill() //nolint:errcheck // it may have ended
	for range h.lines {
	}
}

// finished waits until nothing is prepared, and reports whether that came.
func (sc *scene) finished(ctx context.Context, within time.Duration) (bool, error) {
	for deadline := time.Now().Add(within); ; {
		left := 0
		for _, d := range []*database{sc.orders, sc.payments} {
			n, err := d.prepared(ctx)
			if err != nil {
				return false, err
			}
			left += n
		}
		if left == 0 || time.Now().After(deadline) {
			return left == 0, nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// end ends all processes and wires.
func (sc *scene) end() error {
	for _, h := range sc.hired {
		h.fire()
	}
	var failed error
	for _, w := range []*wire{sc.toOrders, sc.toPayments, sc.toStock, sc.toWarehouse, sc.toShop} {
		if w != nil {
			failed = errors.Join(failed, w.close())
		}
	}
	return errors.Join(failed, sc.close())
}
