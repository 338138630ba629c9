package httpidem

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idem"
)

// middleware is the result of New.
type middleware struct {
	begin      func(context.Context, idem.Key, idem.Fingerprint) (claim, error)
	opts       Options
	retryAfter string
}

// claim is what the middleware needs of an [idem.Claim].
type claim interface {
	Kept() ([]byte, bool)
	Context() context.Context
	Complete(context.Context, []byte) error
	Abort(context.Context) error
}

// New returns a middleware that runs a handler once for each key, and replays its response to
// repeats: see the documentation of the package. New fails with [pawl.ErrInvalid] unless the options have Identity and
// allowed values. The middleware is safe for concurrent use.
//
// Wrap the middleware with authentication and with limits of rates, not the other way round: what they
// reply is none of the handler's.
func New(leases *idem.Leases, opts *Options) (func(http.Handler) http.Handler, error) {
	if opts == nil {
		opts = new(Options)
	}
	m, err := newMiddleware(opts, func(ctx context.Context, key idem.Key, print idem.Fingerprint) (claim, error) {
		c, err := leases.Begin(ctx, key, print, &idem.BeginOptions{NoWait: true})
		if err != nil {
			return nil, err
		}
		return c, nil
	})
	if err == nil && leases == nil {
		err = invalid("leases is nil")
	}
	if err != nil {
		return nil, fmt.Errorf("new middleware: %w", err)
	}
	return m.wrap, nil
}

func newMiddleware(opts *Options, begin func(context.Context, idem.Key, idem.Fingerprint) (claim, error)) (*middleware, error) {
	o, err := opts.withDefaults()
	after := (o.RetryAfter + time.Second - 1) / time.Second
	return &middleware{begin, o, strconv.Itoa(int(after))}, err
}

func (m *middleware) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(m.opts.Methods, r.Method) || m.opts.Optional && r.Header[Header] == nil {
			next.ServeHTTP(w, r)
			return
		}
		m.serve(w, r, next)
	})
}

// exchange is a request that needs a key, and its response.
type exchange struct {
	*middleware
	r        *http.Request
	text     bytes.Buffer // of which the fingerprint is made: method, target and body
	head     int          // where the body begins in text
	limited  io.LimitedReader
	body     body // as the handler reads it
	recorder recorder
}

// body is a body that was read before.
type body struct{ bytes.Reader }

// Close implements io.Closer.
func (*body) Close() error { return nil }

// serve handles a request that needs a key.
func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	key, refused := m.key(r)
	x := &exchange{middleware: m, r: r}
	if refused == nil {
		refused = x.read()
	}
	if refused != nil {
		m.refuse(w, *refused)
		return
	}
	c, err := m.begin(r.Context(), key, sha256.Sum256(x.text.Bytes()))
	if err != nil {
		if m.opts.LetThrough && errors.Is(err, pawl.ErrUnavailable) && r.Context().Err() == nil {
			m.opts.Report(r, fmt.Errorf("let a request through: %w", err))
			next.ServeHTTP(w, x.request(r.Context()))
			return
		}
		m.refuse(w, m.refusal(r, err))
		return
	}
	if text, kept := c.Kept(); kept {
		response, err := decodeResponse(text)
		if err != nil {
			m.refuse(w, m.refusal(r, err))
			return
		}
		m.replay(w, response)
		return
	}
	x.run(w, c, next)
}

// key returns the key of a request, or the problem with it.
func (m *middleware) key(r *http.Request) (key idem.Key, refused *problem) {
	id, err := readKey(r.Header, m.opts.Unquoted, m.opts.MaxKey)
	switch {
	case errors.Is(err, errMissing):
		return key, &keyMissing
	case err != nil:
		p := keyInvalid.because(err.Error())
		return key, &p
	}
	identity, err := m.opts.Identity(r)
	if err == nil && (identity == "" || len(identity) > MaxIdentity) {
		err = invalid("the identity has %d bytes: 1 to %d are allowed", len(identity), MaxIdentity)
	}
	key = idem.Key{Scope: m.opts.Scope + "/" + identity, ID: id}
	if err == nil {
		err = key.Validate()
	}
	if err != nil {
		m.opts.Report(r, fmt.Errorf("identify the caller: %w", err))
		return key, &noIdentity
	}
	return key, nil
}

// read reads the request, and returns the problem with it.
func (x *exchange) read() (refused *problem) {
	most, url := x.opts.MaxBody, x.r.URL
	if x.r.ContentLength <= most {
		x.text.Grow(int(min(max(x.r.ContentLength, 0), 64<<10)) + len(url.Path) + len(url.RawQuery) + bytes.MinRead)
		for _, part := range []string{x.r.Method, " ", url.EscapedPath(), "?", url.RawQuery, "\n"} {
			x.text.WriteString(part)
		}
		x.head = x.text.Len()
		x.limited = io.LimitedReader{R: x.r.Body, N: most + 1}
		if _, err := x.text.ReadFrom(&x.limited); err != nil {
			x.opts.Report(x.r, fmt.Errorf("read the body: %w", err))
			return &badBody
		}
	}
	if x.limited.N == 0 { // nothing was read, or more than allowed
		p := largeBody.because(fmt.Sprintf("At most %d bytes are allowed. Nothing was done.", most))
		return &p
	}
	return nil
}

// request returns the request as the handler sees it.
func (x *exchange) request(ctx context.Context) *http.Request {
	x.body.Reset(x.text.Bytes()[x.head:])
	again := x.r.WithContext(ctx)
	again.Body = &x.body
	return again
}

// refusal returns the problem that an error of the store is.
func (m *middleware) refusal(r *http.Request, err error) problem {
	switch {
	case errors.Is(err, idem.ErrReused):
		return keyReused
	case errors.Is(err, idem.ErrInFlight), errors.Is(err, idem.ErrTakenOver):
		return inFlight
	}
	m.opts.Report(r, err)
	if errors.Is(err, pawl.ErrGrace) || errors.Is(err, pawl.ErrUnavailable) || r.Context().Err() != nil {
		return unavailable
	}
	return broken
}

// run has the handler make the response, and keeps it. The handler runs within the claim, not within
// the connection of the client, because a repeat of the client needs the response.
func (x *exchange) run(w http.ResponseWriter, c claim, next http.Handler) {
	store := context.WithoutCancel(x.r.Context()) // each call ends by itself, after a TTL
	defer x.abort(store, c)                       // nothing after Complete; and a panic goes on
	rec := &x.recorder
	rec.under, rec.opts = w, &x.opts
	next.ServeHTTP(rec, x.request(context.WithValue(c.Context(), claimKey{}, c)))
	if rec.status == 0 {
		rec.WriteHeader(http.StatusOK)
	}
	if !x.opts.Keep(rec.status) {
		x.abort(store, c) // before the client repeats the request
		rec.finish()
		return
	}
	err := c.Complete(store, rec.response())
	if err != nil {
		x.opts.Report(x.r, err)
	}
	if errors.Is(err, idem.ErrTakenOver) {
		rec.instead(x.middleware, takenOver)
		return
	}
	rec.finish() // also if the store did not answer, because a client that knows does not repeat
}

func (x *exchange) abort(store context.Context, c claim) {
	if err := c.Abort(store); err != nil {
		x.opts.Report(x.r, err)
	}
}

type claimKey struct{}

// FromContext returns the claim under which a handler runs. The claim has the key, the token and the recovery points. The middleware
// completes the claim by the response, so the handler calls neither Complete nor Abort.
func FromContext(ctx context.Context) (c *idem.Claim, ok bool) {
	c, ok = ctx.Value(claimKey{}).(*idem.Claim)
	return c, ok
}
