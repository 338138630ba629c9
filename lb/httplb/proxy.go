package httplb

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/lb"
)

// ProxyOptions change a [Proxy]. The zero value is the default.
type ProxyOptions struct {
	// Options are those of the way to the nodes. Key gets the request as the client has sent it. The default Key is
	// [ClientKey] of Trusted. The default Base asks for no compression of its own.
	Options

	// Scheme is http, the default, or https.
	Scheme string

	// Trusted are the networks of proxies before this Proxy, see [ClientAddr]. Default: none, so that each peer is a client.
	Trusted []netip.Prefix

	// MaxRetryBody is the largest body in bytes that is kept in memory, so that a request can be
	// repeated. Only requests that may be repeated at all, and that announce the length of the body, are kept.
	// 1 to 1,000,000,000. Default 64 KiB. -1: none.
	MaxRetryBody int

	// RetryAfter is what a client is told where there is no node, 1 s to an hour. Default 1 s.
	RetryAfter time.Duration

	// ClientTimeout is how long a client may send nothing of its body while the Proxy reads that body, 1 ms to an hour. Default 60 s. -1: none.
	// The client has the same time to accept a part of its response, which has 32 KiB at most. Then the request ends.
	// Neither a response that pauses nor an upgraded connection is bounded. In HTTP/2 a body is bounded until
	// its response begins. Shorter time-outs of the server stand. HTTP2.WriteByteTimeout of the server
	// bounds a connection of HTTP/2 from which the client reads nothing at all.
	ClientTimeout time.Duration

	// Report is told why a request got a response of the Proxy's own, or none because its client is gone. The error names
	// nodes. Report must be safe for concurrent use.
	Report func(*http.Request, error)
}

// Proxy is an [http.Handler] that passes requests on to the nodes of a balancer, by [httputil.ReverseProxy]: HTTP/1.1, HTTP/2, trailers and
// websockets. Websockets need nodes of HTTP/1.1. Other upgrades are left out, because their requests would go past the Proxy. A server
// of the user accepts the connections, with or without TLS. A Proxy is safe for concurrent use.
//
// The node gets the header Host of the client, and X-Forwarded-For, -Host and -Proto. These name only those
// addresses that [ClientAddr] believes, and the host and scheme that a trusted proxy has sent.
//
// Where no node answers, the client gets a response of the Proxy's own. The status is 503 with Retry-After if there is no node,
// 504 after a time-out, and else 502. A body of a request that cannot be read gets 400, 408 or 413. A target that is neither a path nor
// a URL gets 400, and a header that is larger than the node takes gets 431. A websocket gets 501 if Base is an [http.Transport] without HTTP/1. If
// a node fails in the middle of a body, the client's connection is aborted.
type Proxy struct {
	opts    ProxyOptions
	reverse httputil.ReverseProxy
	through *Transport
	keyed   bool
	only2   bool // the nodes are reached by HTTP/2 alone
}

// NewProxy returns a proxy. Nil opts are the defaults. An option out of its range is a [pawl.ErrInvalid].
func NewProxy(b *lb.Balancer, opts *ProxyOptions) (*Proxy, error) {
	p := &Proxy{}
	if opts != nil {
		p.opts = *opts
	}
	o := &p.opts
	o.Scheme, o.MaxRetryBody, o.RetryAfter = cmp.Or(o.Scheme, "http"), cmp.Or(o.MaxRetryBody, 64<<10), cmp.Or(o.RetryAfter, time.Second)
	o.ClientTimeout = cmp.Or(o.ClientTimeout, time.Minute)
	switch {
	case o.Scheme != "http" && o.Scheme != "https":
		return nil, fmt.Errorf("%w: ProxyOptions.Scheme is %q: http and https are allowed", pawl.ErrInvalid, o.Scheme)
	case o.MaxRetryBody != -1 && (o.MaxRetryBody < 1 || o.MaxRetryBody > 1_000_000_000):
		return nil, fmt.Errorf("%w: ProxyOptions.MaxRetryBody is %d: 1 to 1000000000 and -1 (none) are allowed", pawl.ErrInvalid, o.MaxRetryBody)
	case o.ClientTimeout != -1 && (o.ClientTimeout < time.Millisecond || o.ClientTimeout > time.Hour):
		return nil, fmt.Errorf("%w: ProxyOptions.ClientTimeout is %v: 1ms to 1h and -1 (none) are allowed", pawl.ErrInvalid, o.ClientTimeout)
	case o.RetryAfter < time.Second || o.RetryAfter > time.Hour:
		return nil, fmt.Errorf("%w: ProxyOptions.RetryAfter is %v: 1s to 1h are allowed", pawl.ErrInvalid, o.RetryAfter)
	}
	for i, net := range o.Trusted {
		if !net.IsValid() {
			return nil, fmt.Errorf("%w: ProxyOptions.Trusted[%d] is no network", pawl.ErrInvalid, i)
		}
	}
	if o.Key == nil {
		o.Key = ClientKey(o.Trusted)
	}
	if o.Base == nil {
		base := NewBase()
		base.DisableCompression = true
		o.Base = base
	}
	way := o.Options
	way.Key = keyOf
	var err error
	if p.through, err = NewTransport(b, &way); err != nil {
		return nil, err
	}
	p.keyed = b.Policy() == lb.SourceHash
	base, ok := o.Base.(*http.Transport)
	p.only2 = ok && base.Protocols != nil && !base.Protocols.HTTP1()
	p.reverse = httputil.ReverseProxy{Rewrite: p.rewrite, Transport: p.through, ModifyResponse: tie, ErrorHandler: p.failed,
		BufferPool: buffers, ErrorLog: log.New(io.Discard, "", 0)}
	return p, nil
}

type keyContext struct{}

func keyOf(r *http.Request) string {
	key, _ := r.Context().Value(keyContext{}).(string)
	return key
}

// ServeHTTP implements [http.Handler].
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.opts.ClientTimeout == -1 {
		p.serve(w, r)
		return
	}
	c, r := bounded(w, r, p.opts.ClientTimeout)
	defer c.end()
	p.serve(c, r)
	c.flush()
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	kept, err := p.keep(plain(r))
	if err != nil {
		p.failed(w, r, err)
		return
	}
	p.reverse.ServeHTTP(w, kept)
}

// CloseIdleConnections closes the connections to nodes that no request uses.
func (p *Proxy) CloseIdleConnections() { p.through.CloseIdleConnections() }

var (
	errBody      = errors.New("read the body of a request")
	errTarget    = errors.New("the target of the request is neither a path nor a URL")
	errWebsocket = errors.New("websockets need nodes of HTTP/1.1, and these are reached by HTTP/2")
)

func isWebsocket(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// plain leaves an upgrade out that is not to a websocket.
func plain(r *http.Request) *http.Request {
	if r.Header["Upgrade"] == nil || isWebsocket(r) {
		return r
	}
	r = r.WithContext(r.Context())
	r.Header = r.Header.Clone()
	r.Header.Del("Upgrade")
	return r
}

// keep reads a small body, so that a repeat has it again. A request that no node can get is an error.
func (p *Proxy) keep(r *http.Request) (*http.Request, error) {
	switch {
	case r.URL.Opaque != "":
		return nil, errTarget
	case p.only2 && isWebsocket(r) && httpguts.HeaderValuesContainsToken(r.Header["Connection"], "Upgrade"):
		return nil, errWebsocket
	}
	if r.ContentLength <= 0 || r.ContentLength > int64(p.opts.MaxRetryBody) || !repeatable(r) {
		return r, nil
	}
	body := make([]byte, r.ContentLength)
	if _, err := io.ReadFull(r.Body, body); err != nil {
		return nil, fmt.Errorf("%w: %w", errBody, err)
	}
	if n, err := r.Body.Read(make([]byte, 1)); n > 0 || err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: %w", errBody, cmp.Or(err, errors.New("the body is longer than announced")))
	}
	kept := r.WithContext(r.Context())
	kept.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	kept.Body, _ = kept.GetBody() //nolint:errcheck // there is none
	return kept, nil
}

// rewrite makes the request for the nodes. The transport sets the address.
func (p *Proxy) rewrite(pr *httputil.ProxyRequest) {
	pr.Out.URL.Scheme = p.opts.Scheme
	pr.Out.URL.RawQuery = pr.In.URL.RawQuery // httputil drops parts that it cannot parse, and a node may know them
	pr.Out.Header.Del("Http2-Settings")
	trail(pr)
	pr.SetXForwarded()
	pr.Out.Header.Del("X-Forwarded-For")
	if list := forwarded(pr.In, p.opts.Trusted); list != "" {
		pr.Out.Header.Set("X-Forwarded-For", list)
	}
	if fromProxy(pr.In, p.opts.Trusted) {
		if host := pr.In.Header.Get("X-Forwarded-Host"); host != "" {
			pr.Out.Header.Set("X-Forwarded-Host", host)
		}
		if scheme := pr.In.Header.Get("X-Forwarded-Proto"); scheme == "http" || scheme == "https" {
			pr.Out.Header.Set("X-Forwarded-Proto", scheme)
		}
	}
	if p.keyed {
		pr.Out = pr.Out.WithContext(context.WithValue(pr.Out.Context(), keyContext{}, p.opts.Key(pr.In)))
	}
}

// trail passes those trailers on that the client has announced. A server knows their values at the end of the body.
func trail(pr *httputil.ProxyRequest) {
	to := pr.Out.Trailer
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		to.Del(name) // some nodes take a trailer for a header
	}
	if len(to) > 0 && pr.Out.Body != nil {
		// In HTTP/1.1 only chunks have a trailer. Unless the chunks are said, net/http may read the body beside the
		// header, to find out whether there is a body. But the end of the body writes the trailer.
		pr.Out.ContentLength, pr.Out.TransferEncoding = -1, []string{"chunked"}
		if pr.In.GetBody == nil { // the body was not kept, so its end is still to come
			pr.Out.Body = &trailed{pr.Out.Body, pr.In.Trailer, to}
		}
	}
}

// trailed is a body with a trailer.
type trailed struct {
	io.ReadCloser
	from, to http.Header
}

// Read implements [io.Reader].
func (t *trailed) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		for name := range t.to {
			t.to[name] = t.from[name]
		}
	}
	return n, err
}

// tie ends a switched connection with its request. httputil does so only after the protocols were found to agree.
func tie(res *http.Response) error {
	if body := res.Body; res.StatusCode == http.StatusSwitchingProtocols {
		context.AfterFunc(res.Request.Context(), func() { body.Close() }) //nolint:errcheck // both ends are gone
	}
	return nil
}

// failed answers where no node did.
func (p *Proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	status := http.StatusBadGateway
	bound, ok := w.(*client)
	stalled := ok && bound.stalled()
	var late interface{ Timeout() bool }
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		status = http.StatusRequestEntityTooLarge
	case stalled:
		status, err = http.StatusRequestTimeout, fmt.Errorf("%w: %w", errStalled, err)
	case errors.Is(err, errBody), errors.Is(err, errTarget):
		status = http.StatusBadRequest
	case errors.Is(err, errWebsocket):
		status = http.StatusNotImplemented
	case tooLarge(err):
		status = http.StatusRequestHeaderFieldsTooLarge
	case errors.Is(err, lb.ErrNoNode):
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", strconv.Itoa(int((p.opts.RetryAfter+time.Second-1)/time.Second)))
	case !notConnected(err) && errors.As(err, &late) && late.Timeout():
		status = http.StatusGatewayTimeout
	}
	if p.opts.Report != nil {
		p.opts.Report(r, err)
	}
	if !stalled && r.Context().Err() != nil { // of the client's connection; a server ends this context also when a read was too late
		panic(http.ErrAbortHandler)
	}
	http.Error(w, http.StatusText(status), status)
}

// pool keeps the buffers that copy bodies.
type pool struct{ sync.Pool }

var buffers = &pool{sync.Pool{New: func() any { return new([32 << 10]byte) }}}

// Get implements [httputil.BufferPool].
func (p *pool) Get() []byte { return p.Pool.Get().(*[32 << 10]byte)[:] } //nolint:errcheck // Put keeps nothing else

// Put implements [httputil.BufferPool].
func (p *pool) Put(b []byte) { p.Pool.Put((*[32 << 10]byte)(b)) }
