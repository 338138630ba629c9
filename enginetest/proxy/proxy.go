// Package proxy makes trouble on the network for tests. A [Proxy] is a TCP proxy between a client and
// a real server. The proxy can lose and delay bytes, and close and refuse connections. The package imports
// only the standard library.
//
// A Proxy of an engine's own server makes the Network hook of enginetest:
//
//	p := proxy.New(t, serverAddr)
//	eng := connect(t, p.Addr)
//	return eng, enginetest.Network{Freeze: p.Freeze, FreezeReplies: p.FreezeReplies, Cut: p.Cut, Heal: p.Heal}
package proxy

import (
	"context"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"
)

// Proxy is a TCP proxy in front of a server. The methods are safe for concurrent use. A method that
// fails ends the test. The trouble concerns present and new connections.
type Proxy struct {
	Addr string // "127.0.0.1:port", to which clients connect

	t        testing.TB
	upstream string
	working  sync.WaitGroup // of the links

	mu       sync.Mutex
	listener net.Listener   // nil after Cut
	accepts  sync.WaitGroup // of the listener
	turn     sync.Mutex     // of Cut and Heal
	links    map[*link]bool
	trouble  trouble
	changed  chan struct{} // closed and replaced when trouble changes
}

// trouble is the fate of bytes.
type trouble struct {
	lost  [2]bool // by direction
	delay time.Duration
}

// The directions.
const (
	requests = iota
	replies
)

// link is a connection of a client, with the connection to the server behind it.
type link struct {
	ctx    context.Context // ends with the link
	end    context.CancelFunc
	client net.Conn
}

func (l *link) close() {
	l.end()
	l.client.Close() //nolint:errcheck // nothing is lost with it
}

// New starts a proxy in front of upstream, "host:port". The end of the test closes all connections,
// and waits until the proxy has ended.
func New(t testing.TB, upstream string) *Proxy {
	t.Helper()
	p := &Proxy{t: t, upstream: upstream, links: make(map[*link]bool), changed: make(chan struct{})}
	var err error
	for range 100 {
		// The system gives outgoing connections no port below these, so Heal finds its port free.
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(10000+rand.IntN(22768)))
		if err = p.listen(addr); err == nil {
			p.Addr = addr
			t.Cleanup(func() { p.Cut(); p.working.Wait() })
			return p
		}
	}
	t.Fatalf("start proxy to %s: %v", upstream, err)
	return nil
}

// Freeze makes the network a black hole. Bytes sent from now on are lost in both directions.
// Connections stay open until a side closes them, and new connections open but hang.
func (p *Proxy) Freeze() { p.set(func(t *trouble) { t.lost = [2]bool{true, true} }) }

// FreezeReplies loses only the bytes of the server: the server executes requests, and their outcome
// is unknown.
func (p *Proxy) FreezeReplies() { p.set(func(t *trouble) { t.lost[replies] = true }) }

// Delay holds all bytes back for d, in each direction.
func (p *Proxy) Delay(d time.Duration) { p.set(func(t *trouble) { t.delay = d }) }

// Thaw ends Freeze, FreezeReplies and Delay. Frozen connections close; delayed bytes arrive now.
func (p *Proxy) Thaw() {
	p.set(func(t *trouble) {
		if t.lost != [2]bool{} {
			p.endLinks()
		}
		*t = trouble{}
	})
}

// Cut closes all connections and refuses new connections.
func (p *Proxy) Cut() {
	p.turn.Lock()
	defer p.turn.Unlock()
	p.mu.Lock()
	if p.listener != nil {
		p.listener.Close() //nolint:errcheck // nothing is lost with it
		p.listener = nil
	}
	p.endLinks()
	p.mu.Unlock()
	p.accepts.Wait() // the port is open until then
}

// Heal ends all trouble.
func (p *Proxy) Heal() {
	p.t.Helper()
	p.turn.Lock()
	defer p.turn.Unlock()
	p.Thaw()
	p.mu.Lock()
	whole := p.listener != nil
	p.mu.Unlock()
	if whole {
		return
	}
	if err := p.listen(p.Addr); err != nil {
		p.t.Fatalf("heal proxy: %v", err)
	}
}

// Together returns functions that trouble and heal all of some proxies.
func Together(proxies []*Proxy) (freeze, freezeReplies, cut, heal func()) {
	each := func(do func(*Proxy)) func() {
		return func() {
			for _, p := range proxies {
				do(p)
			}
		}
	}
	return each((*Proxy).Freeze), each((*Proxy).FreezeReplies), each((*Proxy).Cut), each((*Proxy).Heal)
}

func (p *Proxy) set(change func(*trouble)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.trouble)
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) listen(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.listener = l
	p.mu.Unlock()
	p.accepts.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if l := p.newLink(l, conn); l != nil {
				p.working.Go(func() { p.serve(l) })
			}
		}
	})
	return nil
}

// newLink returns nil if Cut came meanwhile.
func (p *Proxy) newLink(of net.Listener, client net.Conn) *link {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != of {
		client.Close() //nolint:errcheck // nothing is lost with it
		return nil
	}
	l := &link{client: client}
	l.ctx, l.end = context.WithCancel(context.Background())
	p.links[l] = true
	return l
}

// endLinks closes all connections. p.mu is held.
func (p *Proxy) endLinks() {
	for l := range p.links {
		l.close()
	}
}

func (p *Proxy) serve(l *link) {
	defer func() {
		l.close()
		p.mu.Lock()
		delete(p.links, l)
		p.mu.Unlock()
	}()
	server, err := new(net.Dialer).DialContext(l.ctx, "tcp", p.upstream)
	if err != nil {
		return
	}
	closeServer := func() { server.Close() } //nolint:errcheck // nothing is lost with it
	defer closeServer()
	defer context.AfterFunc(l.ctx, closeServer)() // ends a read when the link ends
	var both sync.WaitGroup
	both.Go(func() { p.carry(l, l.client, server, requests) })
	both.Go(func() { p.carry(l, server, l.client, replies) })
	both.Wait()
}

// chunk is bytes on their way.
type chunk struct {
	bytes []byte
	at    time.Time // when they were read
}

// carry delivers bytes in one direction, and ends the link when that side closes.
func (p *Proxy) carry(l *link, from, to net.Conn, direction int) {
	chunks := make(chan chunk, 1024) // room for all bytes that are on their way during a delay
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(chunks)
		for {
			buf := make([]byte, 16<<10)
			n, err := from.Read(buf)
			if n > 0 {
				chunks <- chunk{buf[:n], time.Now()}
			}
			if err != nil {
				return
			}
		}
	})
	for c := range chunks {
		if !p.passes(l, c, direction) {
			continue
		}
		if _, err := to.Write(c.bytes); err != nil {
			l.close() // then the reading ends too
		}
	}
	l.close()
	reading.Wait()
}

// passes waits until the bytes are due, and reports whether they arrive at all.
func (p *Proxy) passes(l *link, c chunk, direction int) bool {
	for {
		p.mu.Lock()
		is, changed := p.trouble, p.changed
		p.mu.Unlock()
		left := is.delay - time.Since(c.at)
		switch {
		case l.ctx.Err() != nil || is.lost[direction]:
			return false
		case left <= 0:
			return true
		}
		due := time.NewTimer(left)
		select {
		case <-due.C:
		case <-changed:
		case <-l.ctx.Done():
		}
		due.Stop()
	}
}
