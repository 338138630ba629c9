package httpidem

import (
	"bytes"
	"context"
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
// repeats: see the documentation of the package. It fails with [pawl.ErrInvalid] unless the options have Identity and
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

// serve handles a request that needs a key.
func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	key, refused := m.key(r)
	if refused != nil {
		m.refuse(w, *refused)
		return
	}
	body, refused := m.read(w, r)
	if refused != nil {
		m.refuse(w, *refused)
		return
	}
	print := idem.FingerprintOf([]byte(r.Method), []byte(r.URL.RequestURI()), body.Bytes())
	c, err := m.begin(r.Context(), key, print)
	if err != nil {
		if m.opts.LetThrough && errors.Is(err, pawl.ErrUnavailable) && r.Context().Err() == nil {
			m.opts.Report(r, fmt.Errorf("let a request through: %w", err))
			next.ServeHTTP(w, m.request(r, r.Context(), body))
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
	m.run(w, r, body, c, next)
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

// read returns the body of a request, or the problem with it.
func (m *middleware) read(w http.ResponseWriter, r *http.Request) (body *bytes.Buffer, refused *problem) {
	body = new(bytes.Buffer)
	large := largeBody.because(fmt.Sprintf("At most %d bytes are allowed. Nothing was done.", m.opts.MaxBody))
	if r.ContentLength > m.opts.MaxBody {
		return nil, &large
	}
	body.Grow(int(min(max(r.ContentLength, 0), 64<<10)) + bytes.MinRead)
	_, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, m.opts.MaxBody))
	var most *http.MaxBytesError
	if errors.As(err, &most) {
		return nil, &large
	}
	if err != nil {
		m.opts.Report(r, fmt.Errorf("read the body: %w", err))
		return nil, &badBody
	}
	return body, nil
}

// request returns the request as the handler sees it.
func (m *middleware) request(r *http.Request, ctx context.Context, body *bytes.Buffer) *http.Request {
	again := r.WithContext(ctx)
	again.Body = io.NopCloser(bytes.NewReader(body.Bytes()))
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
	if errors.Is(err, pawl.ErrUnavailable) || r.Context().Err() != nil {
		return unavailable
	}
	return broken
}

// run has the handler make the response, and keeps it. The handler runs within the claim, not within
// the connection of the client, because a repeat of the client needs the response.
func (m *middleware) run(w http.ResponseWriter, r *http.Request, body *bytes.Buffer, c claim, next http.Handler) {
	store := context.WithoutCancel(r.Context()) // the client bounds each call by a TTL
	returned := false
	defer func() {
		if returned {
			return
		}
		if err := c.Abort(store); err != nil { // and the panic goes on
			m.opts.Report(r, err)
		}
	}()
	work := c.Context()
	if held, is := c.(*idem.Claim); is {
		work = context.WithValue(work, claimKey{}, held)
	}
	rec := &recorder{under: w, opts: &m.opts}
	next.ServeHTTP(rec, m.request(r, work, body))
	returned = true
	response := rec.response()
	if !m.opts.Keep(response.status) {
		if err := c.Abort(store); err != nil {
			m.opts.Report(r, err)
		}
		rec.finish()
		return
	}
	err := c.Complete(store, response.encode())
	if err != nil {
		m.opts.Report(r, err)
	}
	if errors.Is(err, idem.ErrTakenOver) {
		rec.instead(m, takenOver)
		return
	}
	rec.finish() // also if the store did not answer, because a client that knows does not repeat
}

type claimKey struct{}

// FromContext returns the claim under which a handler runs, for its key, its token and its recovery points. The middleware
// completes the claim by the response, so the handler calls neither Complete nor Abort.
func FromContext(ctx context.Context) (c *idem.Claim, ok bool) {
	c, ok = ctx.Value(claimKey{}).(*idem.Claim)
	return c, ok
}
