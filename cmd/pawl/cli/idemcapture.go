//go:build unix

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
)

// capture passes the output of a command on, while the command runs, and keeps it.
type capture struct {
	outcome outcome
	pipes   [2]*pipe
	pumps   sync.WaitGroup
}

// pipe is one stream of the command.
type pipe struct {
	stream   byte
	from, in *os.File
	to       io.Writer
	refused  bool // the reader of pawl's stream has gone, or the disk is full
}

// startCapture keeps at most this many bytes.
func startCapture(most int) (*capture, error) {
	c := &capture{outcome: outcome{most: most}}
	c.pipes = [2]*pipe{{stream: toStdout, to: os.Stdout}, {stream: toStderr, to: os.Stderr}}
	for _, p := range c.pipes {
		var err error
		if p.from, p.in, err = os.Pipe(); err != nil {
			return nil, err // the process ends
		}
	}
	for _, p := range c.pipes {
		c.pumps.Go(func() { c.pump(p) })
	}
	return c, nil
}

// pump reads until finish sets the deadline. A slow reader of pawl's stream slows the command down, as without pawl.
func (c *capture) pump(p *pipe) {
	text := make([]byte, 32<<10)
	for {
		n, err := p.from.Read(text)
		c.pass(p, text[:n])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			c.rest(p, text)
			return
		}
		if err != nil {
			return
		}
	}
}

// mostPiped is how much a pipe holds at most. Only an administrator can allow more.
const mostPiped = 1 << 20

// rest reads the present content of the pipe. rest does not wait for processes that the command has left behind.
func (c *capture) rest(p *pipe, text []byte) {
	p.from.SetReadDeadline(time.Time{}) //nolint:errcheck // pipes have deadlines
	conn, err := p.from.SyscallConn()
	for left := mostPiped; err == nil && left > 0; {
		var n int
		var failed error
		err = conn.Read(func(fd uintptr) bool {
			n, failed = syscall.Read(int(fd), text)
			return true // also when the pipe is empty
		})
		if failed == syscall.EINTR {
			continue
		}
		if n <= 0 {
			return
		}
		c.pass(p, text[:n])
		left -= n
	}
}

// pass keeps the text before it is passed on. The command works on when nobody reads its output.
func (c *capture) pass(p *pipe, text []byte) {
	if len(text) == 0 {
		return
	}
	c.outcome.add(p.stream, text)
	if p.refused {
		return
	}
	_, err := p.to.Write(text)
	if p.refused = err != nil; p.refused && !errors.Is(err, syscall.EPIPE) {
		complain(fmt.Errorf("pass the output of the command on: %w", err))
	}
}

// finish waits until the output of the command, which has ended, is passed on. finish fails when ctx
// ends before.
func (c *capture) finish(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.pumps.Wait()
	}()
	for _, p := range c.pipes {
		p.in.Close()
		p.from.SetReadDeadline(time.Now()) //nolint:errcheck // pipes have deadlines
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
