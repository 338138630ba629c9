package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
)

const idServeHelp = `Serve IDs by HTTP to programs in other languages. --kind is a kind of "pawl id", with its flags.
Each --name is a row of IDs of its own, and no other name is served.

  GET /id/NAME?n=100   100 IDs, 1 to 10,000, one a line; with the header
                       "Accept: application/json" {"ids":["1","2"]}
  GET /healthz         200 while the process runs
  GET /readyz          200 when an ID of each name is there within a second; the check uses up an ID of each
  GET /metrics         counters for Prometheus

A request that gets no ID within 5 s is answered 503. The first line of the output is the
address. The service has no passwords and no TLS. So the service listens on this machine only,
unless --listen says otherwise. A request that a web page of another origin makes a browser send
is answered 403, because it would use IDs up. INT, TERM, HUP or QUIT ends the service: requests
under way have 10 s more.`

// newIDServe is the verb that serves IDs.
func newIDServe(s *store) *cobra.Command {
	o := &idOptions{store: s, serving: true}
	var listen, kind string
	var names []string
	cmd := &cobra.Command{
		Use:     "serve",
		Short:   "Serve IDs by HTTP",
		Long:    idServeHelp,
		Example: "  pawl id serve --kind segment --name orders --name users\n  curl 'http://127.0.0.1:8765/id/orders?n=100'",
		Args:    takes(0, 0),
		RunE: verb(func(cmd *cobra.Command, _ []string) error {
			k, err := servedKind(kind, names)
			if err == nil {
				err = o.onlyFlagsOf(k, cmd)
			}
			if err == nil {
				err = o.complete(k)
			}
			if err == nil {
				err = checkListen("--listen", listen)
			}
			if err != nil {
				return err
			}
			return o.serve(cmd.Context(), k, names, listen, cmd.OutOrStdout())
		}),
	}
	f := cmd.Flags()
	f.StringVar(&listen, "listen", "127.0.0.1:8765", "the address to listen on; port 0 is any free port")
	f.StringVar(&kind, "kind", "", "the kind of the IDs: "+strings.Join(kindNames(), ", "))
	f.StringArrayVar(&names, "name", nil, "a name whose IDs are served; several may be given")
	o.addFlags(cmd, kindFlags(), "a database, or of a Redis for --kind redis,")
	return cmd
}

func kindNames() (names []string) {
	for _, k := range idKinds {
		names = append(names, k.name)
	}
	return names
}

// kindFlags are the flags of all kinds.
func kindFlags() (names []string) {
	for _, k := range idKinds {
		names = append(names, k.flags...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// servedKind checks the kind and the names.
func servedKind(kind string, names []string) (k idKind, err error) {
	i := slices.IndexFunc(idKinds, func(k idKind) bool { return k.name == kind })
	switch {
	case i < 0:
		return k, usageError("--kind is %q: allowed are %s", kind, strings.Join(kindNames(), ", "))
	case len(names) == 0:
		return k, usageError("--name is missing: the name whose IDs are served")
	}
	k = idKinds[i]
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return k, usageError("--name %q is given twice", name)
		}
		if err := k.checkName(name); err != nil {
			return k, fmt.Errorf("--name: %w", err)
		}
	}
	return k, nil
}

// checkListen refuses a text that is an address on no machine. An address that is taken or
// not of this machine may be right later.
func checkListen(flag, address string) error {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return usageError("%s is %q: HOST:PORT is allowed, with a port from 0 to 65535", flag, address)
	}
	return nil
}

// onlyFlagsOf refuses the flags of other kinds.
func (o *idOptions) onlyFlagsOf(k idKind, cmd *cobra.Command) error {
	for _, name := range kindFlags() {
		if cmd.Flags().Changed(name) && !slices.Contains(k.flags, name) {
			return usageError("--%s is not for --kind %s", name, k.name)
		}
	}
	return nil
}

const (
	serveWithin = 5 * time.Second  // for the IDs of a request
	readyWithin = time.Second      // for an ID of each name
	drainWithin = 10 * time.Second // for the requests under way in the end
)

// The causes of the ends of these times.
var (
	errServeLate = fmt.Errorf("no answer within %v", serveWithin)
	errReadyLate = fmt.Errorf("no answer within %v", readyWithin)
)

// serve serves until a signal comes.
func (o *idOptions) serve(ctx context.Context, k idKind, names []string, address string, w io.Writer) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return &exitError{exitUnavailable, fmt.Errorf("--listen: %w", err)}
	}
	defer listener.Close()
	ctx, stop := untilSignal(ctx)
	defer stop()
	err = o.with(ctx, k, names, func(made map[string]lines) error {
		if _, err := fmt.Fprintf(w, "http://%s\n", listener.Addr()); err != nil {
			return fmt.Errorf("print the address: %w", err)
		}
		service := newIDService(k.name, names, made)
		return serveUntil(ctx, listener, forPrograms(service.handler()), func() { service.ending.Store(true) })
	})
	if err == nil {
		return nil
	}
	return bySignal(ctx, err)
}

// serveUntil serves until ctx ends, calls ending, and then finishes the requests under way.
func serveUntil(ctx context.Context, listener net.Listener, handler http.Handler, ending func()) error {
	var logs errorLog
	defer logs.rest()
	server := &http.Server{
		Handler:           handler,
		ErrorLog:          log.New(&logs, "", 0),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      serveWithin + 20*time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	ending()
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainWithin)
	defer cancel()
	err := server.Shutdown(drain)
	if err != nil { // a client is slow
		err = server.Close()
	}
	if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", served)
	}
	return err
}

// idService is the service of IDs. idService is safe for concurrent use.
type idService struct {
	kind   string
	names  []string // in their order
	rows   map[string]*idRow
	ending atomic.Bool
}

// idRow is the IDs of a name.
type idRow struct {
	name                   string
	from                   lines
	ids, requests, refused atomic.Int64
}

func newIDService(kind string, names []string, made map[string]lines) *idService {
	s := &idService{kind: kind, names: names, rows: make(map[string]*idRow)}
	for _, name := range names {
		s.rows[name] = &idRow{name: name, from: made[name]}
	}
	return s
}
