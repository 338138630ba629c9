// Package open makes an engine from a URL. Programs whose store is a setting use open. A program
// that already has a client of its store calls the engine's own New instead. That program then
// links no other engine.
//
//	memory:           inside this process
//	sqlite:PATH       a file, for the processes of one machine that may write it; or sqlite:///ABSOLUTE/PATH
//	redis://[user:password@]host[:port][/db]
//	rediss://[user:password@]host[:port][/db]
//	redis+sentinel://[user:password@]host[:port][,host[:port]...]/master[/db]
//	redis+cluster://[user:password@]host[:port][,host[:port]...]
//	redlock://[user:password@]host[:port],host[:port],host[:port]...   or redlock:host...
//	etcd://[user:password@]host[:port][,host[:port]...]
//	etcds://[user:password@]host[:port][,host[:port]...]
//	zk://[user:password@]host[:port][,host[:port]...][/root]
//	postgres://user[:password]@host[:port]/database
//	postgresql://user[:password]@host[:port]/database
//	mysql://user[:password]@host[:port]/database
//	nats://[user:password@]host[:port][,host[:port]...]   or nats://token@host...
//
// Percent-encode the special characters of a password or a path, as in every URL. An unknown or
// empty parameter is an error. docs/urls.md lists the parameters of each URL:
//
//   - prefix begins every key: redis://localhost?prefix=staging: keeps one server for several
//     fleets apart.
//   - tokens=off saves Redlock a round trip; its tokens then fence nothing.
//   - wait is how many replicas of a Redis master have to know a grant, or another change, before
//     the client trusts it.
//   - grace is how long a restarted Redis server grants nothing at the least, as 15s: the longest TTL of
//     all its clients. Without grace, the server remembers the longest TTL, unless all data is lost.
//     A node of a cluster does not. There each engine goes by the longest TTL of its own clients. So
//     a fleet with several TTLs sets grace. So does such a fleet on Redlock, whose nodes may lose all data.
//     One server, or a node of Redlock, refuses a client whose TTL is longer than its grace.
//   - password-env and password-file name an environment variable or a file that has the password,
//     instead of the URL. Open reads it when it opens the store, without the end of the file's line.
//   - tls-ca names a file of the certificates to trust, in PEM, instead of those of the system.
//   - tls-cert and tls-key name this client's certificate and key.
//   - tls-server-name is the name in the server's certificate, if it differs from the host's. All
//     checks are made: no check can be turned off.
//   - tls=on speaks TLS, where the scheme itself does not say so.
//   - mode is how a database keeps locks. In mode=lease they are rows that live by a heartbeat. In
//     mode=row they are locked rows, which are free when the connection of their holder ends.
//   - connections is how many connections a process has at most. In mode=row each held lock, and each
//     wait, takes one: 32 by default. Else 3 or 4 are enough; with more, commits share the flushes
//     of a durable database.
//   - schema is where the tables are in PostgreSQL, and prefix begins their names in MySQL.
//   - unlogged=on keeps locks in unlogged tables of PostgreSQL: no lock waits for the disk. A schema
//     has one kind of table for good.
//   - pooled=on says that PostgreSQL is behind a pooler that gives each transaction another
//     connection. listen is then the host and port of the server itself, and one connection there
//     wakes waiters. Without listen, waiters poll.
//   - bucket is the key-value bucket of NATS JetStream, pawl by default. replicas is how many servers
//     keep the bucket if pawl makes it.
//   - tick is the tickTime of ZooKeeper servers, if it is not 2s.
//   - sentinel-user, sentinel-password-env and sentinel-password-file are for the Sentinels. The user
//     of the URL is that of the servers that the Sentinels watch.
//
// [OpenDatabase], [OpenRedis] and [OpenNATS] take the same URLs with fewer parameters. Services
// that are not locks use these functions.
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

// ErrURL says that this package does not know a URL. The message never repeats a part that may be a
// secret.
var ErrURL = errors.New("bad store URL")

// connectTimeout is how long a store may take for its first answer.
const connectTimeout = 5 * time.Second

// fileTimeout is longer, because processes that start together open a file one after another.
const fileTimeout = 30 * time.Second

type scheme struct {
	form    string   // the form of such a URL in error messages
	params  []string // the parameters that the URL may have
	network bool     // the URL may have a password
	open    func(context.Context, *url.URL) (engine.Engine, error)
}

const (
	redisForm    = "[user:password@]host[:port][/db]"
	clusterForm  = "[user:password@]host[:port][,host[:port]...]"
	sentinelForm = "[user:password@]host[:port][,host[:port]...]/master[/db]"
	redlockForm  = "[user:password@]host[:port],host[:port],host[:port]..."
	etcdForm     = "[user:password@]host[:port][,host[:port]...]"
	zkForm       = "[user:password@]host[:port][,host[:port]...][/root]"
	natsForm     = "[user:password@]host[:port][,host[:port]...]"
	databaseForm = "user[:password]@host[:port]/database"
)

var (
	redisParams    = []string{"prefix", "wait", "grace"}
	sentinelParams = append(slices.Clone(redisParams), "sentinel-user", "sentinel-password-env", "sentinel-password-file")
)

var (
	postgresParams = slices.Concat([]string{"mode", "connections", "schema", "unlogged", "pooled", "listen"}, optionalTLS)
	mysqlParams    = slices.Concat([]string{"mode", "connections", "prefix"}, optionalTLS)
)

var schemes = map[string]scheme{
	"memory":         {"memory:", nil, false, openMemory},
	"sqlite":         {"sqlite:PATH", nil, false, openSQLite},
	"redis":          {"redis://" + redisForm, redisParams, true, redisEngine(redisServer)},
	"rediss":         {"rediss://" + redisForm, slices.Concat(redisParams, tlsParams), true, redisEngine(redisServer)},
	"redis+cluster":  {"redis+cluster://" + clusterForm, slices.Concat(redisParams, optionalTLS), true, redisEngine(redisCluster)},
	"redis+sentinel": {"redis+sentinel://" + sentinelForm, slices.Concat(sentinelParams, optionalTLS), true, redisEngine(redisSentinel)},
	"redlock":        {"redlock://" + redlockForm, slices.Concat([]string{"prefix", "tokens", "grace"}, optionalTLS), true, openRedlock},
	"etcd":           {"etcd://" + etcdForm, []string{"prefix"}, true, openEtcd},
	"etcds":          {"etcds://" + etcdForm, slices.Concat([]string{"prefix"}, tlsParams), true, openEtcd},
	"postgres":       {"postgres://" + databaseForm, postgresParams, true, openPostgres},
	"postgresql":     {"postgresql://" + databaseForm, postgresParams, true, openPostgres},
	"mysql":          {"mysql://" + databaseForm, mysqlParams, true, openMySQL},
	"nats":           {"nats://" + natsForm, slices.Concat([]string{"bucket", "replicas"}, optionalTLS), true, openNATS},
	"zk":             {"zk://" + zkForm, slices.Concat([]string{"tick"}, optionalTLS), true, openZooKeeper},
}

// Open connects to the store at rawURL. Close of the engine closes the connection too. Open fails
// with [ErrURL] when the URL is wrong. Open fails with [engine.ErrUnavailable] when the store refuses
// the password, or does not answer within 5 seconds, a file within 30. ctx bounds the opening only.
func Open(ctx context.Context, rawURL string) (engine.Engine, error) {
	s, err := schemeOf(rawURL)
	if err != nil {
		return nil, err
	}
	return connect(ctx, rawURL, s, s.open)
}

// schemeOf returns the scheme of a URL.
func schemeOf(rawURL string) (scheme, error) {
	name, _, found := strings.Cut(rawURL, ":")
	s, known := schemes[name]
	if !found || !known {
		return scheme{}, unknown(name, found, slices.Sorted(maps.Keys(schemes)))
	}
	return s, nil
}

// connect reads a URL of the scheme and connects by open, within the time of the scheme.
func connect[T any](ctx context.Context, rawURL string, s scheme, open func(context.Context, *url.URL) (T, error)) (made T, err error) {
	_, rest, _ := strings.Cut(rawURL, ":")
	u, err := parse(rawURL, rest, s)
	if err == nil {
		err = password(u)
	}
	if err == nil {
		within := connectTimeout
		if !s.network {
			within = fileTimeout
		}
		ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("no answer within %v", within))
		defer cancel()
		if made, err = open(ctx, u); err == nil {
			return made, nil
		}
	}
	if errors.Is(err, ErrURL) {
		err = fmt.Errorf("%w (the form is %s)", err, s.form)
	}
	var none T
	return none, err
}

// parse splits a URL. The errors quote no part that can be a piece of a password that was not
// encoded. If such a piece is at a wrong place, they quote nothing.
func parse(rawURL, rest string, s scheme) (*url.URL, error) {
	u, err := url.Parse(rawURL)
	astray := s.network && strings.Contains(rest, "@") &&
		(err != nil || u.User == nil || strings.Contains(u.Path+u.RawQuery+u.Fragment, "@"))
	switch {
	case astray:
		return nil, wrong("it cannot be read: characters such as / ? # @ %% in a password have to be percent-encoded")
	case err != nil && s.network: // the error may quote a password that has no host
		return nil, wrong("it cannot be read: a host is missing, or a port is no number")
	case err != nil:
		return nil, wrong("it cannot be read: %v", errors.Unwrap(err)) // the outer error quotes the URL
	case u.Fragment != "":
		return nil, wrong("it has a # in it: write %%23")
	}
	params, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, wrong("its parameters cannot be read: characters such as %% ; in a parameter have to be percent-encoded")
	}
	for _, key := range slices.Sorted(maps.Keys(params)) {
		if !slices.Contains(s.allowed(), key) {
			before, _, _ := strings.Cut("&"+u.RawQuery, "&"+key+"=")
			if s.network && (params.Get(key) == "" || strings.Contains(before, "password")) { // the key may be a piece of a password
				return nil, wrong("it has an unknown parameter: %s", allowed(s.allowed()))
			}
			return nil, wrong("unknown parameter %q: %s", key, allowed(s.allowed()))
		}
		if len(params[key]) > 1 {
			return nil, wrong("parameter %q is given twice", key)
		}
		if params.Get(key) == "" { // as of a variable that is not set: the user may have wanted to avoid the default
			return nil, wrong("parameter %q is empty", key)
		}
	}
	return u, nil
}

// allowed returns the parameters that a URL may have.
func (s scheme) allowed() []string {
	if !s.network {
		return s.params
	}
	return slices.Concat(s.params, passwordParams)
}

func unknown(name string, found bool, all []string) error {
	known := strings.Join(all, ", ")
	if !found || strings.ContainsAny(name, "/@") { // it may be anything, also a secret
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

// opened is an engine with the client that was made for the engine.
type opened struct {
	engine.Engine
	closeClient func() error
	init        func(context.Context) error // if the engine does not do this itself
}

// The optional parts of an engine, which opened does not pass on.
type (
	openedWithValues struct {
		opened
		engine.Values
	}
	openedWithAll struct {
		openedWithValues
		engine.Resizer
	}
)

// withParts passes on the optional parts that the engine has.
func withParts(o opened) engine.Engine {
	values, hasValues := o.Engine.(engine.Values)
	resizer, resizes := o.Engine.(engine.Resizer)
	switch {
	case hasValues && resizes:
		return openedWithAll{openedWithValues{o, values}, resizer}
	case hasValues:
		return openedWithValues{o, values}
	}
	return o
}

func (o opened) inside() opened { return o }

func (o opened) Close() error { return errors.Join(o.Engine.Close(), o.closeClient()) }

// initer is an engine of a store that can be marked as new.
type initer interface{ Init(context.Context) error }

// Init marks the store of eng as new, where that is needed. A Redis server, the servers of Redlock
// and a bucket of NATS grant nothing at first, because they may have forgotten grants. With Init the first lock
// is granted at once. The caller has to know that the store is new: a store that did forget then
// has two holders.
//
// Init reports whether it marked the store. Init fails with [engine.ErrUsed] when the store is
// known to have been used. Init fails with [engine.ErrUnsupported] on a Redis Cluster, which goes by
// the age of each node.
func Init(ctx context.Context, eng engine.Engine) (told bool, err error) {
	if is, ok := eng.(interface{ inside() opened }); ok {
		o := is.inside()
		if o.init != nil {
			return true, o.init(ctx)
		}
		eng = o.Engine
	}
	if i, is := eng.(initer); is {
		return true, i.Init(ctx)
	}
	return false, nil
}
