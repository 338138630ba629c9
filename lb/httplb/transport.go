package httplb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/lb"
)

// Options change a [Transport]. The zero value is the default.
type Options struct {
	// Base sends the requests. Base keeps a pool of connections for each address. Default: an [http.Transport]
	// without a proxy, that waits 2 s for a connection, or three quarters of TryTimeout if that is less. The default keeps 256 idle connections to
	// a node. For HTTPS set TLSClientConfig.ServerName of a Base of your own, because certificates are checked against the address of the
	// node. Begin with [NewBase]: another Base has to give up a connection sooner than TryTimeout, or that failure is not told from others.
	Base http.RoundTripper

	// Key returns what [lb.SourceHash] hashes, such as the value of a header. Key is called once for each request. NewTransport
	// needs Key for SourceHash. A [Proxy] has a default: the address of the client, see [ClientKey].
	Key func(*http.Request) string

	// Tries is how often a request is sent at most, each time to another node, 1 to 100. Default 3.
	Tries int

	// TryTimeout bounds how long a node may be silent before the header of its response, 1 ms to an hour. Default 60 s. -1: none. The time
	// does not count while the body of the request is read, and begins again after each part of that body.
	// The body of the response may take longer. The deadline of the context bounds all tries together.
	TryTimeout time.Duration

	// Budget is how many repeats each request adds to the budget, more than 0 to 1. Default 0.2. -1: no limit of repeats. The budget is
	// full at first, at Reserve.
	Budget float64

	// Reserve is how many repeats the budget holds at most, 1 to 1,000,000. Default 100.
	Reserve int

	// Failed says whether a response is a failure of its node. Default: the statuses 502, 503 and 504.
	Failed func(*http.Response) bool

	// Observe is called after each try. Metrics are made of that. Observe must not block, and must be safe for concurrent use.
	Observe func(Try)
}

// Try is one try of a request, as Options.Observe sees it.
type Try struct {
	Request *http.Request // of the caller, or of the proxy; it has the context of the request that came in. Not to be changed
	Node    lb.Node
	N       int           // from 1 on
	Took    time.Duration // to the header of the response, or to the error
	Status  int           // of the response; 0: there is none
	Result  lb.Result
	Err     error
}

// Transport is an [http.RoundTripper] that sends each request to a node of its balancer. The scheme, the path and the
// header Host of a request stay as they are. A Transport is safe for concurrent use.
//
// A request is in flight until the end of the response's body: its last byte, an error, or Close. A
// connection that was upgraded, such as a websocket, is in flight until Close.
type Transport struct {
	balancer *lb.Balancer
	opts     Options
	budget   budget
}

// NewTransport returns a transport. Nil opts are the defaults. An option out of its range is a [pawl.ErrInvalid].
func NewTransport(b *lb.Balancer, opts *Options) (*Transport, error) {
	t := &Transport{balancer: b}
	if opts != nil {
		t.opts = *opts
	}
	if err := t.opts.complete(b.Policy()); err != nil {
		return nil, err
	}
	if t.opts.Base == nil {
		t.opts.Base = NewBase()
	}
	t.budget.fill(t.opts.Budget, t.opts.Reserve)
	return t, nil
}

// complete checks the options and puts the defaults in.
func (o *Options) complete(p lb.Policy) error {
	o.Tries, o.Reserve = cmp.Or(o.Tries, 3), cmp.Or(o.Reserve, 100)
	o.TryTimeout, o.Budget = cmp.Or(o.TryTimeout, time.Minute), cmp.Or(o.Budget, 0.2)
	switch {
	case o.Key == nil && p == lb.SourceHash:
		return fmt.Errorf("%w: Options.Key is nil: policy %v needs a key", pawl.ErrInvalid, p)
	case o.Tries < 1 || o.Tries > 100:
		return fmt.Errorf("%w: Options.Tries is %d: 1 to 100 are allowed", pawl.ErrInvalid, o.Tries)
	case o.TryTimeout != -1 && (o.TryTimeout < time.Millisecond || o.TryTimeout > time.Hour):
		return fmt.Errorf("%w: Options.TryTimeout is %v: 1ms to 1h and -1 (none) are allowed", pawl.ErrInvalid, o.TryTimeout)
	case o.Budget != -1 && !(o.Budget > 0 && o.Budget <= 1):
		return fmt.Errorf("%w: Options.Budget is %v: more than 0 to 1, and -1 (no limit) are allowed", pawl.ErrInvalid, o.Budget)
	case o.Reserve < 1 || o.Reserve > 1_000_000:
		return fmt.Errorf("%w: Options.Reserve is %d: 1 to 1000000 are allowed", pawl.ErrInvalid, o.Reserve)
	}
	if o.Failed == nil {
		o.Failed = unavailable
	}
	return nil
}

func unavailable(res *http.Response) bool {
	switch res.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// NewBase returns the default of Options.Base. A caller may change its fields, such as TLSClientConfig. That default differs from
// [http.DefaultTransport], which keeps two idle connections to a node and asks a proxy. NewBase also ends a connection of HTTP/2 to a node that
// vanished. After 310 s without a frame NewBase sends a ping, and waits 15 s for the answer. Servers of gRPC end connections with more than a
// ping in five minutes.
func NewBase() *http.Transport {
	return &http.Transport{
		DialContext:           dial,
		TLSHandshakeTimeout:   5 * time.Second,
		ExpectContinueTimeout: time.Second,
		IdleConnTimeout:       time.Minute,
		MaxIdleConnsPerHost:   256,
		ForceAttemptHTTP2:     true,
		HTTP2:                 &http.HTTP2Config{SendPingTimeout: 310 * time.Second, PingTimeout: 15 * time.Second},
	}
}

// dialTime is how long NewBase waits for a connection.
const dialTime = 2 * time.Second

// dialTimeKey is the key under which the context of a try has a shorter dialTime. If the try ended before the dialing, nobody
// would know that the node got nothing.
type dialTimeKey struct{}

func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTime, KeepAlive: 15 * time.Second}
	if most, ok := ctx.Value(dialTimeKey{}).(time.Duration); ok {
		d.Timeout = most
	}
	return d.DialContext(ctx, network, addr)
}

// CloseIdleConnections closes the connections of Base that no request uses.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.opts.Base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

// RoundTrip implements [http.RoundTripper]. Without any node the error is [lb.ErrNoNode]. After a time-out of the last try the error
// is [context.DeadlineExceeded].
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	sent := newContent(r)
	defer sent.release()
	if r.URL == nil || r.URL.Scheme != "http" && r.URL.Scheme != "https" {
		return nil, errors.New("send a request: the scheme of its URL is neither http nor https")
	}
	t.budget.earn()
	ask := lb.Request{}
	if t.opts.Key != nil {
		ask.Key = t.opts.Key(r)
	}
	pick, err := t.balancer.Pick(ask)
	if err != nil {
		return nil, fmt.Errorf("send a request: %w", err)
	}
	for n := 1; ; n++ {
		res, err := t.try(r, sent, pick, n)
		if err == nil && !t.opts.Failed(res) {
			return res, nil
		}
		if ask.Tried == nil {
			ask.Tried = &lb.Tried{}
		}
		ask.Tried.Add(pick)
		next, ok := t.again(r, n, err, sent, ask)
		if !ok {
			if err != nil {
				return nil, fmt.Errorf("send a request to node %q, try %d: %w", pick.Node().ID, n, err)
			}
			return res, nil
		}
		if res != nil {
			res.Body.Close() //nolint:errcheck // another node answers
		}
		pick = next
	}
}

// again picks the node of the next try, if there is to be one.
func (t *Transport) again(r *http.Request, n int, err error, sent *content, ask lb.Request) (next lb.Pick, ok bool) {
	if n >= t.opts.Tries || r.Context().Err() != nil || err != nil && sent.mistaken(err) {
		return next, false
	}
	if !notConnected(err) && !repeatable(r) || !t.budget.spend() {
		return next, false
	}
	next, none := t.balancer.Pick(ask)
	if none == nil {
		if sent.again() {
			return next, true
		}
		next.Done(lb.Canceled)
	}
	t.budget.refund()
	return next, false
}

// notConnected reports whether the node got nothing of the request.
func notConnected(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// repeatable reports whether a node may get the request a second time: RFC 9110, section 9.2.2.
func repeatable(r *http.Request) bool {
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return r.Header.Get("Idempotency-Key") != ""
}

// tryTimeout is the cause of a context whose try took too long.
type tryTimeout time.Duration

func (e tryTimeout) Error() string   { return fmt.Sprintf("no response within %v", time.Duration(e)) }
func (e tryTimeout) Timeout() bool   { return true }
func (e tryTimeout) Temporary() bool { return true }
func (e tryTimeout) Unwrap() error   { return context.DeadlineExceeded }

// try sends the request to one node.
func (t *Transport) try(r *http.Request, sent *content, pick lb.Pick, n int) (*http.Response, error) {
	ctx := r.Context()
	var waits *patience
	var cancel context.CancelCauseFunc
	if t.opts.TryTimeout > 0 {
		if most := t.opts.TryTimeout * 3 / 4; most < dialTime { // more than a second of 2 s: a system asks again then
			ctx = context.WithValue(ctx, dialTimeKey{}, most)
		}
		ctx, cancel = context.WithCancelCause(ctx)
		waits = newPatience(t.opts.TryTimeout, func() { cancel(tryTimeout(t.opts.TryTimeout)) })
	}
	out, to := r.WithContext(ctx), *r.URL
	to.Host, out.URL, out.Host = pick.Node().Addr, &to, cmp.Or(r.Host, r.URL.Host)
	if sent.next != nil {
		sent.next.waits = waits
		out.Body, sent.tried = sent.next, true
	}
	began := time.Now()
	res, err := t.opts.Base.RoundTrip(out)
	if waits.end() && r.Context().Err() == nil {
		if err == nil {
			res.Body.Close() //nolint:errcheck // the context of the body has ended
		}
		res, err = nil, tryTimeout(t.opts.TryTimeout)
	}
	if err == nil && (res.StatusCode < 100 || res.StatusCode > 999) { // no server passes such a status on
		res.Body.Close() //nolint:errcheck // nobody reads that body
		res, err = nil, fmt.Errorf("the status of the response is %d", res.StatusCode)
	}
	is := Try{Request: r, Node: pick.Node(), N: n, Took: time.Since(began), Err: err}
	if err != nil {
		if is.Result = lb.ResultOf(err); sent.mistaken(err) || errors.Is(r.Context().Err(), context.Canceled) {
			is.Result = lb.Canceled
		}
		if cancel != nil {
			cancel(nil)
		}
		pick.Done(is.Result)
	} else {
		if is.Status = res.StatusCode; t.opts.Failed(res) {
			is.Result = lb.Failed
		}
		res.Request = r
		attach(res, &flight{pick: pick.Answered(sent.latency(is.Took)), result: is.Result, caller: r.Context(), cancel: cancel})
	}
	if t.opts.Observe != nil {
		t.opts.Observe(is)
	}
	return res, err
}

// sendable reports whether net/http sends the request to a node at all.
func sendable(r *http.Request) bool {
	return httpguts.ValidHeaderFieldName(cmp.Or(r.Method, "GET")) && httpguts.ValidHostHeader(cmp.Or(r.Host, r.URL.Host)) &&
		r.Header != nil && valid(r.Header)
}

func valid(h http.Header) bool {
	for name, values := range h {
		if !httpguts.ValidHeaderFieldName(name) {
			return false
		}
		for _, v := range values {
			if !httpguts.ValidHeaderFieldValue(v) {
				return false
			}
		}
	}
	return true
}

// refused reports whether the HTTP/2 of net/http has sent nothing, because HTTP/2 has no such request or the header is too large. The
// errors have no other mark than their text.
func refused(err error) bool {
	return strings.HasPrefix(err.Error(), "http2: invalid ") || tooLarge(err)
}

// tooLarge reports whether the header is larger than the node said that its headers may be.
func tooLarge(err error) bool {
	return strings.HasSuffix(err.Error(), "request header list larger than peer's advertised limit")
}
