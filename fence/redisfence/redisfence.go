// Package redisfence makes fencing tokens count in Redis 6.2 or later. Beside a key that a lock
// protects, a mark remembers the newest token. One script checks the mark and writes. Guard.Set
// writes one value, Guard.Run runs any script of yours.
//
// # What it protects
//
// The writes of the script: Redis runs nothing between its check and its
// writes.
//
// # What it does not protect
//
//   - Writes by other commands, Check followed by a write, and data outside
//     this Redis.
//   - Anything, after the mark was lost: then the first token passes, whichever it is. Redis
//     loses marks in a restart without persistence (with a snapshot, later marks) and by
//     FLUSHALL. Redis also loses them in a failover to a replica that lags behind, and by
//     eviction. A server with maxmemory needs the policy noeviction, or a volatile policy
//     together with marks that do not expire.
//   - A script that fails half-way: its writes stay, as in Redis always.
//
// Equal tokens pass: it is the same holder. A call whose reply was lost has an
// unknown outcome, and may be repeated if the write may be.
//
// # How long a mark is kept
//
// By default for ever, apart from the key that it protects: one small key for
// each protected key. Where names come and go that adds up; Options.Keep then
// lets a mark expire so long after the last write that passed. Choose Keep longer
// than any holder can be frozen, and any request be on its way, because later
// writes pass. A day is a usual choice; a TTL of the lock is too short. Redis
// counts Keep by the server's time of day. A guard with the default takes the
// expiry off a mark that has one.
//
// The Redis user needs EVALSHA, EVAL, GET, SET and PTTL on marks, and the rights of
// the scripts.
package redisfence

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/fence"
)

// Options change where marks are and how long. The zero value is the default.
type Options struct {
	// Prefix begins the key of every mark, and has no braces. Default
	// "pawl:fence:".
	Prefix string
	// Keep is how long a mark is kept after the last token that passed, in whole
	// milliseconds. Default 0: for ever.
	Keep time.Duration
}

// Guard is a [fence.Guard] in Redis. Create it with [New].
type Guard struct {
	client rueidis.Client
	prefix string
	keep   string // in ms
}

var _ fence.Guard = (*Guard)(nil)

// New returns a guard in the Redis of a client, which stays the caller's. Nil
// opts are the defaults. The error of New matches [fence.ErrInvalid].
func New(client rueidis.Client, opts *Options) (*Guard, error) {
	g := &Guard{client: client, prefix: "pawl:fence:", keep: "0"}
	if opts == nil {
		return g, nil
	}
	if strings.ContainsAny(opts.Prefix, "{}") {
		return nil, fmt.Errorf("redisfence: %w Options.Prefix %q: it has braces", fence.ErrInvalid, opts.Prefix)
	}
	if opts.Keep < 0 || opts.Keep%time.Millisecond != 0 {
		return nil, fmt.Errorf("redisfence: %w Options.Keep %v: it has to be whole milliseconds, or 0 for ever", fence.ErrInvalid, opts.Keep)
	}
	if opts.Prefix != "" {
		g.prefix = opts.Prefix
	}
	g.keep = strconv.FormatInt(opts.Keep.Milliseconds(), 10)
	return g, nil
}

// mark returns the key of a resource's mark. In a cluster the mark is in the slot of the key
// that has the name of the resource, because scripts need that. The mark has the same hash tag,
// or the whole name as its tag.
func (g *Guard) mark(resource string) (string, error) {
	if _, rest, open := strings.Cut(resource, "{"); open && strings.Index(rest, "}") > 0 {
		return g.prefix + ":" + resource, nil
	}
	if g.client.Mode() == rueidis.ClientModeCluster && strings.Contains(resource, "}") {
		return "", fmt.Errorf("%w name of a protected resource %.80q: in a cluster a } has to be the end of a hash tag", fence.ErrInvalid, resource)
	}
	return g.prefix + "{" + resource + "}", nil
}

// Check implements [fence.Guard]. Check is a step of its own, which protects
// no later write: only Set and Run protect.
func (g *Guard) Check(ctx context.Context, resource string, token fence.Token) error {
	_, err := g.Run(ctx, checkScript, resource, token, nil, nil)
	return err
}

// Set sets the key to value if the token passes for the key, in one script. As
// with the command SET, an expiry of the key goes.
func (g *Guard) Set(ctx context.Context, key string, token fence.Token, value string) error {
	_, err := g.Run(ctx, setScript, key, token, []string{key}, []string{value})
	return err
}

// Script is Lua that runs under a [Guard]. Create it with [NewScript], once.
type Script struct{ lua *rueidis.Lua }

var (
	checkScript = NewScript(``)
	setScript   = NewScript(`return redis.call('SET', KEYS[1], ARGV[1])`)
)

// NewScript returns a script of this Lua. The script finds its keys and arguments in
// KEYS and ARGV, as with EVAL, and is not run at all if the token is stale. The Lua
// must not start with a line "#!", which chooses another dialect.
func NewScript(lua string) *Script { return &Script{rueidis.NewLuaScript(guardLua + lua)} }

// stale begins the error by which a script refuses.
const stale = "PAWLSTALE"

// guardLua comes before every script: it leaves when the token is stale, and
// takes its own key and arguments away. The locals end before the script begins.
const guardLua = `do
	local token, keep, newest = tonumber(ARGV[1]), tonumber(ARGV[2]), redis.call('GET', KEYS[1])
	if newest and tonumber(newest) > token then
		return redis.error_reply('` + stale + ` ' .. newest)
	elseif keep > 0 then
		redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
	elseif newest ~= ARGV[1] or redis.call('PTTL', KEYS[1]) >= 0 then -- or an earlier Keep would end the mark
		redis.call('SET', KEYS[1], ARGV[1])
	end
	table.remove(KEYS, 1)
	table.remove(ARGV, 1)
	table.remove(ARGV, 1)
end
`

// Run runs the script if the token passes for the resource, as one step, and returns its reply.
// A stale token is an error that matches [fence.ErrStale]. In a cluster the name of the
// resource is one of the keys, or has their hash tag. As with every command of rueidis, Run
// panics if keys are of different slots.
func (g *Guard) Run(ctx context.Context, s *Script, resource string, token fence.Token, keys, args []string) (rueidis.RedisMessage, error) {
	if err := fence.Validate(resource, token); err != nil {
		return rueidis.RedisMessage{}, err
	}
	mark, err := g.mark(resource)
	if err != nil {
		return rueidis.RedisMessage{}, err
	}
	reply, err := s.lua.Exec(ctx, g.client, append([]string{mark}, keys...),
		append([]string{token.String(), g.keep}, args...)).ToMessage()
	refused, ok := rueidis.IsRedisErr(err)
	switch {
	case rueidis.IsRedisNil(err): // a script that returned nothing
		return reply, nil
	case ok && strings.HasPrefix(refused.Error(), stale+" "):
		return reply, fence.Stale(resource, token)
	case err != nil:
		return reply, fmt.Errorf("write %q under guard: %w", resource, err)
	}
	return reply, nil
}
