package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/open"
)

const (
	defaultTTL   = 15 * time.Second
	answerWithin = 5 * time.Second // how long a store may take for a request that does not wait
	closeWithin  = time.Second     // and for the farewell
)

// store is the user's choice of a store.
type store struct {
	url   string
	given func() bool // whether the user gave --store
}

// chosen reports whether the user has named a store.
func (s *store) chosen() bool {
	_, set := os.LookupEnv("PAWL_STORE")
	return set || s.given()
}

// location is the URL of the store. Without a name the store is a file of the user. An empty variable is
// refused, because locks in that file would hold on this machine only.
func (s *store) location() (string, error) {
	variable, set := os.LookupEnv("PAWL_STORE")
	switch {
	case s.given():
		return s.url, nil
	case set && variable == "":
		return "", usageError("PAWL_STORE is empty: unset it to use a SQLite file of the user, or give it the URL of a store")
	case set:
		return variable, nil
	}
	path, err := defaultPath()
	return "sqlite:" + (&url.URL{Path: path}).EscapedPath(), err
}

// place names a store for people, without its user, password, token and parameters.
func place(location string) string {
	if i := strings.IndexAny(location, "?#"); i >= 0 {
		location = location[:i]
	}
	scheme, rest, _ := strings.Cut(location, ":")
	if at := strings.LastIndex(rest, "@"); at >= 0 && scheme != "sqlite" {
		rest = "//" + rest[at+1:]
	}
	return printable(scheme + ":" + rest)
}

// open connects to the store.
func (s *store) open(ctx context.Context) (engine.Engine, error) {
	location, err := s.location()
	if err != nil {
		return nil, err
	}
	eng, err := open.Open(ctx, location)
	if err == nil && eng.Caps().Processes == engine.ReachProcess {
		err = errors.Join(usageError("the store %s is inside one process: no other process would see it", eng.Caps().Name), eng.Close())
		return nil, err
	}
	return eng, err
}

// defaultPath is the folder of state in the XDG base directory specification. The engine creates
// the folder, and only this user may read it.
func defaultPath() (string, error) {
	state := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", &exitError{exitUsage, fmt.Errorf("no --store, no PAWL_STORE and no home folder for a SQLite file: %w", err)}
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "pawl", "pawl.db"), nil
}

// reading calls fn with a client, and creates no store. Without a store nobody holds anything: that
// is no error, and reading says so.
func (s *store) reading(ctx context.Context, fn func(context.Context, *pawl.Client) error) error {
	eng, err := s.open(engine.Existing(ctx))
	if errors.Is(err, engine.ErrNoStore) {
		complain(err)
		eng, err = open.Open(ctx, "memory:")
	}
	if err != nil {
		return err
	}
	return operate(ctx, eng, max(defaultTTL, eng.Caps().MinTTL), fn)
}

// operating calls fn with a client.
func (s *store) operating(ctx context.Context, fn func(context.Context, *pawl.Client) error) error {
	eng, err := s.open(ctx)
	if err != nil {
		return err
	}
	return operate(ctx, eng, max(defaultTTL, eng.Caps().MinTTL), fn)
}

// operatingFor calls fn with a client whose TTL the user has given by --ttl.
func (s *store) operatingFor(ctx context.Context, ttl time.Duration, fn func(context.Context, *pawl.Client) error) error {
	eng, err := s.open(ctx)
	if err != nil {
		return err
	}
	return operate(ctx, eng, ttl, fn)
}

// operate calls fn with a client that opens a session only if it has to.
func operate(ctx context.Context, eng engine.Engine, ttl time.Duration, fn func(context.Context, *pawl.Client) error) error {
	defer soon(closeWithin, func() { eng.Close() }) //nolint:errcheck // the process ends
	client, err := pawl.New(ctx, eng, &pawl.Options{TTL: ttl, RequestTimeout: min(ttl/3, answerWithin), Lazy: true, Label: operator()})
	if errors.Is(err, pawl.ErrInvalid) { // the error names the option TTL, which --ttl sets
		err = fmt.Errorf("--ttl: %w", err)
	}
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
		defer cancel()
		client.Close(ctx) //nolint:errcheck // it expires by itself
	}()
	return fn(ctx, client)
}

// ask bounds a request to the store by answerWithin.
func ask(ctx context.Context, fn func(context.Context) error) error {
	return askWithin(ctx, answerWithin, fn)
}

func askWithin(ctx context.Context, within time.Duration, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("no answer within %v", within))
	defer cancel()
	err := fn(ctx)
	if err != nil && ctx.Err() != nil {
		return engine.Unavailable("ask the store", context.Cause(ctx))
	}
	return err
}

// soon runs do, but lets the process end in time when the store does not answer.
func soon(within time.Duration, do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(within):
	}
}
