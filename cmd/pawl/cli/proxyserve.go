package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/group"
	"github.com/pawl-go/pawl/lb"
	"github.com/pawl-go/pawl/lb/httplb"
)

// proxyService passes requests on, and counts them. proxyService is safe for concurrent use.
type proxyService struct {
	group   string
	set     *lb.Set
	proxy   *httplb.Proxy
	trusted []netip.Prefix
	log     *accessLog // nil: none
	errors  errorLog
	front   errorLog // of the connections of clients, so that a noisy client hides no error of a member
	counts  proxyCounts
	ending  atomic.Bool
	stale   atomic.Bool // the members are those of an earlier time

	mu      sync.RWMutex
	members map[string]*memberCounts // by ID
}

// begin reads the members once, so that a store without groups, or without an answer, is known at once.
func (s *proxyService) begin(ctx context.Context, from *group.Group) error {
	var all []group.Member
	err := ask(ctx, func(ctx context.Context) (err error) {
		all, err = from.Members(ctx)
		return err
	})
	if errors.Is(err, pawl.ErrGrace) { // members come when it has ended
		err = nil
	}
	if err != nil {
		return err
	}
	return s.learn(all)
}

// learn makes these the members.
func (s *proxyService) learn(all []group.Member) error {
	nodes := make([]lb.Node, 0, len(all))
	counts := make(map[string]*memberCounts, len(all))
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range all {
		if m.Addr == "" { // it serves nothing
			continue
		}
		nodes = append(nodes, lb.Node{ID: m.ID, Addr: m.Addr, Weight: m.Weight})
		if counts[m.ID] = s.members[m.ID]; counts[m.ID] == nil {
			counts[m.ID] = &memberCounts{}
		}
	}
	s.members = counts
	return s.set.Update(nodes...)
}

// watch follows the members until ctx ends.
func (s *proxyService) watch(ctx context.Context, from *group.Group) error {
	for view, err := range from.Watch(ctx) {
		if err != nil {
			return err
		}
		if was := s.stale.Swap(view.Stale); was != view.Stale && view.Stale {
			news("group %q: the members are not known to live, because the store does not answer or has lost them: going on with %d", s.group, len(view.Members))
		} else if was != view.Stale {
			news("group %q: the members are known again", s.group)
		}
		if err := s.learn(view.Members); err != nil {
			return err
		}
	}
	return nil
}

// run serves until ctx ends, and then ends gracefully. Members change until the last request has ended.
func (p *proxyCommand) run(ctx context.Context, s *proxyService, from *group.Group, front *http.Server, listener, admin net.Listener) error {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ctx, end := context.WithCancel(ctx)
	defer end()
	parts := []func() error{func() error { return s.watch(life, from) }, func() error { return s.errors.watch(life) },
		func() error { return s.front.watch(life) }}
	if admin != nil {
		parts = append(parts, func() error { return serveUntil(life, admin, s.admin(), func() {}) })
	}
	ended := make(chan error, len(parts))
	for _, part := range parts {
		go func() {
			err := part()
			end() // a part that ends before the proxy has failed
			ended <- err
		}()
	}
	all := []error{p.serve(ctx, s, front, listener)}
	stop()
	for range parts {
		all = append(all, <-ended)
	}
	return errors.Join(all...)
}

// serve serves until ctx ends. Then serve drains, and finishes the requests under way.
func (p *proxyCommand) serve(ctx context.Context, s *proxyService, front *http.Server, listener net.Listener) error {
	base, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	front.Handler, front.BaseContext = s, func(net.Listener) context.Context { return base }
	front.ErrorLog = log.New(&s.front, "", 0)
	ended := make(chan error, 1)
	go func() {
		if front.TLSConfig != nil {
			ended <- front.ServeTLS(listener, "", "")
			return
		}
		ended <- front.Serve(listener)
	}()
	select {
	case err := <-ended:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	s.ending.Store(true)
	select {
	case err := <-ended:
		return fmt.Errorf("serve: %w", err)
	case <-time.After(p.drain):
	}
	finish, cancel := context.WithTimeout(base, p.finish)
	defer cancel()
	err := front.Shutdown(finish)
	s.idle(finish) // connections that have switched protocols are the service's own
	if s.counts.inFlight.Load() > 0 {
		complain(fmt.Errorf("requests that have not ended within %v are cut: %d", p.finish, s.counts.inFlight.Load()))
		cut()
		err = front.Close()
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
		defer cancel()
		s.idle(last)
	} else if err != nil { // a connection without a request
		err = front.Close()
	}
	if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", served)
	}
	return err
}

// idle waits until no request is under way, or ctx ends.
func (s *proxyService) idle(ctx context.Context) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for s.counts.inFlight.Load() > 0 && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// ServeHTTP implements [http.Handler].
func (s *proxyService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	is := &exchange{ResponseWriter: w, began: time.Now()}
	s.counts.inFlight.Add(1)
	defer func() { // also where the connection is aborted by a panic
		s.counts.ended(is)
		if s.log != nil {
			s.log.write(is, r, httplb.ClientAddr(r, s.trusted))
		}
		s.counts.inFlight.Add(-1)
	}()
	if r.Method == http.MethodConnect {
		answer(is, http.StatusMethodNotAllowed, "CONNECT is not served")
		return
	}
	if s.ending.Load() && r.ProtoMajor == 1 && r.Header.Get("Upgrade") == "" {
		w.Header().Set("Connection", "close") // the client's next request goes elsewhere
	}
	if s.log != nil {
		r = r.WithContext(context.WithValue(r.Context(), exchangeKey{}, is))
	}
	s.proxy.ServeHTTP(is, r)
}

type exchangeKey struct{}

// exchange is a request with its response.
type exchange struct {
	http.ResponseWriter
	began  time.Time
	status int // 0: there is no response
	bytes  int64
	member string // of the last try; for the access log
	tries  int
}

// Unwrap gives the rest of the response writer to [http.ResponseController].
func (e *exchange) Unwrap() http.ResponseWriter { return e.ResponseWriter }

// WriteHeader implements [http.ResponseWriter]. An informational response is not the response.
func (e *exchange) WriteHeader(status int) {
	if e.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		e.status = status
	}
	e.ResponseWriter.WriteHeader(status)
}

// Write implements [io.Writer].
func (e *exchange) Write(p []byte) (int, error) {
	if e.status == 0 {
		e.status = http.StatusOK
	}
	n, err := e.ResponseWriter.Write(p)
	e.bytes += int64(n)
	return n, err
}

// Hijack is for [http.ResponseController]. A connection is the caller's own only to switch protocols.
func (e *exchange) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(e.ResponseWriter).Hijack()
	if err == nil && e.status == 0 {
		e.status = http.StatusSwitchingProtocols
	}
	return conn, buffered, err
}

// tried counts a try.
func (s *proxyService) tried(t httplb.Try) {
	s.mu.RLock()
	counts := s.members[t.Node.ID]
	s.mu.RUnlock()
	if counts != nil {
		counts.tries[t.Result].Add(1)
	}
	if t.N > 1 {
		s.counts.repeats.Add(1)
	}
	if s.log == nil {
		return
	}
	if is, ok := t.Request.Context().Value(exchangeKey{}).(*exchange); ok {
		is.member, is.tries = t.Node.ID, t.N
	}
}

// reported counts a request that no member has answered, and tells the operator of it.
func (s *proxyService) reported(r *http.Request, err error) {
	switch {
	case r.Context().Err() != nil: // the client has gone
		return
	case errors.Is(err, lb.ErrNoNode):
		s.counts.unserved.Add(1)
	}
	s.errors.failedBy(localAddr.ReplaceAllString(err.Error(), ""), fmt.Errorf("%s %s: %w", r.Method, r.URL.EscapedPath(), err))
}

// Addresses in an error have ports that are new each time.
var (
	anyAddr   = regexp.MustCompile(`\S+:\d+`)
	localAddr = regexp.MustCompile(`\S+->`)
)

// Write takes a line of the log of net/http.
func (l *errorLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	l.failedBy(anyAddr.ReplaceAllString(text, ""), errors.New(text))
	return len(line), nil
}
