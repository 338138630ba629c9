package httplb

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// client bounds how long the client of a proxy may stall. The time-outs of a server are for a whole request, and a long upload is no stall.
// Deadlines count only while a read or a write waits for the client, so a response may pause. Shorter time-outs of the server stand.
type client struct {
	http.ResponseWriter
	control *http.ResponseController
	body    io.ReadCloser
	most    time.Duration
	duplex  bool // HTTP/2: a response does not wait for the end of the body

	readEnd, writeEnd time.Time // those of the server; zero: none

	mu       sync.Mutex
	waits    int  // for the body
	answered bool // the response has begun
	full     bool // the response has a body
	read     bool // the body was read to its end, or there is none
	late     bool // the body did not come in time
	cut      bool // a deadline of reads has passed, and stays so that the server does not wait once more
	ended    bool // the connection belongs to the server again
}

// errStalled says that the client sent nothing of its body for too long.
var errStalled = errors.New("nothing of the body came in time")

// bounded returns the writer and the request with such a bound.
func bounded(w http.ResponseWriter, r *http.Request, most time.Duration) (*client, *http.Request) {
	c := &client{ResponseWriter: w, control: http.NewResponseController(w), body: r.Body, most: most, duplex: r.ProtoMajor > 1}
	if server, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok {
		if server.ReadTimeout > 0 {
			c.readEnd = time.Now().Add(server.ReadTimeout)
		}
		if server.WriteTimeout > 0 {
			c.writeEnd = time.Now().Add(server.WriteTimeout)
		}
	}
	r = r.WithContext(r.Context())
	if c.read = r.Body == nil || r.Body == http.NoBody; !c.read {
		r.Body = c
	}
	return c, r
}

// by is the next deadline, and end that of the server.
func (c *client) by(most time.Duration, end time.Time) time.Time {
	if next := time.Now().Add(most); end.IsZero() || next.Before(end) {
		return next
	}
	return end
}

// wait begins a wait for the body of the request, and end ends that wait.
func (c *client) wait() (end func(error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waits++
	c.readBy()
	return func(err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.waits--
		c.read = c.read || errors.Is(err, io.EOF)
		c.cut = c.cut || errors.Is(err, os.ErrDeadlineExceeded)
		if c.waits == 0 {
			c.readBy()
		}
	}
}

// readBy sets the deadline of reads. After the end of a body, and of the request, reads are the server's own.
func (c *client) readBy() {
	if c.read || c.cut || c.ended {
		return
	}
	next := c.readEnd
	switch {
	case c.waits > 0 && !(c.duplex && c.answered): // a stream in both directions may pause
		next = c.by(c.most, c.readEnd)
	case !c.duplex: // nothing is read before the next wait, but for the server's own look at the connection
		next = time.Time{}
	}
	c.control.SetReadDeadline(next) //nolint:errcheck // a writer of the user's may have none
}

// Read implements [io.Reader].
func (c *client) Read(p []byte) (int, error) {
	end := c.wait()
	n, err := c.body.Read(p)
	end(err)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.mu.Lock()
		c.late = true
		c.mu.Unlock()
	}
	return n, err
}

// stalled reports whether the client is to blame for the end of its request.
func (c *client) stalled() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.late
}

// Close implements [io.Closer]. A server reads the rest of a short body then.
func (c *client) Close() error {
	end := c.wait()
	err := c.body.Close()
	end(err)
	return err
}

// write calls do, which may wait for the client.
func (c *client) write(do func() error) error {
	if !c.duplex {
		end := c.wait()
		defer end(nil)
	}
	c.writeBy()
	err := do()
	if err == nil {
		c.control.SetWriteDeadline(c.writeEnd) //nolint:errcheck // as in writeBy
	}
	return err
}

// writeBy sets the deadline of writes. Before the first bytes of a response a server of HTTP/1.1 reads the rest of a short body, which
// has a deadline of its own.
func (c *client) writeBy() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	most := c.most
	if !c.duplex && !c.read && !c.cut {
		most *= 2
	}
	c.control.SetWriteDeadline(c.by(most, c.writeEnd)) //nolint:errcheck // a writer of the user's may have none
}

// answers begins the response.
func (c *client) answers(full bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.full = c.full || full
	if !c.answered {
		c.answered = true
		c.readBy()
	}
}

// WriteHeader implements [http.ResponseWriter].
func (c *client) WriteHeader(status int) {
	if status >= 200 {
		c.answers(false)
	}
	c.write(func() error { c.ResponseWriter.WriteHeader(status); return nil }) //nolint:errcheck // the next write has the error
}

// Write implements [http.ResponseWriter].
func (c *client) Write(p []byte) (n int, err error) {
	c.answers(len(p) > 0)
	err = c.write(func() error { n, err = c.ResponseWriter.Write(p); return err })
	return n, err
}

// FlushError is for [http.ResponseController].
func (c *client) FlushError() error {
	c.answers(false)
	return c.write(c.control.Flush)
}

// Hijack is for [http.ResponseController]. An upgraded connection has no deadlines.
func (c *client) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn, buffered, err := c.control.Hijack()
	c.ended = err == nil
	return conn, buffered, err
}

// Unwrap is for [http.ResponseController].
func (c *client) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// flush writes the rest of a response of HTTP/2. A deadline for the server to do so could outlive the stream. A response without a
// body is not flushed: the end of the stream would come after the header, and gRPC needs both together.
func (c *client) flush() {
	if c.duplex && c.full {
		c.FlushError() //nolint:errcheck // the client has gone
	}
}

// end bounds what the server does after its handler. A transport may read a body beside that.
func (c *client) end() {
	if !c.duplex {
		c.wait()
		c.writeBy()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
}
