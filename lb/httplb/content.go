package httplb

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// content is the body of a request through all its tries. A body that no try has read goes to the next try. That
// is so after a refused connection, although [http.Transport] closes the body then.
type content struct {
	req   *http.Request
	next  *reading // of the next try; nil: no body
	tried bool     // a try got the body, and closes it
	wrong bool     // the trailer cannot be sent; later looks at the trailer are not safe beside a read of the body
}

// reading is the body as one try reads it.
type reading struct {
	mu     sync.Mutex
	body   io.ReadCloser
	waits  *patience // of the try
	length int64     // that the request announces; -1: none
	read   int64
	took   time.Duration // of all Reads, in which the client sends
	begun  bool          // a Read has begun
	shut   bool          // Close was called, and the body waits for the next try
	final  bool          // no other try gets the body
	gone   bool          // another try has the body
	fault  bool          // the body had an error, or another length than was announced
}

func newContent(r *http.Request) *content {
	c := &content{req: r, wrong: !valid(r.Trailer)}
	if r.Body != nil && r.Body != http.NoBody {
		c.next = &reading{body: r.Body, length: announced(r)}
	}
	return c
}

func announced(r *http.Request) int64 {
	if r.ContentLength > 0 {
		return r.ContentLength
	}
	return -1
}

// again makes the body ready for another try, if that can be.
func (c *content) again() bool {
	if c.next == nil {
		return true
	}
	if body := c.next.abandon(); body != nil {
		c.next = &reading{body: body, length: announced(c.req)}
		return true
	}
	if c.req.GetBody == nil {
		return false
	}
	body, err := c.req.GetBody()
	if err != nil {
		return false
	}
	c.next = &reading{body: body, length: announced(c.req)}
	return true
}

// release lets the last try close the body. Without any try release closes the body.
func (c *content) release() {
	if c.next == nil {
		return
	}
	c.next.mu.Lock()
	c.next.final = true
	now := !c.tried || c.next.shut && !c.next.begun
	c.next.mu.Unlock()
	if now {
		c.next.body.Close() //nolint:errcheck // nothing was read
	}
}

// mistaken reports whether an error is the caller's, and not the node's.
func (c *content) mistaken(err error) bool {
	if c.next != nil {
		c.next.mu.Lock()
		defer c.next.mu.Unlock()
		if c.next.fault {
			return true
		}
	}
	return c.wrong || !sendable(c.req) || refused(err)
}

// latency returns how much of the time of a try the node took, and not the client for its body.
func (c *content) latency(took time.Duration) time.Duration {
	if c.next == nil {
		return took
	}
	c.next.mu.Lock()
	defer c.next.mu.Unlock()
	return max(took-c.next.took, 1)
}

// abandon takes a body away that was not read. Else abandon returns nil.
func (b *reading) abandon() io.ReadCloser {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.begun || b.final || b.gone {
		return nil
	}
	b.gone = true
	return b.body
}

var errAbandoned = errors.New("read the body of a request: another try has the body")

// Read implements [io.Reader].
func (b *reading) Read(p []byte) (int, error) {
	b.mu.Lock()
	if b.gone {
		b.mu.Unlock()
		return 0, errAbandoned
	}
	b.begun = true
	b.mu.Unlock()
	b.waits.pause()
	began := time.Now()
	n, err := b.body.Read(p)
	b.waits.resume()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read += int64(n)
	b.took += time.Since(began)
	ended := errors.Is(err, io.EOF)
	if b.length >= 0 && (b.read > b.length || ended && b.read < b.length) || err != nil && !ended && !b.shut {
		b.fault = true
	}
	return n, err
}

// Close implements [io.Closer].
func (b *reading) Close() error {
	b.mu.Lock()
	wait := b.gone || !b.begun && !b.final
	b.shut = true
	b.mu.Unlock()
	if wait {
		return nil
	}
	return b.body.Close()
}
