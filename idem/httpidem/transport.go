package httpidem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// Limits and defaults of [Transport].
const (
	DefaultAttempts = 4
	DefaultPause    = 200 * time.Millisecond
	DefaultMaxPause = 10 * time.Second
)

type contextKey struct{}

// WithKey returns a context whose requests [Transport] sends with this key. A key stands for one operation, so a context
// is for one request and its repeats. [idem.NewToken] makes a key. A server that calls another server makes a key for
// each such call. The key of its client belongs to the request of that client.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, contextKey{}, key)
}

// Transport is an http.RoundTripper that sends the key in the context of a request, and repeats the request with this key. A
// request without a key, or of a method that changes nothing, is sent once, as it is. Transport is safe for
// concurrent use.
//
// A repeat follows an error of the connection, and the statuses 409 with Retry-After, 429, 502, 503 and 504. A repeat needs a
// body that can be read again: none, or one with GetBody. The last response or error goes to the caller.
// [http.Transport] itself repeats a request with this header when a connection that it used before was closed.
type Transport struct {
	// Base sends the requests. Default http.DefaultTransport.
	Base http.RoundTripper
	// Attempts is how often a request is sent at most: 1 or more, and 1 is without repeats. Default [DefaultAttempts].
	Attempts int
	// Pause is the pause before the first repeat, which doubles from then on. Each pause is shortened by a random part, up to
	// a half. More than 0 and at most MaxPause. Default [DefaultPause], or MaxPause if that is shorter. Retry-After makes it longer.
	Pause time.Duration
	// MaxPause is the longest pause: more than 0. Transport does not wait for a longer Retry-After, and returns that response. Default
	// [DefaultMaxPause].
	MaxPause time.Duration
}

// RoundTrip implements http.RoundTripper. RoundTrip fails without sending anything if the key has bytes
// outside of printable ASCII. The same holds if a field is out of range, and the error then matches [pawl.ErrInvalid].
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	s := *t
	orDefault(&s.Base, http.RoundTripper(http.DefaultTransport))
	orDefault(&s.Attempts, DefaultAttempts)
	orDefault(&s.MaxPause, DefaultMaxPause)
	orDefault(&s.Pause, min(DefaultPause, s.MaxPause))
	key, ok := r.Context().Value(contextKey{}).(string)
	if !ok || slices.Contains(safeMethods, r.Method) || r.Method == "" {
		return s.Base.RoundTrip(r)
	}
	text, err := formatKey(key)
	if err = errors.Join(s.validate(), err); err != nil {
		if r.Body != nil {
			r.Body.Close() //nolint:errcheck // nothing was read
		}
		return nil, fmt.Errorf("send %s: %w", Header, err)
	}
	first := r.Clone(r.Context()) // it is not ours to change
	first.Header.Set(Header, text)
	return s.repeat(first)
}

func (t *Transport) validate() error {
	switch {
	case t.Attempts < 1:
		return invalid("Transport.Attempts is %d: 1 or more are allowed", t.Attempts)
	case t.MaxPause < 0:
		return invalid("Transport.MaxPause is %v: more than 0 is allowed", t.MaxPause)
	case t.Pause < 0 || t.Pause > t.MaxPause:
		return invalid("Transport.Pause is %v: more than 0 and at most MaxPause (%v) are allowed", t.Pause, t.MaxPause)
	}
	return nil
}

// repeat sends a request until it has an outcome.
func (t *Transport) repeat(r *http.Request) (*http.Response, error) {
	pause := t.Pause
	for attempt := 1; ; attempt++ {
		reply, err := t.Base.RoundTrip(r)
		wait := max(pause-rand.N(pause/2+1), after(reply))
		last := attempt >= t.Attempts || wait > t.MaxPause || r.Body != nil && r.Body != http.NoBody && r.GetBody == nil
		if last || r.Context().Err() != nil || err == nil && !again(reply) {
			return reply, err
		}
		if reply != nil {
			io.CopyN(io.Discard, reply.Body, 64<<10) //nolint:errcheck // the connection is used again if it can be
			reply.Body.Close()                       //nolint:errcheck // as above
		}
		select {
		case <-r.Context().Done():
			return nil, context.Cause(r.Context())
		case <-time.After(wait):
		}
		r = r.Clone(r.Context())
		if r.GetBody != nil {
			if r.Body, err = r.GetBody(); err != nil {
				return nil, fmt.Errorf("repeat the request: %w", err)
			}
		}
		pause = min(2*pause, t.MaxPause)
	}
}

// again reports whether a reply asks for the same request later.
func again(reply *http.Response) bool {
	switch reply.StatusCode {
	case http.StatusConflict:
		return reply.Header.Get("Retry-After") != ""
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// after returns what Retry-After says in seconds. A date is not read, because clocks differ.
func after(reply *http.Response) time.Duration {
	if reply == nil {
		return 0
	}
	seconds, err := strconv.ParseUint(reply.Header.Get("Retry-After"), 10, 31)
	if err != nil {
		return 0
	}
	return time.Duration(seconds) * time.Second
}
