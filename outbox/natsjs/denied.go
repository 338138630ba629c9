package natsjs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/pawl-go/pawl/outbox"
)

// denials tells calls that the user may not send what they sent. The server answers no such call: the server tells the
// error handler of the connection.
type denials struct {
	nc *nats.Conn

	mu    sync.Mutex
	calls map[*call]bool
	deaf  error  // this user may not hear replies
	since uint64 // how often the connection had reconnected then
}

// call is a message that has no reply yet.
type call struct {
	denial string // what the server says if it denies the message
	end    context.CancelCauseFunc
}

// denialsOf listens beside the error handler that the connection has.
func denialsOf(nc *nats.Conn) *denials {
	d := &denials{nc: nc, calls: make(map[*call]bool)}
	before := nc.ErrorHandler()
	nc.SetErrorHandler(func(nc *nats.Conn, sub *nats.Subscription, err error) {
		d.hear(err)
		if before != nil {
			before(nc, sub, err)
		}
	})
	return d
}

// hear ends the calls that an error of the connection concerns.
func (d *denials) hear(err error) {
	if err == nil || !strings.Contains(strings.ToLower(err.Error()), nats.PERMISSIONS_ERR) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	text, prefix := err.Error(), nats.InboxPrefix
	if d.nc.Opts.InboxPrefix != "" {
		prefix = d.nc.Opts.InboxPrefix + "."
	}
	if strings.Contains(text, `Subscription to "`+prefix) {
		d.deaf, d.since = fmt.Errorf("%w: permission denied to hear replies: %w", outbox.ErrBlocked, err), d.nc.Stats().Reconnects
	}
	for c := range d.calls {
		if strings.Contains(text, c.denial) {
			c.end(fmt.Errorf("%w: permission denied: %w", outbox.ErrBlocked, err))
		}
	}
}

// during asks the server, unless the server says the denial.
func (d *denials) during(ctx context.Context, denial string, ask func(context.Context) error) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	c := &call{denial, end}
	d.mu.Lock()
	d.calls[c] = true
	d.mu.Unlock()
	err := ask(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.calls, c)
	switch denied := context.Cause(ctx); {
	case err != nil && errors.Is(denied, outbox.ErrBlocked):
		return denied
	case err != nil && ctx.Err() != nil && d.deaf != nil && d.since == d.nc.Stats().Reconnects:
		return d.deaf
	}
	return err
}
