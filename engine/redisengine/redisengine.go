// Package redisengine keeps claims in Redis 6.2 or later, or a server that
// speaks its protocol. Every verb is one script, so one round trip; who leaves
// hands the resource on inside the script, and the message to the next one's
// inbox carries its grant. The scripts decide as package queue does and are
// checked against it step by step.
//
// # What is in Redis
//
// With the default prefix: "pawl:{NAME}" for a name in use, with ":c" and ":q"
// while others wait; "pawl:sessions", one sorted set of who lives until when, and
// "pawl:session:ID" of each; "pawl:boot", one mark that stays, and "pawl:grace"
// after a restart; "pawl:v:{KEY}" for a versioned value.
// Names go with their last claim. What a crashed client leaves on a name that
// nobody uses again expires within an hour or four TTLs, whichever is more.
//
// # Restarts
//
// Redis may forget: a restart without persistence, or from a snapshot, loses
// grants whose holders still believe in them. The boot mark notices, and then
// nothing is given out for one TTL. It is looked at when a session is opened or
// renewed, and whenever the server no longer knows our scripts, which is what
// happens after a restart (from Redis 7 on) before anything can be granted. An
// empty server, also a new one, therefore makes its first client wait one TTL.
// Sessions of clients with different TTLs: the grace is the TTL of the client
// that notices, so use one TTL in a fleet.
package redisengine

import (
	"context"
	"crypto/sha1" //nolint:gosec // what EVALSHA calls a script
	_ "embed"
	"encoding/hex"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/fence"
)

// Options change where things are kept. The zero value is the default.
type Options struct {
	// Prefix begins every key and channel. Default "pawl:".
	Prefix string
}

// Engine is a Redis server. Create it with [New].
type Engine struct {
	client          rueidis.Client
	prefix          string // of every key and channel; the next two are keys
	sessions, grace string
	ttl             atomic.Int64 // the longest TTL of a session so far, in ms: how long a grace is

	enter, leave, many, poll, show, put *script
	session                             *rueidis.Lua
}

var _ engine.Engine = (*Engine)(nil)

// New returns the engine of a client, which stays the caller's. Each session
// takes one connection of it for its inbox. Nil opts are the defaults.
func New(client rueidis.Client, opts *Options) *Engine {
	e := &Engine{client: client, prefix: "pawl:", session: rueidis.NewLuaScript(sessionLua)}
	if opts != nil && opts.Prefix != "" {
		e.prefix = opts.Prefix
	}
	e.sessions, e.grace = e.prefix+"sessions", e.prefix+"grace"
	e.enter, e.leave, e.poll = e.script(enterLua), e.script(leaveLua), e.script(pollLua)
	e.show, e.put = e.script(showLua), e.script(putLua)
	e.many = e.script(strings.NewReplacer("--ENTER--", enterLua, "--LEAVE--", leaveLua).Replace(manyLua))
	return e
}

// Caps implements [engine.Engine].
func (e *Engine) Caps() engine.Caps {
	return engine.Caps{
		Name: "redis", Token: engine.TokenClock, Wake: engine.WakeHandoff, Expiry: engine.ExpiryWall, Forgets: true,
		Failover: engine.FailoverLoses, Processes: engine.ReachNetwork, EnterTrip: 1, LeaveTrip: 1,
		MinTTL: 100 * time.Millisecond,
	}
}

// script is a script and the name by which the server knows it.
type script struct{ text, sha string }

// script completes a script with the queue and the prefix of inboxes, which is
// ours and not a user's text of the moment.
func (e *Engine) script(text string) *script {
	text = strings.ReplaceAll(strings.ReplaceAll(text, "--QUEUE--", queueLua), "--INBOX--", quote.Replace(e.prefix)+"inbox:")
	sum := sha1.Sum([]byte(text)) //nolint:gosec // not for security
	return &script{text, hex.EncodeToString(sum[:])}
}

var (
	//go:embed lua/queue.lua
	queueLua string
	//go:embed lua/enter.lua
	enterLua string
	//go:embed lua/leave.lua
	leaveLua string
	//go:embed lua/many.lua
	manyLua string
	//go:embed lua/poll.lua
	pollLua string
	//go:embed lua/session.lua
	sessionLua string
	//go:embed lua/show.lua
	showLua string
	//go:embed lua/put.lua
	putLua string
)

// eval runs a script. A server that does not know it may have been restarted:
// the boot mark is looked at before the script is loaded, so nothing is
// granted by a server whose loss nobody has noticed.
func (e *Engine) eval(ctx context.Context, s *script, keys []string, args ...string) rueidis.RedisResult {
	for first := true; ; first = false {
		b := e.client.B().Evalsha().Sha1(s.sha).Numkeys(int64(len(keys))).Key(keys...).Arg(args...)
		result := e.client.Do(ctx, b.Build())
		if err, ok := rueidis.IsRedisErr(result.Error()); !first || !ok || !err.IsNoScript() {
			return result
		}
		if err := e.checkBoot(ctx); err.Error() != nil {
			return err
		}
		for _, load := range []*script{e.enter, e.leave, e.many, e.poll, e.show, e.put} {
			if err := e.client.Do(ctx, e.client.B().ScriptLoad().Script(load.text).Build()); err.Error() != nil {
				return err
			}
		}
	}
}

func (e *Engine) checkBoot(ctx context.Context) rueidis.RedisResult {
	return e.sessionStep(ctx, "", time.Duration(e.ttl.Load())*time.Millisecond, "check")
}

func (e *Engine) sessionStep(ctx context.Context, id string, ttl time.Duration, what string) rueidis.RedisResult {
	return e.session.Exec(ctx, e.client,
		[]string{e.sessions, e.prefix + "boot", e.grace, e.prefix + "session:" + id},
		[]string{id, strconv.FormatInt(ttl.Milliseconds(), 10), what})
}

// keys returns the keys of a resource, as the scripts want them, and one more
// for Enter: the session's own.
func (e *Engine) keys(name, session string) []string {
	if strings.ContainsAny(name, "%{}") {
		name = escape.Replace(name)
	}
	all := e.prefix + "{" + name + "}:c" + e.prefix + "{" + name + "}:q" // one allocation for three keys
	claims, waiting := all[:len(all)/2], all[len(all)/2:]
	keys := []string{claims[:len(claims)-2], claims, waiting, e.sessions, e.grace, session}
	if session == "" {
		return keys[:5]
	}
	return keys
}

var (
	escape   = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")
	unescape = strings.NewReplacer("%7B", "{", "%7D", "}", "%25", "%")
	quote    = strings.NewReplacer(`\`, `\\`, `'`, `\'`, "\n", `\n`)
	glob     = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`)
)

// failed classifies an error of the client. What ctx ended is not the store's
// fault.
func failed(ctx context.Context, verb string, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return engine.Unavailable(verb, err)
}

// List implements [engine.Engine].
func (e *Engine) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	head := e.prefix + "{"
	match := glob.Replace(head+escape.Replace(prefix)) + "*"
	return func(yield func(string, error) bool) {
		seen := make(map[string]bool) // SCAN may say a key twice
		for cursor := uint64(0); ; {
			page, err := e.client.Do(ctx, e.client.B().Scan().Cursor(cursor).Match(match).Count(1000).Type("string").Build()).AsScanEntry()
			if err != nil {
				yield("", failed(ctx, "list", err))
				return
			}
			for _, key := range page.Elements {
				name := unescape.Replace(strings.TrimSuffix(strings.TrimPrefix(key, head), "}"))
				if !seen[name] && !yield(name, nil) {
					return
				}
				seen[name] = true
			}
			if cursor = page.Cursor; cursor == 0 {
				return
			}
		}
	}
}

// Show implements [engine.Engine].
func (e *Engine) Show(ctx context.Context, name string) (engine.Resource, error) {
	reply, err := e.eval(ctx, e.show, e.keys(name, "")).ToArray()
	if err != nil {
		return engine.Resource{}, failed(ctx, "show", err)
	}
	r := engine.Resource{Name: name}
	if len(reply) < 3 {
		return r, nil
	}
	now, _ := reply[0].AsInt64()
	spec, _ := reply[1].ToString()
	r.Spec = parseSpec(spec)
	for i := 2; i+1 < len(reply); i += 2 {
		id, _ := reply[i].ToString()
		record, _ := reply[i+1].ToString()
		f := strings.SplitN(record, "\x1f", 6)
		if len(f) < 6 {
			return r, fmt.Errorf("show: %w: record %q", engine.ErrUnavailable, record)
		}
		weight, _ := strconv.ParseInt(f[2], 10, 64)
		token, _ := fence.ParseToken(f[3])
		since, _ := strconv.ParseInt(f[4], 10, 64)
		r.Claims = append(r.Claims, engine.ClaimInfo{
			ID: id, Session: f[0], Owner: f[1], Weight: weight, Token: token, Label: f[5],
			Age: time.Duration(now-since) * time.Millisecond,
		})
	}
	queue.Sort(r.Claims)
	return r, nil
}

func appendSpec(b []byte, s engine.Spec) []byte {
	b = strconv.AppendInt(append(append(b, s.Kind...), ':'), s.Capacity, 10)
	if s.Barging {
		return append(b, ":b"...)
	}
	return append(b, ":f"...)
}

func parseSpec(text string) engine.Spec {
	f := append(strings.Split(text, ":"), "", "")
	capacity, _ := strconv.ParseInt(f[1], 10, 64)
	return engine.Spec{Kind: engine.Kind(f[0]), Capacity: capacity, Barging: f[2] == "b"}
}

// Close implements [engine.Engine]. The client stays open.
func (e *Engine) Close() error { return nil }
