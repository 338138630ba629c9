package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/group"
	"github.com/pawl-go/pawl/lb"
	"github.com/pawl-go/pawl/lb/httplb"
)

const proxyHelp = `Pass requests of HTTP on to the live members of a group until a signal comes: HTTP/1.1, HTTP/2
and websockets. Members join by "pawl join" or by package group.

--policy chooses the member of a request:

  round-robin, weighted-round-robin               in turn
  least-connections, weighted-least-connections   the fewest requests under way
  random, weighted-random                         any
  power-of-two, peak-ewma                         the better of two that are drawn
  source-hash                                     the same for the same client, or --hash-header

Weights count with weighted-, power-of-two, peak-ewma and source-hash, and --slow-start with the first three of these.

With --tls-cert and --tls-key clients use HTTPS with HTTP/1.1 or 2, and the files are read
again when they change. Without, clients use HTTP/1.1, or HTTP/2 with prior knowledge. --upstream says how members
are reached: http, https with HTTP/1.1 or 2, or h2c, which is HTTP/2 without TLS. Websockets need members of
HTTP/1.1: with h2c the answer is 501. Other upgrades are left out of a request. Certificates of members
must be of the host of their address, or of --upstream-name. With --upstream-cert and --upstream-key the proxy shows
members a certificate, whose files are read again too. With --tls-client-ca only clients with a certificate of these
authorities are served.

A request that failed is sent to another member, --tries in all, if that cannot do harm. So the first member
got nothing of the request, the method may be repeated, or there is an Idempotency-Key. Members that
fail --eject-after times one after another get no requests for a while. A client that sends nothing of its body for
--client-timeout gets 408, and a client that takes nothing of its response is cut. Neither is a failure of the member.

Without any member the answer is 503 with Retry-After. The store has to answer at the start: else the exit code
is 69. A store that is away later changes nothing: the proxy goes on with the last members, and the metrics say so.

A client is the peer of the connection. X-Forwarded-For is believed from --trusted networks only.

--admin serves HTTP at an address of its own:

  GET /healthz    200 while the process runs
  GET /readyz     200 while there is a member, until the end begins
  GET /metrics    figures for Prometheus

The first line of the output is the address of the proxy, and the next that of --admin. --access-log prints
an object of JSON for each request after them. Queries of URLs are left out, because they may have secrets.

INT, TERM, HUP or QUIT ends the proxy. For --drain it is not ready and still takes requests, so that balancers before
it see that. Then requests under way have --finish to end. A second signal ends all at once.`

// proxyCommand is what the user chose for a proxy.
type proxyCommand struct {
	store         *store
	listen, admin string
	group, policy string
	hashHeader    string
	trusted       []string
	cert, key     string
	clientCA      string
	upstream      upstream
	accessLog     bool
	set           lb.SetOptions
	balance       lb.Options
	way           httplb.ProxyOptions
	ttl           time.Duration
	drain, finish time.Duration
}

func newProxy(s *store) *cobra.Command {
	p := &proxyCommand{store: s}
	cmd := &cobra.Command{
		Use:     "proxy --listen HOST:PORT --group NAME",
		Short:   "Pass requests of HTTP on to the members of a group",
		Long:    proxyHelp,
		Example: "  pawl proxy --listen :8080 --group api --policy peak-ewma --admin 127.0.0.1:8767",
		Args:    takes(0, 0),
		RunE: verb(func(cmd *cobra.Command, _ []string) error {
			if err := p.complete(cmd); err != nil {
				return err
			}
			return p.proxy(cmd.Context(), cmd.OutOrStdout())
		}),
	}
	p.flags(cmd)
	return cmd
}

func (p *proxyCommand) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&p.listen, "listen", "", "the address for clients; port 0 is any free port")
	f.StringVar(&p.group, "group", "", "the name of the group")
	f.StringVar(&p.policy, "policy", lb.PowerOfTwo.String(), "how a member is chosen")
	f.StringVar(&p.admin, "admin", "", "the address of readiness and metrics (default: none)")
	f.StringVar(&p.hashHeader, "hash-header", "", "the header that source-hash hashes; requests without it are hashed by client")
	f.StringSliceVar(&p.trusted, "trusted", nil, "networks or addresses of proxies before this proxy, such as 10.0.0.0/8")
	f.StringVar(&p.cert, "tls-cert", "", "PEM file of the certificate for clients, with those above it")
	f.StringVar(&p.key, "tls-key", "", "PEM file of its key")
	f.StringVar(&p.clientCA, "tls-client-ca", "", "PEM file of authorities; each client then needs a certificate of theirs (default: clients need none)")
	f.StringVar(&p.upstream.scheme, "upstream", "http", "how members are reached: http, https or h2c, which has no websockets")
	f.StringVar(&p.upstream.ca, "upstream-ca", "", "PEM file of the authorities for members (default: those of the system)")
	f.StringVar(&p.upstream.name, "upstream-name", "", "the name in the certificates of members (default: the host of their address)")
	f.StringVar(&p.upstream.cert, "upstream-cert", "", "PEM file of the certificate that the proxy shows to members, with those above it (default: none)")
	f.StringVar(&p.upstream.key, "upstream-key", "", "PEM file of its key")
	f.BoolVar(&p.accessLog, "access-log", false, "print each request")
	f.IntVar(&p.way.Tries, "tries", 3, "how many members a request is sent to at most, 1 to 100")
	f.DurationVar(&p.way.TryTimeout, "try-timeout", time.Minute, "how long a member may be silent before its response begins, 1ms to 1h")
	f.DurationVar(&p.way.ClientTimeout, "client-timeout", time.Minute, "how long a client may send nothing of its body, or take nothing of its response, 1ms to 1h")
	f.DurationVar(&p.way.RetryAfter, "retry-after", time.Second, "the time that clients are told where there is no member, 1s to 1h")
	f.IntVar(&p.set.EjectAfter, "eject-after", 5, "failures one after another that take a member out, 1 to 1,000,000; -1 is never")
	f.DurationVar(&p.set.EjectFor, "eject-for", 10*time.Second, "how long such a member is out the first time, 1ms to 1h")
	f.DurationVar(&p.set.SlowStart, "slow-start", 0, "the time in which a new member rises to its full weight, up to 1h; for policies with weights")
	f.Float64Var(&p.balance.Bound, "bound", 0, "for source-hash: the most load of a member beside its share, such as 1.25 (default: no bound)")
	f.DurationVar(&p.ttl, "ttl", defaultTTL, "how long members that are missing after an outage of the store are kept, unless their own --ttl is longer")
	f.DurationVar(&p.drain, "drain", 5*time.Second, "how long the proxy takes requests after it is no longer ready; 0 to 1h")
	f.DurationVar(&p.finish, "finish", 30*time.Second, "how long requests under way have after that; 0 to 1h")
}

// complete checks the options without a store.
func (p *proxyCommand) complete(cmd *cobra.Command) error {
	for _, needed := range []string{"listen", "group"} {
		if !cmd.Flags().Changed(needed) {
			return usageError("--%s is missing: the form is: %s", needed, cmd.UseLine())
		}
	}
	if err := checkListen("--listen", p.listen); err != nil {
		return err
	}
	if p.admin != "" {
		if err := checkListen("--admin", p.admin); err != nil {
			return err
		}
	}
	if err := pawl.CheckName(p.group); err != nil {
		return fmt.Errorf("--group: %w", err)
	}
	if len(p.group) > group.MaxName {
		return usageError("--group has %d bytes: at most %d are allowed", len(p.group), group.MaxName)
	}
	if err := p.completeRanges(); err != nil {
		return err
	}
	if err := p.completeTrusted(); err != nil {
		return err
	}
	return p.completePolicy(cmd)
}

func (p *proxyCommand) completeRanges() error {
	switch after, bound := p.set.EjectAfter, p.balance.Bound; {
	case p.ttl <= 0:
		return usageError("--ttl is %v: more than 0 is allowed", p.ttl)
	case after < -1 || after == 0 || after > 1_000_000:
		return usageError("--eject-after is %d: -1 (never), and 1 to 1000000 are allowed", after)
	case bound != 0 && !(bound >= 1 && bound <= 100): // NaN is refused
		return usageError("--bound is %v: 0 (none), and 1 to 100 are allowed", bound)
	}
	return cmp.Or(
		inRange("--tries", p.way.Tries, 1, 100),
		inRange("--try-timeout", p.way.TryTimeout, time.Millisecond, time.Hour),
		inRange("--client-timeout", p.way.ClientTimeout, time.Millisecond, time.Hour),
		inRange("--retry-after", p.way.RetryAfter, time.Second, time.Hour),
		inRange("--eject-for", p.set.EjectFor, time.Millisecond, time.Hour),
		inRange("--slow-start", p.set.SlowStart, 0, time.Hour),
		inRange("--drain", p.drain, 0, time.Hour),
		inRange("--finish", p.finish, 0, time.Hour),
	)
}

func (p *proxyCommand) completeTrusted() error {
	for _, text := range p.trusted {
		network, err := netip.ParsePrefix(text)
		if addr, wrong := netip.ParseAddr(text); err != nil && wrong == nil {
			network, err = addr.Prefix(addr.BitLen())
		}
		if err != nil || network.Addr().Is4In6() { // clients of IPv4 have addresses of IPv4 here
			return usageError("--trusted is %q: a network such as 10.0.0.0/8, or an address, is allowed", text)
		}
		p.way.Trusted = append(p.way.Trusted, network.Masked())
	}
	return nil
}

// completePolicy checks flags that belong to some policies, or to some values of other flags, only.
func (p *proxyCommand) completePolicy(cmd *cobra.Command) error {
	policy, err := lb.ParsePolicy(p.policy)
	if err != nil {
		return fmt.Errorf("--policy: %w", err)
	}
	for _, name := range []string{"hash-header", "bound"} {
		if cmd.Flags().Changed(name) && policy != lb.SourceHash {
			return usageError("--%s is for --policy %v", name, lb.SourceHash)
		}
	}
	if cmd.Flags().Changed("eject-for") && p.set.EjectAfter == -1 {
		return usageError("--eject-for is for members that are taken out, and --eject-after is -1 (never)")
	}
	switch policy {
	case lb.RoundRobin, lb.LeastConnections, lb.Random, lb.SourceHash:
		if p.set.SlowStart > 0 {
			return usageError("--slow-start is for --policy %v, %v and policies that begin with weighted-", lb.PowerOfTwo, lb.PeakEWMA)
		}
	}
	if p.hashHeader == "" {
		return nil
	}
	if strings.ContainsFunc(p.hashHeader, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r) }) {
		return usageError("--hash-header is %q: the name of a header is allowed", p.hashHeader)
	}
	client := httplb.ClientKey(p.way.Trusted)
	p.way.Key = func(r *http.Request) string {
		value := r.Header.Get(p.hashHeader)
		if strings.EqualFold(p.hashHeader, "Host") { // net/http keeps this header apart
			value = r.Host
		}
		if value != "" {
			return value
		}
		return client(r)
	}
	return nil
}

// service makes the service of an empty group.
func (p *proxyCommand) service() (*proxyService, error) {
	s := &proxyService{group: p.group, trusted: p.way.Trusted, members: make(map[string]*memberCounts)}
	s.counts.init()
	var err error
	if s.set, err = lb.NewSet(&p.set); err != nil {
		return nil, err
	}
	policy, err := lb.ParsePolicy(p.policy)
	if err != nil {
		return nil, err
	}
	balancer, err := lb.New(s.set, policy, &p.balance)
	if err != nil {
		return nil, err
	}
	way := p.way
	if way.Scheme, way.Base, err = p.upstream.open(); err != nil {
		return nil, err
	}
	way.Observe, way.Report = s.tried, s.reported
	s.proxy, err = httplb.NewProxy(balancer, &way)
	return s, err
}

// proxy passes requests on until a signal comes.
func (p *proxyCommand) proxy(ctx context.Context, w io.Writer) error {
	s, err := p.service()
	if err != nil {
		return err
	}
	defer s.proxy.CloseIdleConnections()
	front, err := p.front()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", p.listen)
	if err != nil {
		return &exitError{exitUnavailable, fmt.Errorf("--listen: %w", err)}
	}
	defer listener.Close()
	var admin net.Listener
	if p.admin != "" {
		if admin, err = net.Listen("tcp", p.admin); err != nil {
			return &exitError{exitUnavailable, fmt.Errorf("--admin: %w", err)}
		}
		defer admin.Close()
	}
	ctx, stop := untilSignal(ctx)
	defer stop()
	err = p.store.operatingFor(ctx, p.ttl, func(ctx context.Context, client *pawl.Client) error {
		from := group.New(client, p.group)
		if err := s.begin(ctx, from); err != nil {
			return err
		}
		scheme := "http"
		if p.cert != "" {
			scheme = "https"
		}
		text := fmt.Sprintf("%s://%s\n", scheme, listener.Addr())
		if admin != nil {
			text += fmt.Sprintf("http://%s\n", admin.Addr())
		}
		if _, err := io.WriteString(w, text); err != nil {
			return fmt.Errorf("print the address: %w", err)
		}
		if p.accessLog {
			s.log = newAccessLog(w)
			defer s.log.end()
		}
		return p.run(ctx, s, from, front, listener, admin)
	})
	if err != nil {
		return bySignal(ctx, err)
	}
	return nil
}
