package main

import (
	"bytes"
	"io"
	"net"
	"sync"
)

// wire is the network between a process and a server. The faults of -tx are faults of it.
type wire struct {
	addr, server string
	watch        func(request []byte) (pass bool) // or nil
	listener     net.Listener
	working      sync.WaitGroup

	mu    sync.Mutex
	links map[*link]bool
	cut   bool
	gate  chan struct{} // requests pass when it is closed
	trap  *trap         // or nil
}

// trap is a text of a request, at which trouble begins.
type trap struct {
	text   string
	sever  bool          // or else hold
	sprung chan struct{} // is closed then
}

// link is a connection on a wire.
type link struct {
	client, server net.Conn
	ended          chan struct{}
	once           sync.Once
}

func (l *link) end() {
	l.once.Do(func() {
		close(l.ended)
		l.client.Close() //nolint:errcheck // nothing is lost with it
		l.server.Close() //nolint:errcheck // as above
	})
}

// newWire returns a wire to a server, which need not listen yet.
func newWire(server string, watch func(request []byte) (pass bool)) (*wire, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &wire{addr: listener.Addr().String(), server: server, watch: watch, listener: listener, links: make(map[*link]bool), gate: make(chan struct{})}
	close(w.gate)
	w.working.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			w.working.Go(func() { w.carry(client) })
		}
	})
	return w, nil
}

func (w *wire) carry(client net.Conn) {
	server, err := net.Dial("tcp", w.server)
	if err != nil {
		client.Close() //nolint:errcheck // nothing is lost with it
		return
	}
	l := &link{client: client, server: server, ended: make(chan struct{})}
	defer func() {
		l.end()
		w.mu.Lock()
		delete(w.links, l)
		w.mu.Unlock()
	}()
	w.mu.Lock()
	w.links[l] = true
	isCut := w.cut
	w.mu.Unlock()
	if isCut {
		return
	}
	w.working.Go(func() {
		defer l.end()
		io.Copy(client, server) //nolint:errcheck // its end is all that counts
	})
	buf := make([]byte, 16<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		select {
		case <-w.passing(buf[:n]):
		case <-l.ended:
			return
		}
		if w.watch != nil && !w.watch(buf[:n]) {
			continue
		}
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// passing springs the trap if it is for a request. The request passes when the channel is closed.
func (w *wire) passing(request []byte) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.trap; t != nil && bytes.Contains(request, []byte(t.text)) {
		w.trap = nil
		w.gate = make(chan struct{})
		if t.sever {
			w.severed()
		}
		close(t.sprung)
	}
	return w.gate
}

// hold lets all requests wait, from the first with a text on. The channel is closed then.
func (w *wire) hold(at string) <-chan struct{} { return w.set(&trap{text: at}) }

// severAt ends all connections when a request has a text, which is lost.
func (w *wire) severAt(text string) <-chan struct{} { return w.set(&trap{text: text, sever: true}) }

func (w *wire) set(t *trap) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	t.sprung = make(chan struct{})
	w.trap = t
	return t.sprung
}

// sever ends all connections, and everything that is on its way is lost. New connections end at once.
func (w *wire) sever() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.severed()
}

// severed is sever while w.mu is held.
func (w *wire) severed() {
	w.cut = true
	for l := range w.links {
		l.end()
	}
}

// heal ends the trouble: requests that wait arrive now.
func (w *wire) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = false
	select {
	case <-w.gate:
	default:
		close(w.gate)
	}
}

func (w *wire) close() error {
	err := w.listener.Close()
	w.sever()
	w.working.Wait()
	return err
}
