// Package open makes an engine from a URL, for programs that are told by a
// setting where their store is. A program that has a client of its store
// already calls the engine's own New instead, and then links no other engine.
//
//	memory:                                      inside this process
//	sqlite:PATH  sqlite:///ABSOLUTE/PATH         a file, for the processes of one machine
//	redis://[USER:PASSWORD@]HOST[:PORT][/DB]     rediss:// for TLS
//	etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]   etcds:// for TLS
//
// Redis and etcd URLs take the parameter prefix, which begins every key there:
// redis://localhost?prefix=staging: keeps one server for several fleets apart.
// The special characters of a password or a path are percent-encoded, as in
// every URL.
package open

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// ErrURL says that a URL is none that this package knows. The message never
// repeats what may be a secret.
var ErrURL = errors.New("bad store URL")

// connectTimeout is how long a store may take to answer at first.
const connectTimeout = 5 * time.Second

type scheme struct {
	form    string   // how such a URL is written, for error messages
	params  []string // the parameters that it may have
	network bool     // it may have a password
	open    func(context.Context, *url.URL) (engine.Engine, error)
}

const (
	redisForm = "[user:password@]host[:port][/db]"
	etcdForm  = "[user:password@]host[:port][,host[:port]]"
)

var schemes = map[string]scheme{
	"memory": {"memory:", nil, false, openMemory},
	"sqlite": {"sqlite:PATH", nil, false, openSQLite},
	"redis":  {"redis://" + redisForm, []string{"prefix"}, true, openRedis},
	"rediss": {"rediss://" + redisForm, []string{"prefix"}, true, openRedis},
	"etcd":   {"etcd://" + etcdForm, []string{"prefix"}, true, openEtcd},
	"etcds":  {"etcds://" + etcdForm, []string{"prefix"}, true, openEtcd},
}

// Open connects to the store at rawURL. Close of the engine closes the
// connection too. It fails with [ErrURL] when the URL is wrong, and with
// [engine.ErrUnavailable] when the store does not answer within 5 seconds or
// refuses the password. ctx bounds the opening only.
func Open(ctx context.Context, rawURL string) (engine.Engine, error) {
	name, rest, found := strings.Cut(rawURL, ":")
	s, known := schemes[name]
	if !found || !known {
		return nil, unknown(name, found)
	}
	u, err := parse(rawURL, rest, s)
	if err == nil {
		ctx, cancel := context.WithTimeoutCause(ctx, connectTimeout, fmt.Errorf("no answer within %v", connectTimeout))
		defer cancel()
		var eng engine.Engine
		if eng, err = s.open(ctx, u); err == nil {
			return eng, nil
		}
	}
	if errors.Is(err, ErrURL) {
		err = fmt.Errorf("%w (the form is %s)", err, s.form)
	}
	return nil, err
}

// parse splits a URL. Its errors quote only what cannot be a piece of a
// password that was not encoded: nothing, when such a piece went astray.
func parse(rawURL, rest string, s scheme) (*url.URL, error) {
	u, err := url.Parse(rawURL)
	astray := s.network && strings.Contains(rest, "@") &&
		(err != nil || u.User == nil || strings.Contains(u.Path+u.RawQuery+u.Fragment, "@"))
	switch {
	case astray:
		return nil, wrong("it cannot be read: characters such as / ? # @ %% in a password have to be percent-encoded")
	case err != nil:
		return nil, wrong("it cannot be read: %v", errors.Unwrap(err)) // the outer error quotes the URL
	case u.Fragment != "":
		return nil, wrong("it has a # in it: write %%23")
	}
	params, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, wrong("its parameters cannot be read: %v", err)
	}
	for _, key := range slices.Sorted(maps.Keys(params)) {
		if !slices.Contains(s.params, key) {
			return nil, wrong("unknown parameter %q: %s", key, allowed(s.params))
		}
		if len(params[key]) > 1 {
			return nil, wrong("parameter %q is given twice", key)
		}
	}
	return u, nil
}

func unknown(name string, found bool) error {
	known := strings.Join(slices.Sorted(maps.Keys(schemes)), ", ")
	if !found || strings.ContainsAny(name, "/@") { // may be anything, also a secret
		return fmt.Errorf("%w: it has no scheme: known are %s", ErrURL, known)
	}
	return fmt.Errorf("%w: unknown scheme %q: known are %s", ErrURL, name, known)
}

func allowed(params []string) string {
	if len(params) == 0 {
		return "none is allowed"
	}
	return "allowed is " + strings.Join(params, ", ")
}

func wrong(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrURL, fmt.Sprintf(format, args...))
}

// opened is an engine with the client that was made for it.
type opened struct {
	engine.Engine
	closeClient func() error
}

func (o opened) Close() error { return errors.Join(o.Engine.Close(), o.closeClient()) }

// within runs a connect that does not listen to a context. What comes too late
// is thrown away.
func within[T any](ctx context.Context, connect func() (T, error), discard func(T)) (T, error) {
	type result struct {
		client T
		err    error
	}
	done := make(chan result, 1)
	go func() {
		client, err := connect()
		done <- result{client, err}
	}()
	select {
	case r := <-done:
		return r.client, r.err
	case <-ctx.Done():
		go func() {
			if r := <-done; r.err == nil {
				discard(r.client)
			}
		}()
		var none T
		return none, context.Cause(ctx)
	}
}
