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
	"github.com/pawl-go/pawl/internal/turn"
)

// link is one session of ZooKeeper, over whichever connection it has. A link is
// over when ZooKeeper has ended the session, or we have; it never gets another.
type link struct {
	engine *Engine
	conn   *zk.Conn
	events <-chan zk.Event // ends when the client has stopped
	told   func(zk.Event)  // called for each event; must not block
	ended  error           // the error when it is over
	asked  time.Duration   // the time-out that was asked for
	unused atomic.Bool     // there were no folders of our format
	nodes  atomic.Int64    // that the session may have

	over   context.Context // ends with the session
	finish context.CancelFunc
	life   context.Context // ends when it must say no more, and after that
	end    context.CancelFunc

	servers []string
	next    int // server

	mu      sync.Mutex
	up      bool
	since   time.Time     // the last change of it
	changed chan struct{} // closed when there is news of the connection
	misses  int           // servers that were not reached, since one answered
	mutes   int           // and that hung up before they answered
	why     error         // the last connection failed, if it did
	timeout time.Duration // of the session, as the server gave it
	watches map[string]*watch
	anchor  <-chan zk.Event     // of the first watch, which the client has until it fires; nil before
	rearmed chan struct{}       // closed when the client has set them again, nil when there is no need
	lists   map[string]*reading // the last ones, by folder
	turns   chan struct{}       // one in it for each request under way

	// containers is read-locked while a container is made, and locked for ever from the close of the client on. A client
	// that is closed reads the answer at once, while that may just arrive.
	containers sync.RWMutex
}

// dial starts a session and waits until it is there.
func (e *Engine) dial(ctx context.Context, timeout time.Duration, ended error, told func(zk.Event)) (*link, error) {
	l := &link{
		engine: e, told: told, ended: ended, asked: timeout,
		changed: make(chan struct{}), watches: make(map[string]*watch), lists: make(map[string]*reading), turns: make(chan struct{}, inFlight),
	}
	l.life, l.end = context.WithCancel(context.Background())
	l.over, l.finish = context.WithCancel(l.life)
	var err error
	l.conn, l.events, err = zk.Connect(e.servers, timeout, zk.WithHostProvider(l), zk.WithDialer(l.dial),
		zk.WithLogger(silent{}), zk.WithLogInfo(false), zk.WithEventCallback(l.event))
	if err != nil {
		l.end()
		return nil, err
	}
	if err = l.settled(ctx); err == nil {
		err = l.greet(ctx)
	}
	if err != nil {
		l.close(ctx) //nolint:errcheck // err says more
		return nil, err
	}
	return l, nil
}

// greet proves who we are, and refuses folders of another format.
func (l *link) greet(ctx context.Context) error {
	if opts := l.engine.opts; opts.User != "" {
		if _, err := ask(ctx, l, func() (none struct{}, err error) {
			return none, l.conn.AddAuth("digest", []byte(opts.User+":"+opts.Password))
		}); err != nil {
			return err
		}
	}
	return l.checkFormat(ctx)
}

// anchored watches the root of the tree, which nobody writes, so that a client with watches always has one to set again. Over a
// new connection the client looks for its watches once, and reads without a lock what answers write. So the first watch comes later.
func (l *link) anchored(ctx context.Context) error {
	if err := l.settled(ctx); err != nil { // before that nobody knows how old the connection is
		return err
	}
	l.mu.Lock()
	has, young := l.anchor != nil, pause-time.Since(l.since)
	l.mu.Unlock()
	if has {
		return nil
	}
	turn.Pause(ctx, young) //nolint:errcheck // the request tells
	_, err := ask(ctx, l, func() (none struct{}, err error) {
		_, _, fires, err := l.conn.ExistsW("/")
		if errors.Is(err, zk.ErrNoAuth) { // newer servers check that, and somebody has closed the root: this watch has as good as fired
			fired := make(chan zk.Event, 1)
			fired <- zk.Event{}
			fires, err = fired, nil
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.anchor = cmp.Or(fires, l.anchor) // that of another call stays if this one failed
		return none, err
	})
	return err
}

// checkFormat reads the mark of the format. Before there was a mark of it, the folder of values was empty.
func (l *link) checkFormat(ctx context.Context) error {
	format, stat, err := look(ctx, l, l.engine.values, l.conn.Get)
	if err == nil && stat != nil {
		err = engine.CheckFormat(cmp.Or(string(format), "1"))
	}
	l.unused.Store(err != nil || stat == nil)
	return err
}

// event is told by the client what happens.
func (l *link) event(ev zk.Event) {
	l.mu.Lock()
	if ev.Type == zk.EventSession {
		if ev.State == zk.StateExpired {
			l.finish()
		}
		l.up, l.since = ev.State == zk.StateHasSession, time.Now()
		if l.rearmed = nil; l.up && l.anchor != nil {
			l.rearmed = make(chan struct{})
		}
		for key := range l.watches {
			if l.up { // all look again: what they missed may not be told, or late
				l.fire(key, ev)
			}
		}
		l.tell()
	} else {
		l.fire(ev.Path, ev)
		l.fire(ev.Path+"/", ev)
	}
	l.mu.Unlock()
	l.told(ev)
}

// tell wakes the requests that wait for the connection. The link is locked.
func (l *link) tell() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// state tells whether there is a connection, or why there will be none soon, and
// when that changes. A server that hangs up on a session may be about to end it.
func (l *link) state() (up bool, changed <-chan struct{}, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.over.Err() != nil:
		err = l.ended
	case l.misses >= len(l.servers), l.timeout == 0 && l.misses+l.mutes >= len(l.servers):
		err = fmt.Errorf("%w: not connected: %w", engine.ErrUnavailable, l.why)
	}
	return l.up, l.changed, err
}

// settled waits until there is a connection.
func (l *link) settled(ctx context.Context) error {
	for ctx.Err() == nil {
		up, changed, err := l.state()
		if up || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// Init implements [zk.HostProvider].
func (l *link) Init(servers []string) error { l.servers = servers; return nil }

// Len implements [zk.HostProvider].
func (l *link) Len() int { return len(l.servers) }

// Connected implements [zk.HostProvider].
func (l *link) Connected() {}

// Next implements [zk.HostProvider]. Only the end of a round makes the client see that it was
// closed, and the client sleeps for a second then. So no round ends before.
func (l *link) Next() (server string, retryStart bool) {
	l.next++
	return l.servers[l.next%len(l.servers)], l.over.Err() != nil
}

// dial is how the client connects. A session that is over must not be followed by another. A
// server that has just started may take a greeting and never answer it. A link that had a
// connection soon tries again, and waits longer each time.
func (l *link) dial(network, addr string, _ time.Duration) (net.Conn, error) {
	if l.over.Err() != nil {
		<-l.life.Done()
	}
	limit := max(l.asked/4, pause)
	l.mu.Lock()
	if l.timeout > 0 {
		limit = min(limit, time.Second<<min(l.mutes, 10))
	}
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(l.life, limit)
	defer cancel()
	conn, err := l.engine.opts.Dial(ctx, network, addr)
	if err != nil {
		l.missed(err)
		return nil, err
	}
	return &wire{Conn: conn, link: l, limit: limit, login: make(chan struct{}, 2), stop: context.AfterFunc(l.life, func() { conn.Close() })}, nil
}

// pause is between two tries to connect.
const pause = 50 * time.Millisecond

// missed counts a connection that was not made, or not answered.
func (l *link) missed(err error) {
	l.mu.Lock()
	if err != nil {
		l.misses++
	} else {
		l.mutes++
	}
	l.why = cmp.Or(err, l.why, net.ErrClosed)
	l.tell()
	l.mu.Unlock()
	turn.Pause(l.over, pause) //nolint:errcheck // either way it is over
}

// wire is a connection that is given up in time. The client would wait for a server that hangs
// for 6.7 session time-outs when it connects. Later it would wait for two thirds of one, which
// leaves too little to find another server.
type wire struct {
	net.Conn
	link  *link
	stop  func() bool
	limit time.Duration // of the wait for an answer
	head  []byte        // the first bytes of the answer to the greeting
	login chan struct{} // one for each of the two reads of the answer to a login
}

// greeting is the length of an answer, the version and the time-out.
const greeting = 12

// Read gives no answer before the client has set its watches again. The client reads
// then, without a lock, what an answer writes, and would miss what happened in between.
func (w *wire) Read(p []byte) (int, error) {
	l := w.link
	l.waitRearmed(w.limit, w.login) // after that the read is too late as well
	if l.life.Err() != nil {
		return 0, zk.ErrConnectionClosed
	}
	n, err := w.Conn.Read(p)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.why, l.up = err, l.up && err == nil // the client tells later
	if len(w.head) < greeting {
		if w.head = append(w.head, p[:n]...); len(w.head) >= greeting {
			l.misses, l.mutes = 0, 0
			l.timeout = time.Duration(binary.BigEndian.Uint32(w.head[8:greeting])) * time.Millisecond
			w.limit = max(l.timeout/2, pause) // the client pings each third of it
		}
	}
	return n, err
}

// waitRearmed waits for most, or for some pauses if perhaps the client has no watches, because it sets none then. The client
// logs in before all else, and awaits that answer, which has no zxid.
func (l *link) waitRearmed(most time.Duration, login <-chan struct{}) {
	l.mu.Lock()
	rearmed := l.rearmed
	if len(l.anchor) > 0 { // it has fired
		most = 4 * pause
	}
	l.mu.Unlock()
	if rearmed == nil {
		return
	}
	select {
	case <-rearmed:
	case <-login:
	case <-time.After(most):
		l.mu.Lock()
		if l.rearmed == rearmed {
			l.rearmed = nil
		}
		l.mu.Unlock()
	case <-l.life.Done():
	}
}

// hasRearmed ends the wait of Read.
func (l *link) hasRearmed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rearmed != nil {
		close(l.rearmed)
		l.rearmed = nil
	}
}

// How the client logs in, and sets its watches again.
const opSetAuth, opSetWatches = 100, 101

// Write says no more when the link must not.
func (w *wire) Write(p []byte) (int, error) {
	l := w.link
	if l.life.Err() != nil {
		return 0, zk.ErrConnectionClosed
	}
	switch binary.BigEndian.Uint32(p[8:]) {
	case opSetAuth:
		for len(w.login) < cap(w.login) {
			w.login <- struct{}{}
		}
	case opSetWatches:
		l.hasRearmed()
	}
	n, err := w.Conn.Write(p)
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.up, err = false, zk.ErrConnectionClosed // as the client calls it when there is no answer
	}
	return n, err
}

func (w *wire) SetReadDeadline(t time.Time) error {
	if most := time.Now().Add(w.limit); t.IsZero() || t.After(most) {
		t = most
	}
	return w.Conn.SetReadDeadline(t)
}

func (w *wire) Close() error {
	if w.stop() && len(w.head) < greeting {
		w.link.missed(nil)
	}
	err := w.Conn.Close() // first, so that the reader reads no answer any more
	w.link.hasRearmed()
	return err
}

type silent struct{}

func (silent) Printf(string, ...any) {} // all that matters comes as an error

// close ends the session, and waits until the server has answered and nothing of the link runs
// any more. The call waits for a second at most, or longer for a session with many nodes. If ctx has
// ended nothing is said: the store ends the session in its own time.
func (l *link) close(ctx context.Context) error {
	l.finish()
	ctx, cancel := context.WithTimeout(ctx, time.Second+time.Duration(l.nodes.Load())*time.Millisecond)
	defer cancel()
	l.mu.Lock()
	up := l.up
	l.tell()
	l.mu.Unlock()
	if !up || ctx.Err() != nil {
		l.end()
	}
	defer context.AfterFunc(ctx, l.end)()
	l.engine.partings.Go(func() {
		l.containers.Lock()
		l.conn.Close() // waits for longer, perhaps for nothing
	})
	for range l.events {
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	err := cmp.Or(l.why, l.life.Err())
	l.end()
	return err
}
