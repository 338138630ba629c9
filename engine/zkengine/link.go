package zkengine

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/pawl-go/pawl/engine"
)

// link is one session of ZooKeeper, over whichever connection it has. It is
// over when ZooKeeper has ended the session, or we have; it never gets another.
type link struct {
	engine *Engine
	conn   *zk.Conn
	event  func(zk.Event) // called for each event; must not block
	events <-chan zk.Event
	asked  time.Duration // the time-out that was asked for

	life        context.Context // ends when the link is closed
	end         context.CancelFunc
	over        chan struct{}
	isOver      sync.Once
	calls       sync.WaitGroup
	closing     atomic.Bool
	timeout     atomic.Int64 // the time-out that the server gave
	connections atomic.Int64 // how many there were
	failed      chan error   // why none of the servers was reached, once

	mu      sync.Mutex
	wire    *wire // the last connection
	servers []string
	next    int           // server
	misses  int           // servers that were not reached, since one was
	mutes   int           // and that hung up before they answered, since one did
	changed chan struct{} // closed when there is news of the connection
	watches map[string]<-chan zk.Event
}

// dial starts a session and waits until it is there.
func (e *Engine) dial(ctx context.Context, timeout time.Duration, event func(zk.Event)) (*link, error) {
	l := &link{
		engine: e, event: event, asked: timeout, over: make(chan struct{}), failed: make(chan error, 1),
		watches: make(map[string]<-chan zk.Event), changed: make(chan struct{}),
	}
	l.life, l.end = context.WithCancel(context.Background())
	up := make(chan struct{}, 1)
	var err error
	l.conn, l.events, err = zk.Connect(e.servers, timeout,
		zk.WithHostProvider(l), zk.WithDialer(l.dial), zk.WithLogger(silent{}), zk.WithLogInfo(false),
		zk.WithEventCallback(func(ev zk.Event) {
			switch {
			case ev.State == zk.StateExpired:
				l.isOver.Do(func() { close(l.over) })
			case ev.Type == zk.EventSession:
				l.tell()
			}
			if ev.State == zk.StateHasSession {
				l.connections.Add(1)
				select {
				case up <- struct{}{}:
				default:
				}
			}
			l.event(ev)
		}))
	if err != nil {
		l.end()
		return nil, engine.Unavailable("connect", err)
	}
	select {
	case <-up:
		err = l.greet(ctx)
	case err = <-l.failed:
		err = engine.Unavailable("connect", err)
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		farewell, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		l.close(farewell) //nolint:errcheck // err says more
		return nil, err
	}
	return l, nil
}

// greet proves who we are, and makes the folders that all resources share.
func (l *link) greet(ctx context.Context) error {
	if l.engine.user != "" {
		if _, err := ask(ctx, l, "authenticate", func() (struct{}, error) {
			return struct{}{}, l.conn.AddAuth("digest", []byte(l.engine.user+":"+l.engine.password))
		}); err != nil {
			return err
		}
	}
	_, err := l.exists(ctx, "connect", l.engine.values)
	if errors.Is(err, zk.ErrNoNode) {
		err = l.makeFolders(ctx)
	}
	return err
}

// Init implements [zk.HostProvider].
func (l *link) Init(servers []string) error { l.servers = servers; return nil }

// Len implements [zk.HostProvider].
func (l *link) Len() int { return len(l.servers) }

// Connected implements [zk.HostProvider].
func (l *link) Connected() {}

// Next implements [zk.HostProvider]. Only the end of a round makes the client
// see that it was closed, and it sleeps for a second then: so there is none
// before.
func (l *link) Next() (server string, retryStart bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	return l.servers[l.next%len(l.servers)], l.closing.Load()
}

// pause is between two tries to connect.
const pause = 50 * time.Millisecond

// dial is how the client connects. A session that is over must not be followed
// by another.
func (l *link) dial(network, addr string, _ time.Duration) (net.Conn, error) {
	select {
	case <-l.over:
		<-l.life.Done()
	default:
	}
	ctx, cancel := context.WithTimeout(l.life, max(l.asked/4, pause))
	defer cancel()
	conn, err := l.engine.dialer(ctx, network, addr)
	if err != nil {
		l.missed(&l.misses, err)
		return nil, err
	}
	w := &wire{Conn: conn, link: l}
	w.stop = context.AfterFunc(l.life, func() { conn.Close() })
	l.mu.Lock()
	l.wire, l.misses = w, 0
	l.mu.Unlock()
	return w, nil
}

// missed counts a connection that failed. After one to each server it tells who
// waits, and pauses.
func (l *link) missed(count *int, err error) {
	l.mu.Lock()
	*count++
	all := l.misses+l.mutes >= len(l.servers)
	l.mu.Unlock()
	if !all {
		return
	}
	l.tell()
	select {
	case l.failed <- err:
	default:
	}
	select {
	case <-time.After(pause):
	case <-l.life.Done():
	}
}

// wire is a connection that is given up in time. The client would wait for a
// server that hangs for 6.7 session time-outs when it connects, and for two
// thirds of one later, which leaves too little to find another.
type wire struct {
	net.Conn
	link  *link
	stop  func() bool
	head  []byte // the first bytes of the answer to the greeting
	known bool   // it told the time-out of the session
	err   error  // why not
}

// greeting is the length of an answer, the version and the time-out.
const greeting = 12

func (w *wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if !w.known {
		w.err = err
		w.head = append(w.head, p[:n]...)
		if len(w.head) >= greeting {
			ms := int32(binary.BigEndian.Uint32(w.head[8:greeting]))
			w.known = true
			w.link.mu.Lock()
			w.link.mutes = 0
			w.link.mu.Unlock()
			if ms > 0 { // 0: the session is over
				w.link.timeout.Store(int64(time.Duration(ms) * time.Millisecond))
			}
		}
	}
	return n, err
}

// SetReadDeadline leaves time to find another server. The client pings each
// third of the time-out. A server that has just started may take a greeting and
// never answer it: who had a connection soon tries again, and waits longer each time.
func (w *wire) SetReadDeadline(t time.Time) error {
	limit := w.link.asked / 4
	if w.link.connections.Load() > 0 {
		w.link.mu.Lock()
		limit = min(limit, time.Second<<min(w.link.mutes, 10))
		w.link.mu.Unlock()
	}
	if w.known {
		limit = time.Duration(w.link.timeout.Load()) / 2
	}
	if most := time.Now().Add(max(limit, pause)); t.After(most) {
		t = most
	}
	return w.Conn.SetReadDeadline(t)
}

func (w *wire) Close() error {
	if w.stop() && !w.known {
		w.link.missed(&w.link.mutes, cmp.Or(w.err, net.ErrClosed))
	}
	return w.Conn.Close()
}

type silent struct{}

func (silent) Printf(string, ...any) {} // all that matters comes as an error

// ask makes a call of the client, which knows no context. A call that was given
// up ends when it is answered, its connection breaks or the link closes.
func ask[T any](ctx context.Context, l *link, doing string, call func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	if err := ctx.Err(); err != nil {
		return none, fmt.Errorf("%s: %w", doing, err)
	}
	select {
	case <-l.over:
		return none, fmt.Errorf("%s: session: %w", doing, engine.ErrGone)
	default:
	}
	if !l.settled(ctx) { // the client would wait until it is
		return none, l.class(doing, errNotConnected)
	}
	done := make(chan result, 1)
	l.calls.Go(func() {
		value, err := call()
		done <- result{value, err}
	})
	for {
		changed, away := l.reach()
		if away { // it went out of the settled state before it was sent, or was sent and not answered
			return none, l.class(doing, errNotConnected)
		}
		select {
		case r := <-done:
			if errors.Is(r.err, zk.ErrConnectionClosed) { // perhaps because the session has ended
				l.settled(ctx)
			}
			return r.value, l.class(doing, r.err)
		case <-changed:
		case <-ctx.Done():
			return none, fmt.Errorf("%s: %w", doing, ctx.Err())
		case <-l.over:
			return none, fmt.Errorf("%s: session: %w", doing, engine.ErrGone)
		}
	}
}

// reach tells when it changes whether a server is reached, and whether none is.
func (l *link) reach() (changed <-chan struct{}, away bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed, l.misses >= len(l.servers)
}

// tell wakes those that wait for the connection.
func (l *link) tell() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.changed)
	l.changed = make(chan struct{})
}

// settled waits for a moment until a connection that broke is back, its session
// is over or no server is reached, and reports whether there is a connection.
func (l *link) settled(ctx context.Context) bool {
	if l.conn.State() == zk.StateHasSession {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, min(l.asked/6, 2*time.Second))
	defer cancel()
	for {
		changed, away := l.reach()
		switch {
		case l.conn.State() == zk.StateHasSession:
			return true
		case away || l.closing.Load():
			return false
		}
		select {
		case <-changed:
		case <-l.over:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

var errNotConnected = errors.New("not connected")

// decided are the answers that callers ask about: nothing was done.
var decided = []error{zk.ErrNoNode, zk.ErrNodeExists, zk.ErrBadVersion, zk.ErrNotEmpty}

// class classifies an error of the client.
func (l *link) class(doing string, err error) error {
	if err == nil {
		return nil
	}
	select {
	case <-l.over: // whatever was answered
		return fmt.Errorf("%s: session: %w: %w", doing, engine.ErrGone, err)
	default:
	}
	for _, known := range decided {
		if errors.Is(err, known) {
			return fmt.Errorf("%s: %w", doing, err)
		}
	}
	if errors.Is(err, zk.ErrSessionExpired) {
		return fmt.Errorf("%s: session: %w: %w", doing, engine.ErrGone, err)
	}
	return engine.Unavailable(doing, err)
}

func (l *link) exists(ctx context.Context, doing, path string) (*zk.Stat, error) {
	return ask(ctx, l, doing, func() (*zk.Stat, error) {
		there, stat, err := l.conn.Exists(path)
		if err == nil && !there {
			err = zk.ErrNoNode
		}
		return stat, err
	})
}

// sync lets the server that we are connected to catch up with the leader: what
// others have written before, and what we wrote over a connection that broke,
// is seen from now on.
func (l *link) sync(ctx context.Context, doing string) error {
	_, err := ask(ctx, l, doing, func() (string, error) { return l.conn.Sync(l.engine.root) })
	return err
}

func (l *link) multi(ctx context.Context, doing string, ops ...any) ([]zk.MultiResponse, error) {
	return ask(ctx, l, doing, func() ([]zk.MultiResponse, error) { return l.conn.Multi(ops...) })
}

// create makes a node that is not there yet, and its parents.
func (l *link) create(ctx context.Context, doing, path string, flags int32) error {
	_, err := ask(ctx, l, doing, func() (string, error) {
		if flags == zk.FlagContainer {
			return l.conn.CreateContainer(path, nil, flags, l.engine.acl)
		}
		return l.conn.Create(path, nil, flags, l.engine.acl)
	})
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}

// watch sets a watch on a node that is there, or on the children of one, unless
// there is such a watch already: the client cannot take one back. Who gets the
// event, or finds the channel closed because somebody else got it, forgets it.
func (l *link) watch(ctx context.Context, doing, path string, children bool) (<-chan zk.Event, error) {
	key := path
	if children {
		key += "/"
	}
	l.mu.Lock()
	events := l.watches[key]
	l.mu.Unlock()
	if events != nil && len(events) == 0 {
		return events, nil
	}
	return ask(ctx, l, doing, func() (events <-chan zk.Event, err error) {
		if children {
			_, _, events, err = l.conn.ChildrenW(path)
		} else {
			_, _, events, err = l.conn.GetW(path)
		}
		if err == nil {
			l.mu.Lock()
			l.watches[key] = events
			l.mu.Unlock()
		}
		return events, err
	})
}

// forget forgets a watch that has fired.
func (l *link) forget(fired <-chan zk.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, events := range l.watches {
		if events == fired || len(events) > 0 {
			delete(l.watches, key)
		}
	}
}

// close ends the session and waits until nothing of it runs any more.
func (l *link) close(ctx context.Context) (err error) {
	l.isOver.Do(func() { close(l.over) })
	l.closing.Store(true)
	stop := context.AfterFunc(ctx, l.end)
	defer stop()
	if ctx.Err() != nil { // nothing is said: the store ends the session in its own time
		l.end()
		l.mu.Lock()
		if l.wire != nil {
			l.wire.Conn.Close()
		}
		l.mu.Unlock()
		l.engine.partings.Go(l.conn.Close)
		err = ctx.Err()
	} else if start := time.Now(); l.conn.State() == zk.StateHasSession {
		l.conn.Close() // waits a second for the answer
		if time.Since(start) >= time.Second || ctx.Err() != nil {
			err = errors.New("no answer")
		}
	} else {
		err = errNotConnected
		l.engine.partings.Go(l.conn.Close) // waits as well, for nothing
	}
	l.end()
	for range l.events { // closed when the client has stopped
	}
	l.calls.Wait()
	return engine.Unavailable("close session", err)
}
