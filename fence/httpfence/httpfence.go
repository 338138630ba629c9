// Package httpfence carries fencing tokens over HTTP, in the header Pawl-Fence. [Transport]
// sends the token of the lock with each request. [Handler] refuses requests whose token is
// older than a token it has seen.
//
// # What a server replies
//
//   - 412 Precondition Failed: the token is stale. The header is a condition of
//     the client, as If-Match is, and it no longer holds. To tell the two apart,
//     the reply has the header "Pawl-Fence: stale"; see [CheckResponse].
//   - 400 Bad Request: the header is no token, or there are two.
//   - 428 Precondition Required: there is no header, unless Options.Optional.
//   - 503 Service Unavailable: the guard could not be asked.
//
// # What it protects
//
// The check and the write are one step where the guard makes them one. With [fence.Memory], the
// handler runs inside of the guard's step. So all its writes before it returns are protected,
// as long as one process serves the resource. With every other guard the check comes first and
// then the handler runs, and a newer request may overtake it in between. The check turns late
// clients away, early and cheaply, but only a second check with the write protects. The handler
// finds the token in its context, by [fence.FromContext] with the name of the resource, and
// writes with package sqlfence, redisfence or etcdfence.
//
// # What it does not protect
//
//   - Requests that bypass the handler: other routes, other servers, other methods
//     if resource leaves them out.
//   - Actions of a handler after it returned.
//   - A server that was restarted and has its marks in memory: the first token
//     passes, whichever it is.
//   - From clients that lie: a client that may send the header may send a token so
//     large that all others are refused for ever. Authenticate first.
//
// Equal tokens pass: it is the same holder, and its requests run beside one
// another.
package httpfence

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/pawl-go/pawl/fence"
)

// Header is the name of the header. The value is a token as a decimal number.
const Header = "Pawl-Fence"

// stale is the value of the header in a reply that refuses a token.
const stale = "stale"

// Transport adds the token to requests. A Transport is an http.RoundTripper, safe for
// concurrent use. Transport sends the token to every server that its client is
// redirected to. The token is no secret, but a number that says how often the lock was taken.
type Transport struct {
	// Base sends the requests. Default http.DefaultTransport.
	Base http.RoundTripper
	// Lock names the lock that protects the target of a request, or returns "" for a request
	// that needs no token. The token comes from the request's context, where [fence.WithToken]
	// puts it. Default: the lock of which the context carries a token. A request whose context
	// carries tokens of several locks is not sent: a token of another lock would make the
	// server refuse the rightful holder.
	Lock func(*http.Request) string
	// Token returns the token of a request, if the request has one. Token replaces Lock.
	Token func(*http.Request) (fence.Token, bool)
}

// RoundTrip implements http.RoundTripper. A request without a token is sent as
// it is.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	base, find := t.Base, t.Token
	if base == nil {
		base = http.DefaultTransport
	}
	if find == nil {
		lock, err := t.lock(r)
		if err != nil {
			if r.Body != nil {
				r.Body.Close() //nolint:errcheck // nothing was read
			}
			return nil, err
		}
		find = func(r *http.Request) (fence.Token, bool) { return fence.FromContext(r.Context(), lock) }
	}
	if token, ok := find(r); ok {
		r = r.Clone(r.Context()) // it is not ours to change
		r.Header.Set(Header, token.String())
	}
	return base.RoundTrip(r)
}

// lock names the lock whose token a request is to carry.
func (t *Transport) lock(r *http.Request) (string, error) {
	if t.Lock != nil {
		return t.Lock(r), nil
	}
	switch locks := fence.Locks(r.Context()); len(locks) {
	case 0:
		return "", nil
	case 1:
		return locks[0], nil
	default:
		return "", fmt.Errorf("%w: the context carries the tokens of %d locks, %q: set Transport.Lock to say which", fence.ErrInvalid, len(locks), locks)
	}
}

// CheckResponse returns an error that matches [fence.ErrStale] if the response
// says that the token of its request is stale. CheckResponse does not close the body.
func CheckResponse(r *http.Response) error {
	if r.StatusCode == http.StatusPreconditionFailed && r.Header.Get(Header) == stale {
		return fmt.Errorf("%w: refused by the server", fence.ErrStale)
	}
	return nil
}

// Options are the settings of a [Handler]. The zero value is the default.
type Options struct {
	// Optional lets requests without the header pass unchecked, as long as not
	// all clients send it. Default: they are refused with 428.
	Optional bool
	// Refuse replies to a refused request, instead of a line of text. Log there,
	// too: err is the reason, and may name secrets, as the address of a
	// database.
	Refuse func(w http.ResponseWriter, r *http.Request, status int, err error)
}

// handler is the middleware.
type handler struct {
	next     http.Handler
	guard    fence.Guard
	resource func(*http.Request) string
	opts     Options
}

// doer is a guard that makes the check and the write one step.
type doer interface {
	Do(ctx context.Context, resource string, token fence.Token, write func() error) error
}

// Handler returns next behind a guard. resource names the target of a request, the same name
// for all targets of one lock. The function returns "" for a request that needs no token, such as a read.
// next finds the token in the context of the request, under that name. A guard with a method Do
// like that of [fence.Memory] runs next within Do. Nil opts are the defaults.
func Handler(next http.Handler, guard fence.Guard, resource func(*http.Request) string, opts *Options) http.Handler {
	h := &handler{next: next, guard: guard, resource: resource}
	if opts != nil {
		h.opts = *opts
	}
	return h
}

var (
	errMissing = errors.New("no " + Header + " header: send the fencing token of the lock")
	errUnclear = fmt.Errorf("%w %s header: it has to be one token, a decimal number from 1 to 2^53-1", fence.ErrInvalid, Header)
)

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := h.resource(r)
	values := r.Header.Values(Header)
	if resource == "" || len(values) == 0 && h.opts.Optional {
		h.next.ServeHTTP(w, r)
		return
	}
	if len(values) == 0 {
		h.refuse(w, r, errMissing)
		return
	}
	token, err := fence.ParseToken(values[0])
	if err != nil || len(values) > 1 || token.Validate() != nil || token.String() != values[0] {
		h.refuse(w, r, errUnclear)
		return
	}
	serve := func() error {
		h.next.ServeHTTP(w, r.WithContext(fence.WithToken(r.Context(), resource, token)))
		return nil
	}
	if guard, ok := h.guard.(doer); ok {
		err = guard.Do(r.Context(), resource, token, serve)
	} else if err = h.guard.Check(r.Context(), resource, token); err == nil {
		err = serve()
	}
	if err != nil {
		h.refuse(w, r, err)
	}
}

// refuse replies. The guard's own errors are not for strangers.
func (h *handler) refuse(w http.ResponseWriter, r *http.Request, err error) {
	status, text := http.StatusServiceUnavailable, "the fencing token could not be checked"
	switch {
	case errors.Is(err, errMissing):
		status, text = http.StatusPreconditionRequired, err.Error()
	case errors.Is(err, fence.ErrStale):
		status, text = http.StatusPreconditionFailed, err.Error()
		w.Header().Set(Header, stale)
	case errors.Is(err, fence.ErrInvalid):
		status, text = http.StatusBadRequest, err.Error()
	}
	if h.opts.Refuse != nil {
		h.opts.Refuse(w, r, status, err)
		return
	}
	http.Error(w, text, status)
}
