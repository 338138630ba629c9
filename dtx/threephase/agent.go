package threephase

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dtx/threephase/internal/protocol"
)

// Mode says what agents do when answers stay away. All agents of a group have the same mode.
type Mode int8

// The modes.
const (
	// Quorum asks a majority, so decisions never split.
	Quorum Mode = iota
	// Classic decides by time-outs, as the textbooks have it. In a partition some agents commit and others abort. This mode is there to show
	// that, and for nothing else.
	Classic
)

// Options are the settings of [New].
type Options struct {
	// Mode is the same for all agents. Default Quorum.
	Mode Mode
	// Timeout is how long an agent waits for answers before it calls an election: 50 ms to 1 min. A handler has as long to
	// prepare. All agents should have the same. Default 5 s.
	Timeout time.Duration
	// Client sends the messages. Default: a client of HTTP/1.1 with a copy of TLS, whose dials and handshakes end by Timeout.
	Client *http.Client
	// TLS has the certificates of the default client, so that peers know each other by mutual TLS. With a Client of the caller it is not allowed.
	TLS *tls.Config
	// Authenticate returns an error unless the request comes from the agent of that name. Default: any sender is believed, so a firewall or mutual TLS
	// has to keep others away.
	Authenticate func(r *http.Request, name string) error
}

// Agent takes part in transactions. An Agent is an [http.Handler], to which peers send their messages, and is safe for concurrent use.
type Agent struct {
	log       *owned
	name      string
	names     []string // of all agents, sorted
	group     string   // mode and names
	handler   Handler
	opts      Options
	ownClient bool

	mu       sync.Mutex
	peers    map[string]*peer
	all      map[ID]*transaction
	last     int64 // number of the last transaction of this agent
	mark     int64 // own transactions with smaller numbers are forgotten
	closed   bool
	unknown  []ID
	trouble  error // of the last pass in the background
	learning sync.Mutex
	sweeping sync.Mutex

	ctx  context.Context // ends with the agent
	stop context.CancelCauseFunc
	work sync.WaitGroup
}

// peer is another agent, as this agent knows it.
type peer struct {
	url string
	known
	heard int64 // the mark that the peer has told
	told  int64 // the mark that the peer was told
	err   error // of the last message to the peer

	telling int // decisions that the peer is told again now
}

// New returns the agent of a log, whose tables exist. Peers are the other agents of the group, 2 to 6, with the URLs at which they serve HTTP. Names
// are 1 to 16 ASCII letters, digits and underscores. A nil handler makes a witness. Nil opts are the defaults.
//
// The agent takes over the log from any process that used it, goes on with the transactions there, and works in the background. Call Close in the end.
func New(ctx context.Context, log *Log, name string, peers map[string]string, handler Handler, opts *Options) (*Agent, error) {
	o, err := opts.complete()
	if err == nil {
		err = validate(name, peers)
	}
	if err != nil {
		return nil, err
	}
	a := &Agent{name: name, handler: handler, opts: o, ownClient: opts == nil || opts.Client == nil, peers: make(map[string]*peer), all: make(map[ID]*transaction)}
	for other, at := range peers {
		a.peers[other] = &peer{url: at}
	}
	a.names = slices.Sorted(maps.Keys(peers))
	a.names = append(a.names, name)
	slices.Sort(a.names)
	a.group = strings.Join(append([]string{map[Mode]string{Quorum: "quorum", Classic: "classic"}[o.Mode]}, a.names...), " ")
	if err := log.Check(ctx); err != nil {
		return nil, err
	}
	if c, can := handler.(checker); can {
		if err := c.Check(ctx); err != nil {
			return nil, err
		}
	}
	a.ctx, a.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	if err := a.load(ctx, log); err != nil {
		return nil, errors.Join(failed("open the log", err), a.Close(ctx))
	}
	a.spawn(a.tend)
	return a, nil
}

// mostConns is how many connections the default client has to a peer, and how many decisions a peer is told again at a time.
const mostConns = 128

func (o *Options) complete() (Options, error) {
	all := Options{}
	if o != nil {
		all = *o
	}
	if all.Timeout == 0 {
		all.Timeout = 5 * time.Second
	}
	switch {
	case all.Client != nil && all.TLS != nil:
		return all, fmt.Errorf("threephase: %w: Options have a Client and TLS: the transport of a client has its own", pawl.ErrInvalid)
	case all.Client == nil:
		// Without a bound a dial to a host that is away outlives its message by minutes.
		dial := &net.Dialer{Timeout: all.Timeout / 2}
		own := all.TLS.Clone()
		if own != nil { // A message without an answer ends its connection only in HTTP/1.1. For other clients the caller may ask for HTTP/2.
			own.NextProtos = nil
		}
		all.Client = &http.Client{Transport: &http.Transport{DialContext: dial.DialContext, TLSHandshakeTimeout: all.Timeout / 2, TLSClientConfig: own,
			IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: 16, MaxConnsPerHost: mostConns}}
	}
	switch {
	case all.Timeout < 50*time.Millisecond || all.Timeout > time.Minute:
		return all, fmt.Errorf("threephase: %w: Options.Timeout is %v: 50ms to 1m are allowed", pawl.ErrInvalid, all.Timeout)
	case all.Mode != Quorum && all.Mode != Classic:
		return all, fmt.Errorf("threephase: %w: Options.Mode is %d: Quorum and Classic are allowed", pawl.ErrInvalid, all.Mode)
	}
	return all, nil
}

func validate(name string, peers map[string]string) error {
	if n := len(peers) + 1; n < 3 || n > protocol.MaxAgents {
		return fmt.Errorf("threephase: %w: %d agents: 3 to %d are allowed, because a majority has to be left when one dies", pawl.ErrInvalid, n, protocol.MaxAgents)
	}
	for _, is := range append(slices.Collect(maps.Keys(peers)), name) {
		if !agentNames.MatchString(is) {
			return fmt.Errorf("threephase: %w: the name of an agent is %.40q: 1 to 16 letters, digits and underscores are allowed", pawl.ErrInvalid, is)
		}
	}
	if _, twice := peers[name]; twice {
		return fmt.Errorf("threephase: %w: the agent %s is its own peer", pawl.ErrInvalid, name)
	}
	for other, at := range peers {
		if u, err := url.Parse(at); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return fmt.Errorf("threephase: %w: the URL of the peer %s: http://HOST:PORT/ and https://HOST:PORT/ are allowed", pawl.ErrInvalid, other)
		}
	}
	return nil
}

// load takes the log over, and reads it.
func (a *Agent) load(ctx context.Context, log *Log) error {
	identity, err := log.check(ctx)
	if err != nil {
		return err
	}
	var agents map[string]known
	if a.log, agents, err = log.claim(ctx, a.name, identity); err != nil {
		return err
	}
	for name, is := range agents {
		if p := a.peers[name]; p != nil {
			p.known, p.heard = is, is.mark
		}
	}
	a.mark = agents[a.name].mark
	a.last = a.mark - 1
	rows, err := log.all(ctx)
	if err != nil {
		return err
	}
	for _, r := range rows {
		own := r.id.agent == a.name && r.id.log == identity
		switch {
		case r.agents != a.group && (own || !r.finished):
			return fmt.Errorf("%w: transaction %v is of the agents %q, and the group is %q now: finish the transactions of a group before it changes", pawl.ErrMismatch, r.id, r.agents, a.group)
		case r.asked && !r.finished && a.handler == nil:
			return fmt.Errorf("%w: transaction %v needs a handler", pawl.ErrMismatch, r.id)
		}
		if own {
			a.last = max(a.last, r.id.number)
		}
		t := a.resume(r)
		a.all[r.id] = t
		stored(r.id, r.Record, t.began)
		switch {
		case t.state.Phase.Final() && !t.finished:
			a.spawn(func() { a.finish(t) })
		case t.state.Phase == protocol.Initial: // nobody has its vote
			t.reason = errors.New("the agent has restarted")
			if err := a.step(t, protocol.Message{Kind: protocol.VoteNo, Peer: t.state.Self}); err != nil {
				return err
			}
		}
	}
	return nil
}

// spawn runs fn in the background, unless the agent is closed. Close waits for fn.
func (a *Agent) spawn(fn func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.work.Go(fn)
	}
}

// within bounds a call of the log or of the handler.
func (a *Agent) within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(a.ctx, a.opts.Timeout)
}

// Done is closed when the agent ends: by Close, or because another process has taken over the log. In the latter case the error of
// [Agent.Status] matches [ErrReplaced].
func (a *Agent) Done() <-chan struct{} { return a.ctx.Done() }

// Close ends the agent. Transactions that are not finished wait in the log for the next [New]. Close waits for the handler until ctx ends.
func (a *Agent) Close(ctx context.Context) error {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.stop(pawl.ErrClosed)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.work.Wait()
	}()
	select {
	case <-ended:
		if a.ownClient {
			a.opts.Client.CloseIdleConnections()
		}
		return nil
	case <-ctx.Done():
		return failed("close", context.Cause(ctx))
	}
}

// Status is what an agent sees: numbers for a dashboard.
type Status struct {
	Undecided int              // transactions
	Oldest    time.Duration    // how long this process has known the oldest of them
	Unknown   []ID             // prepared work of which the log knows nothing: an operator has to decide
	Peers     map[string]error // the result of the last message to each peer
	Err       error            // of the log or the handler, in the last pass; nil if both were well
}

// Status returns the numbers. Status sends no request.
func (a *Agent) Status() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := Status{Unknown: a.unknown, Peers: make(map[string]error), Err: a.trouble}
	for name, p := range a.peers {
		s.Peers[name] = p.err
	}
	for _, t := range a.all {
		select {
		case <-t.decided:
		default:
			s.Undecided++
			s.Oldest = max(s.Oldest, time.Since(t.began))
		}
	}
	return s
}
