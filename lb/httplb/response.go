package httplb

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/pawl-go/pawl/lb"
)

// flight is a request that is in flight until the end of its response's body.
type flight struct {
	pick   lb.Pick
	result lb.Result
	caller context.Context
	cancel context.CancelCauseFunc // of the try; nil: none
	ended  atomic.Bool
}

// attach ends the flight with the body of the response.
func attach(res *http.Response, f *flight) {
	upgraded, ok := res.Body.(io.ReadWriteCloser)
	switch {
	case res.Body == nil || res.Body == http.NoBody:
		f.end(nil)
	case ok && res.StatusCode == http.StatusSwitchingProtocols:
		res.Body = &connection{upgraded, f}
	default:
		res.Body = &arriving{res.Body, f}
	}
}

// end ends the request once.
func (f *flight) end(err error) {
	if f.ended.Swap(true) {
		return
	}
	if f.cancel != nil {
		f.cancel(nil)
	}
	result := f.result
	if err != nil && !errors.Is(err, io.EOF) {
		if result = lb.Failed; errors.Is(err, context.Canceled) || errors.Is(f.caller.Err(), context.Canceled) {
			result = lb.Canceled
		}
	}
	f.pick.Done(result)
}

// arriving is the body of a response.
type arriving struct {
	io.ReadCloser
	*flight
}

// Read implements [io.Reader].
func (a *arriving) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if err != nil {
		a.end(err)
	}
	return n, err
}

// Close implements [io.Closer].
func (a *arriving) Close() error {
	err := a.ReadCloser.Close()
	a.end(nil)
	return err
}

// connection is the body of a response that switched protocols, whose directions end one by one.
type connection struct {
	io.ReadWriteCloser
	*flight
}

// Close implements [io.Closer].
func (c *connection) Close() error {
	err := c.ReadWriteCloser.Close()
	c.end(nil)
	return err
}

// CloseWrite ends the direction to the node.
func (c *connection) CloseWrite() error {
	if half, ok := c.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return http.ErrNotSupported
}
