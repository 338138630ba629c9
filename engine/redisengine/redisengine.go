// Package redisengine keeps claims in Redis 7 or later, or a server that
// speaks its protocol. The nodes of a cluster may have version 6.2.
// Every verb is one script, so one round trip. A release
// hands the resource on inside the script, and the message to the next waiter's
// inbox carries its grant. The scripts decide as package queue does and are
// checked against it step by step.
//
// # What is in Redis
//
// With the default prefix a name in use has "pawl:{NAME}", with ":c" and ":q" while others wait.
// Sessions and their ends are in one sorted set, "pawl:sessions", and each session has
// "pawl:session:ID". "pawl:boot", "pawl:boot:MARK" and "pawl:beliefs" stay; "pawl:grace" is there after a restart.
// A versioned value has "pawl:v:{KEY}". Names go with their last claim. The keys of a crashed
// client on a name that nobody uses again expire within an hour or four TTLs, whichever is more.
//
// # Cluster
//
// With a client of a cluster, all keys of a name are in the slot of that name. Among them are the
// sessions that use it, in "pawl:{NAME}:s" and "pawl:{NAME}:s:ID:n", and "pawl:{NAME}:g" while its
// node is too young. There is no boot mark, but "pawl:format" while there are sessions. Sessions then end by the clock of the node that has the
// slot. So the clocks of nodes must agree to within a tenth of the TTL. A node does not know how long
// clients believe, so all clients of a cluster have one TTL, or set [Options.Grace].
//
// # Restarts
//
// Redis may forget: a restart without persistence, or from a snapshot, loses
// grants whose holders still believe in them. The boot mark notices that before anything
// is granted. Then nothing is given out for as long as any client may believe; the
// mark has the longest such time of the last day. So an empty server, also a new one, makes its first
// client wait one TTL, unless [Engine.Init] said that the server is new. An empty server has lost
// the mark, too, so a fleet with several TTLs sets [Options.Grace].
// Before version 7 scripts come back with the data, and a restart would go unnoticed. So Open refuses such a
// server, unless the server is a node of a cluster.
//
// # Replicas
//
// A promoted replica may not know the last grants. With [Options.Wait] no client gets a grant that
// fewer replicas know: the grant is given back, and the error says how many replicas knew it. The
// same holds for renewals, so that a holder left with a master that lost its replicas stops
// believing. The same holds for releases, which else could come undone, and for versioned values. A
// failover then keeps a grant if it promotes one of the replicas that know it.
package redisengine

import (
	"cmp"
	"context"
	"crypto/sha1" //nolint:gosec // EVALSHA names scripts by it
	_ "embed"
	"encoding/hex"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/turn"
)

// Options change where things are kept. The zero value is the default.
type Options struct {
	// Prefix begins every key and channel. Default "pawl:".
	Prefix string

	// Wait is how many replicas have to know a grant before anybody believes
	// in it. Each step then takes the time of a replica as well, and fails when
	// fewer answer within a second or a third of the TTL. Default 0.
	Wait int

	// Grace is the least time for which a restarted server gives nothing out: at least the longest TTL of
	// all clients. Open refuses a Grace that one server has of a client with a longer TTL. A server that remembers
	// a longer belief of the last day gives nothing out for that time. Default: the longest time for which
	// a client of the server may believe, as far as the server remembers.
	// A node of a cluster remembers no such time, and a session of this Engine counts instead: 15 s if there
	// is none. So clients of a cluster that have several TTLs all set Grace.
	Grace time.Duration

	// Requests is how many requests are under way at once, besides renewals. The number is less than the
	// client's pool has connections, so that renewals find one. Default: no bound, but 256 with
	// Wait, where each takes a connection.
	Requests int

	// Notices says how to reach the same server over one more connection. There it tells of keys
	// that somebody else deletes or overwrites: by hand, all at once (FLUSHDB), or for want of
	// memory. A client that holds at its renewal, and still a thirtieth of the TTL later, learns of
	// that at once. On a single server the same connection serves sessions and watchers. Default
	// nil: no notices. A server or a user that cannot track keys (RESP3, CLIENT TRACKING, MULTI)
	// gives no notices either.
	Notices *rueidis.ClientOption

	// Stuck, when set, is called when a renewal had no answer in its time. The owner of the client
	// then closes its connections, so that the next renewal goes over others. Stuck must not block.
	Stuck func()
}

// Engine is a Redis server. Create it with [New] or [NewOn].
type Engine struct {
	client          Client
	prefix          string // of every key and channel; the next two are keys
	sessions, grace string
	wait            int64 // replicas
	graceTTL        time.Duration
	cluster         bool
	notices         notices
	stuck           func()
	requests        turn.Turn // under way; nil: no bound
	hub             hub

	life      atomic.Pointer[life]
	suspected atomic.Int64 // how often the server was a replica, or did not know a script: it may have lost grants
	cleared   atomic.Int64 // how many of these suspicions a look at the mark has cleared
	opened    sync.Map     // its sessions
	asked     atomic.Bool  // the nodes of a cluster, whether they evict keys
	looked    atomic.Int64 // when the mark of a cluster was last looked at, in Unix seconds

	renew, show, put, resize *script
}

var _ engine.Engine = (*Engine)(nil)

// New returns the engine of a client, which stays the caller's. All sessions and watchers
// together listen on one connection of that client. Nil opts are the defaults.
//
// With ClientOption.AlwaysPipelining each call ends with its ctx. Without it, the first call
// that a server does not answer may last for the time of a request.
func New(client rueidis.Client, opts *Options) *Engine {
	return on(ending{onRueidis{client}, new(atomic.Bool)}, opts)
}

// NewOn is [New] for a client of another library.
func NewOn(client Client, opts *Options) *Engine { return on(ending{client, nil}, opts) }

func on(client Client, opts *Options) *Engine {
	e := &Engine{client: client, prefix: "pawl:"}
	e.hub.engine, e.hub.dialing = e, turn.New(1)
	e.notices.engine, e.notices.dialing = e, turn.New(1)
	if opts != nil {
		e.prefix = cmp.Or(opts.Prefix, e.prefix)
		e.wait, e.graceTTL = int64(opts.Wait), opts.Grace
		if n := opts.Requests; n > 0 || opts.Wait > 0 {
			e.requests = turn.New(cmp.Or(max(n, 0), 256))
		}
		e.notices.option.Store(opts.Notices)
		e.stuck = opts.Stuck
	}
	e.cluster = client.Cluster()
	e.sessions, e.grace = e.prefix+"sessions", e.prefix+"grace"
	e.renew, e.show, e.put, e.resize = e.script(renewLua), e.script(showLua), e.script(putLua), e.script(resizeLua)
	e.life.Store(e.newLife(""))
	return e
}

// Caps implements [engine.Engine].
func (e *Engine) Caps() engine.Caps {
	caps := engine.Caps{
		Name: "redis", Token: engine.TokenClock, Wake: engine.WakeHandoff, Expiry: engine.ExpiryWall, Forgets: true,
		Failover: engine.FailoverLoses, Processes: engine.ReachNetwork, EnterTrip: 1, LeaveTrip: 1,
		MinTTL: 100 * time.Millisecond,
	}
	if e.wait > 0 { // to the master, and from there to the replicas
		caps.Failover, caps.EnterTrip, caps.LeaveTrip = engine.FailoverAcked, 2, 2
	}
	return caps
}

// script is a script and the name by which the server knows it.
type script struct {
	text, sha string
	heads     [9][]string // of the command that runs it, by the number of keys
}

// script completes a script with the queue and the prefix of inboxes, which is
// ours and not a user's text of the moment.
func (e *Engine) script(text string) *script {
	other := formatLua
	if e.cluster {
		other = "local mark"
	}
	text = strings.NewReplacer("--QUEUE--", queueLua, "--OTHER--", other).Replace(text)
	text = strings.NewReplacer("--FORMAT--", engine.Format(), "--INBOX--", quote.Replace(e.prefix)+"inbox:").Replace(text)
	sum := sha1.Sum([]byte(text)) //nolint:gosec // not for security
	s := &script{text: text, sha: hex.EncodeToString(sum[:])}
	for n := range s.heads {
		s.heads[n] = s.head(n)
	}
	return s
}

var (
	//go:embed lua/cluster.lua
	clusterLua string
	//go:embed lua/member.lua
	memberLua string
	//go:embed lua/mine.lua
	mineLua string
	//go:embed lua/queue.lua
	queueLua string
	//go:embed lua/format.lua
	formatLua string
	//go:embed lua/enter.lua
	enterLua string
	//go:embed lua/leave.lua
	leaveLua string
	//go:embed lua/many.lua
	manyLua string
	//go:embed lua/mark.lua
	markLua string
	//go:embed lua/poll.lua
	pollLua string
	//go:embed lua/renew.lua
	renewLua string
	//go:embed lua/session.lua
	sessionLua string
	//go:embed lua/show.lua
	showLua string
	//go:embed lua/put.lua
	putLua string
	//go:embed lua/resize.lua
	resizeLua string
)

// eval runs a script that gives nothing out; in a cluster any.
func (e *Engine) eval(ctx context.Context, s *script, wait int64, keys []string, args ...string) Reply {
	result := e.evalAcked(ctx, s, keys, args, wait)
	if result.says("NOSCRIPT") {
		return e.acked(ctx, eval(s.text, keys, args...), wait)
	}
	return result
}

// evalAcked sends a script until the keys of its name, of which only some may have
// moved to another node of the cluster, are together. Until then it does nothing,
// so it may.
func (e *Engine) evalAcked(ctx context.Context, s *script, keys, args []string, wait int64) Reply {
	for start := time.Now(); ; {
		result := e.acked(ctx, s.run(keys, args...), wait)
		if !result.says("TRYAGAIN") || time.Since(start) > e.belief()/3 || turn.Pause(ctx, 10*time.Millisecond) != nil {
			return result
		}
	}
}

func (s *script) head(keys int) []string { return []string{"EVALSHA", s.sha, strconv.Itoa(keys)} }

// run is the command that runs a script which the server knows.
func (s *script) run(keys []string, args ...string) Command {
	if n := len(keys); n < len(s.heads) {
		return Command{Head: s.heads[n], Keys: keys, Args: args}
	}
	return Command{Head: s.head(len(keys)), Keys: keys, Args: args}
}

func eval(text string, keys []string, args ...string) Command {
	return Command{Head: []string{"EVAL", text, strconv.Itoa(len(keys))}, Keys: keys, Args: args}
}

// keys returns the keys of a resource, as the scripts want them, and one more for Enter: the
// session's own. In a cluster all of them are the name's, and session is the id of the member.
// There is no boot mark there, and the set of sessions stands for it.
func (e *Engine) keys(name, session string) []string {
	if strings.ContainsAny(name, "%{}") {
		name = escape.Replace(name)
	}
	all := e.prefix + "{" + name + "}:c" + e.prefix + "{" + name + "}:q" // one allocation for three keys
	claims, waiting := all[:len(all)/2], all[len(all)/2:]
	keys := []string{claims[:len(claims)-2], claims, waiting, e.sessions, e.grace, e.life.Load().key, session}
	if e.cluster {
		keys[3], keys[4], keys[6] = keys[0]+":s", keys[0]+":g", keys[0]+":s:"+session
		keys[5] = keys[3]
	}
	if session == "" {
		return keys[:6]
	}
	return keys
}

var (
	escape   = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")
	unescape = strings.NewReplacer("%7B", "{", "%7D", "}", "%25", "%")
	quote    = strings.NewReplacer(`\`, `\\`, `'`, `\'`, "\n", `\n`, "\r", `\r`, "\x00", `\0`)
	glob     = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`)
)

// failed classifies an error of the client. A call that ctx ended is not the store's
// fault.
func failed(ctx context.Context, verb string, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return engine.Unavailable(verb, err)
}

// List implements [engine.Engine].
func (e *Engine) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return e.list(ctx, e.prefix+"{", prefix)
}

// ListValues implements [engine.Values].
func (e *Engine) ListValues(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return e.list(ctx, e.prefix+"v:{", prefix)
}

// list yields the names of the keys that begin with head, page by page. A Redis may have millions of other keys, so a page
// without a name yields an empty one.
func (e *Engine) list(ctx context.Context, head, prefix string) iter.Seq2[string, error] {
	match := glob.Replace(head+escape.Replace(prefix)) + "*}"
	return func(yield func(string, error) bool) {
		seen := map[string]bool{"": true} // SCAN may say a key twice
		servers, err := e.servers(ctx)
		for _, server := range servers {
			for cursor := "0"; cursor != "" && err == nil; {
				var keys []string
				keys, cursor, err = page(ctx, server, match, cursor)
				before := len(seen)
				for _, key := range keys {
					name := nameIn(key, head)
					if !seen[name] && !yield(name, nil) {
						return
					}
					seen[name] = true
				}
				if len(seen) == before && err == nil && !yield("", nil) {
					return
				}
			}
		}
		if err != nil {
			yield("", failed(ctx, "list", err))
		}
	}
}

func nameIn(key, head string) string {
	return unescape.Replace(strings.TrimSuffix(strings.TrimPrefix(key, head), "}"))
}

// page reads some keys of a server, and where to go on, which is "" after the last ones.
func page(ctx context.Context, server Client, match, cursor string) (keys []string, next string, err error) {
	reply := server.Do(ctx, read("SCAN", "", cursor, "MATCH", match, "COUNT", "1000", "TYPE", "string"))
	list, err := reply.list()
	if err == nil && len(list) != 2 {
		err = reply.unexpected()
	}
	if err != nil {
		return nil, cursor, err
	}
	if next, _ = list[0].(string); next == "0" {
		next = ""
	}
	all, _ := list[1].([]any)
	for _, key := range all {
		name, _ := key.(string)
		keys = append(keys, name)
	}
	return keys, next, nil
}

// Show implements [engine.Engine].
func (e *Engine) Show(ctx context.Context, name string) (engine.Resource, error) {
	if err := e.lookAtMark(ctx); err != nil {
		return engine.Resource{}, unchecked(ctx, "show", err)
	}
	reply, err := e.eval(ctx, e.show, 0, e.marked(e.keys(name, "")...)).list()
	if err = cmp.Or(err, otherFormat(reply)); err != nil {
		return engine.Resource{}, unchecked(ctx, "show", err)
	}
	return shown(name, reply)
}

// shown reads the answer of the script that shows a name.
func shown(name string, reply []any) (engine.Resource, error) {
	now, _ := reply[0].(int64)
	grace := graceOf(reply[1:3])
	if len(reply) < 4 {
		return engine.Resource{Name: name, Grace: grace}, nil
	}
	spec, _ := reply[3].(string)
	is, ends := queue.State{Spec: parseSpec(spec)}, make(map[string]int64)
	for i := 4; i+2 < len(reply); i += 3 {
		id, _ := reply[i].(string)
		record, _ := reply[i+1].(string)
		until, _ := reply[i+2].(int64)
		f := strings.SplitN(record, "\x1f", 6)
		if len(f) < 6 {
			return engine.Resource{Name: name}, fmt.Errorf("show: %w: record %q", engine.ErrUnavailable, record)
		}
		weight, _ := strconv.ParseInt(f[2], 10, 64)
		token, _ := fence.ParseToken(f[3])
		since, _ := strconv.ParseInt(f[4], 10, 64)
		is.Claims = append(is.Claims, queue.Claim{
			ID: id, Session: sessionOf(f[0]), Owner: f[1], Weight: weight, Token: token, Label: f[5], Since: since,
			Granted: max(int64(token), since), // the token is of when it was granted, or the grant that it shares
		})
		ends[sessionOf(f[0])] = until * 1000
	}
	// In order of arrival: the hash of the holders has no order.
	slices.SortStableFunc(is.Claims, func(a, b queue.Claim) int {
		if a.Token == 0 || b.Token == 0 {
			return 0
		}
		return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.Token, b.Token), cmp.Compare(a.ID, b.ID))
	})
	r := is.Show(name, now, func(session string) int64 { return ends[session] })
	r.Grace = grace
	return r, nil
}

// graceOf reads the age of a grace and the time left, in ms.
func graceOf(reply []any) (g engine.Grace) {
	age, _ := reply[0].(int64)
	left, _ := reply[1].(int64)
	if left <= 0 {
		return g
	}
	return engine.Grace{Age: max(time.Duration(age)*time.Millisecond, engine.Unknown), Left: time.Duration(left) * time.Millisecond}
}

// noSession stands for the asking session, when there is none. No record has it in it.
const noSession = us + "\x1e" + us

// unknownTTL stands for the TTL of sessions where this engine has opened none.
const unknownTTL = 15 * time.Second

// Evict implements [engine.Engine]. Evict looks at the boot mark first, as a session does when it
// is opened.
func (e *Engine) Evict(ctx context.Context, resource, claim string) error {
	if err := e.check(ctx); err != nil {
		return unchecked(ctx, "evict", err)
	}
	args := e.arguments([4]string{claim + us, noSession, ms(keep(0)), ""}, 0, "", "") // clients that are there keep the keys
	result := e.run(ctx, leave, e.keys(resource, ""), args, e.wait)
	left, err := result.number()
	if err = cmp.Or(err, result.short); err == nil && left == 0 {
		return fmt.Errorf("evict: %w", engine.ErrGone)
	}
	return failed(ctx, "evict", err)
}

// Resize implements [engine.Resizer].
func (e *Engine) Resize(ctx context.Context, name string, capacity int64) error {
	if err := e.lookAtMark(ctx); err != nil {
		return unchecked(ctx, "resize", err)
	}
	result := e.eval(ctx, e.resize, e.wait, e.marked(e.keys(name, "")...), strconv.FormatInt(capacity, 10))
	if theirs, refused := result.Value.([]any); refused {
		return unchecked(ctx, "resize", otherFormat(theirs))
	}
	switch is, mismatch := result.Value.(string); {
	case mismatch:
		return fmt.Errorf("resize: %w", queue.Mismatch(parseSpec(is), engine.Spec{Kind: engine.KindSemaphore, Capacity: capacity}))
	case result.Value == int64(0):
		return fmt.Errorf("resize: %w", engine.ErrGone)
	}
	return failed(ctx, "resize", result.failed())
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

// Close implements [engine.Engine]. The client of [New] stays open.
func (e *Engine) Close() error {
	e.notices.close()
	return nil
}
