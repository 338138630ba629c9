package open

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/redisengine"
	"github.com/pawl-go/pawl/internal/bounded"
	"github.com/pawl-go/pawl/internal/turn"
)

// redisServers reads the servers and options of a URL. mode is the mode that the servers must have.
type redisServers func(*url.URL) (option rueidis.ClientOption, mode string, err error)

// redisServer is for one server.
func redisServer(u *url.URL) (option rueidis.ClientOption, mode string, err error) {
	if option, err = redisOption(u, "6379"); err != nil {
		return option, "", err
	}
	if len(option.InitAddress) > 1 {
		return option, "", wrong("it is for one server: more are redis+sentinel or redis+cluster")
	}
	option.SelectDB, err = database(strings.Trim(u.Path, "/"))
	option.ForceSingleClient = true
	return option, "standalone", err
}

// redisCluster asks any of some nodes of a cluster for all nodes.
func redisCluster(u *url.URL) (option rueidis.ClientOption, mode string, err error) {
	if option, err = redisOption(u, "6379"); err != nil {
		return option, "", err
	}
	if strings.Trim(u.Path, "/") != "" {
		return option, "", wrong("a cluster has no databases, and the URL names one")
	}
	return option, "cluster", nil
}

// redisSentinel asks Sentinels which server is the master.
func redisSentinel(u *url.URL) (option rueidis.ClientOption, mode string, err error) {
	if option, err = redisOption(u, "26379"); err != nil {
		return option, "", err
	}
	name, db, _ := strings.Cut(strings.Trim(u.Path, "/"), "/")
	if name == "" {
		return option, "", wrong("the name that the Sentinels have for the master is missing")
	}
	if option.SelectDB, err = database(db); err != nil {
		return option, "", err
	}
	option.Sentinel = rueidis.SentinelOption{
		MasterSet: name, ClientName: option.ClientName, TLSConfig: option.TLSConfig,
		Dialer: net.Dialer{Timeout: connectTimeout, ControlContext: paced(50 * time.Millisecond)},
	}
	option.Sentinel.Username = u.Query().Get("sentinel-user")
	var given bool
	if option.Sentinel.Password, given, err = secret(u, "sentinel-password"); err != nil {
		return option, "", err
	}
	if option.Sentinel.Username != "" && !given {
		return option, "", wrong("sentinel-user has no password")
	}
	return option, "standalone", nil
}

func redisOption(u *url.URL, port string) (option rueidis.ClientOption, err error) {
	option = rueidis.ClientOption{
		ClientName:   "pawl",
		DisableCache: true,
		// The client asks a silent connection whether it still works; heartbeats make that rare.
		// The connection then has to answer within the usual TTL.
		Dialer:           net.Dialer{Timeout: connectTimeout, KeepAlive: 6 * time.Second},
		ConnWriteTimeout: connectTimeout,
		// A lone request, too, ends with its ctx, and not only with its deadline.
		AlwaysPipelining: true,
		// One connection carries all requests, with small buffers and not a megabyte.
		PipelineMultiplex:  -1,
		ReadBufferEachConn: 32 << 10, WriteBufferEachConn: 32 << 10,
	}
	if option.InitAddress, err = addresses(u, port); err != nil {
		return option, err
	}
	if option.Username, option.Password, err = login(u); err != nil {
		return option, err
	}
	option.TLSConfig, err = tlsConfig(u)
	return option, err
}

// database reads the number of a database; the default is 0.
func database(text string) (int, error) {
	if text == "" {
		return 0, nil
	}
	db, err := strconv.Atoi(text)
	if err != nil || db < 0 {
		return 0, wrong("the database is not a number from 0")
	}
	return db, nil
}

// redisModes are the servers' names of their modes, and the scheme of each.
var redisModes = map[string]string{
	"standalone": "a server by itself, for which the scheme is redis",
	"cluster":    "a node of a Redis Cluster, for which the scheme is redis+cluster",
	"sentinel":   "a Sentinel, for which the scheme is redis+sentinel",
}

// redisEngine returns the opener of an engine on such servers.
func redisEngine(servers redisServers) func(context.Context, *url.URL) (engine.Engine, error) {
	return func(ctx context.Context, u *url.URL) (engine.Engine, error) {
		option, mode, err := servers(u)
		if err != nil {
			return nil, err
		}
		replicas, err := strconv.Atoi(cmp.Or(u.Query().Get("wait"), "0"))
		if err != nil || replicas < 0 {
			return nil, wrong("wait is the number of replicas that have to know a grant")
		}
		grace, err := graceIn(u)
		if err != nil {
			return nil, err
		}
		all := &dialed{open: make(map[net.Conn]struct{})}
		option.DialCtxFn = all.dial
		client, err := connectRedis(ctx, option, mode)
		if err != nil {
			return nil, err
		}
		eng := redisengine.New(client, &redisengine.Options{
			Prefix: u.Query().Get("prefix"), Wait: replicas, Grace: grace, Notices: &option, Stuck: all.close,
		})
		return withParts(opened{Engine: eng, closeClient: func() error { client.Close(); return nil }}), nil
	}
}

// graceIn returns the parameter grace, or 0.
func graceIn(u *url.URL) (time.Duration, error) {
	grace, err := time.ParseDuration(cmp.Or(u.Query().Get("grace"), "0"))
	if err != nil || grace < 0 {
		return 0, wrong("grace is a duration as 15s")
	}
	return grace, nil
}

// connectRedis expects a server of the mode.
func connectRedis(ctx context.Context, option rueidis.ClientOption, mode string) (rueidis.Client, error) {
	client, err := bounded.Call(ctx, func() (rueidis.Client, error) { return rueidis.NewClient(option) }, rueidis.Client.Close)
	if err != nil {
		if option.TLSConfig != nil {
			err = whyNoTLS(ctx, option, err)
		}
		return nil, engine.Unavailable("connect to redis at "+strings.Join(option.InitAddress, ","), err)
	}
	// Any user may say HELLO; a server that does not know its mode is accepted.
	hello, _ := client.Do(ctx, client.B().Arbitrary("HELLO").Build()).AsMap()
	answer := hello["mode"]
	if is, _ := answer.ToString(); is != mode && redisModes[is] != "" {
		client.Close()
		return nil, wrong("there is %s", redisModes[is])
	}
	return client, nil
}

// dialed are the connections of a client. A silent connection is closed, because a request to a
// server that vanished would wait for long.
type dialed struct {
	mu   sync.Mutex
	open map[net.Conn]struct{}
}

type connection struct {
	net.Conn
	of *dialed
}

func (c *dialed) dial(ctx context.Context, addr string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
	dial := dialer.DialContext
	if config != nil {
		dial = (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext
	}
	conn, err := dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[conn] = struct{}{}
	return connection{conn, c}, nil
}

// Close closes one connection.
func (c connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c.Conn)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

func (c *dialed) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		go conn.Close() //nolint:errcheck // the client gives it up
	}
}

// whyNoTLS finds a better error than the client's where TLS is the reason.
func whyNoTLS(ctx context.Context, option rueidis.ClientOption, err error) error {
	if errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		return fmt.Errorf("%w: %w", err, errNoTLS)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	probe(ctx, option.InitAddress, option.TLSConfig, func(better error) { err = better })
	return err
}

// paced returns a function that leaves a while between two connections to one address, because the
// client retries absent Sentinels without a pause.
func paced(while time.Duration) func(context.Context, string, string, syscall.RawConn) error {
	var mu sync.Mutex
	next := make(map[string]time.Time)
	return func(ctx context.Context, _, addr string, _ syscall.RawConn) error {
		mu.Lock()
		pause := time.Until(next[addr])
		next[addr] = time.Now().Add(max(pause, 0) + while)
		mu.Unlock()
		return turn.Pause(ctx, pause)
	}
}
