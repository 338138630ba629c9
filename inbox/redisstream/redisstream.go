// Package redisstream takes messages from a Redis stream, as a source of package inbox.
//
//	source, err := redisstream.New(client, "orders", "billing", nil)
//	...
//	consumer, err := box.Consumer(db, store, source, handle, nil)
//
// The entries are in the format of the outbox. The field id is the ID of the message, and key, time and payload
// are further fields. Time is RFC 3339. A field header:NAME is a header. An entry without an id is a dead letter.
//
// # What is promised
//
//   - An entry stays pending in its group until it took effect or is a dead letter. A consumer that dies leaves its entries to
//     others, after Options.Hold.
//   - A dead letter is moved in one step: to the stream Options.Dead with all its fields, and with the fields dead:reason,
//     dead:entry, dead:stream and dead:group. An entry that another process has settled or taken over meanwhile does not move. Nor does one whose
//     letter the server refuses: its key waits, and the move is tried again.
//   - The dead letter of an entry with more than 1,000 fields is several letters, each with a part of the fields. The field dead:part
//     is 1/2 in the first of two, and dead:entry is the same in all of them. The letter of an entry that the stream has lost has the fields dead:* only.
//   - An entry counts a delivery for inbox.ConsumerOptions.MaxDeliveries for each process that died with it in memory. A feed that fails
//     counts none, also when the answers to its reads were lost. An entry that is parked behind a key that fails counts none, from a third of Options.Hold after it was read.
//   - A process has at most Options.MaxPending entries that are not settled. A key that fails with as many stops all other keys. After a lost
//     connection and without inbox.ConsumerOptions.Single, the process may read as many more, until Options.Hold is over.
//   - With inbox.ConsumerOptions.Single, a feed fails when another consumer of the group has entries, and the next feed takes all entries over in
//     their order. So a read of an earlier feed that the server gets late lets nothing overtake. The check costs one XPENDING for each
//     read that returns entries. A process that reads without Single makes the feeds fail again and again.
//   - Names of consumers that died and have no entries go from the group when a process opens the stream an hour later or more.
//
// # What is not promised
//
// A stream with MAXLEN loses entries that nobody has read, and entries that are pending. Redis may forget an acknowledgement in
// a restart or a failover, and delivers the entry again. In a cluster the keys of both
// streams need one hash tag, as in {orders} and {orders}:dead.
//
// The server has to be Redis 6.2 or later.
package redisstream

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/inbox"
)

// The fields of an entry.
const (
	fieldID      = "id"
	fieldKey     = "key"
	fieldTime    = "time"
	fieldPayload = "payload"
	headerPrefix = "header:" // before the name of a header
)

// Options are the settings of [New].
type Options struct {
	// Hold is after how long without a sign of life another process takes a consumer's entries: 100 ms to 24 h. Default 30 s.
	Hold time.Duration
	// Block is how long one read waits at the server: 10 ms to 1 min. Default 1 s.
	Block time.Duration
	// Start is where a new group begins: "0" is the first entry of the stream and the default, "$" the next one to come. A group that was
	// lost with the data of the server begins there, too, when the consumer makes that group again.
	Start string
	// Dead is the stream of dead letters, another one than the source. Default is the stream, a colon, the group and ":dead".
	Dead string
	// MaxPending is how many entries that are not settled one process has at most: 1 to 10,000,000. Default 100,000. Most entries of
	// a key that fails are in memory by their IDs only.
	MaxPending int
}

// Source is an [inbox.Source]. A Source is safe for concurrent use. Create it with [New].
type Source struct {
	client        rueidis.Client
	stream, group string
	opts          Options
	process       string // with which the names of all its consumers begin

	mu     sync.Mutex
	counts map[string]int // of deliveries of the entries that its feeds have asked for, and that are not settled
}

var _ inbox.Source = (*Source)(nil)

// New returns the source of a stream for a group, which Open makes if it is missing. The client stays the caller's.
// Nothing is asked yet. Nil opts are the defaults. The error of New matches pawl.ErrInvalid.
func New(client rueidis.Client, stream, group string, opts *Options) (*Source, error) {
	s := &Source{client: client, stream: stream, group: group, process: rand.Text() + "-", counts: make(map[string]int)}
	if opts != nil {
		s.opts = *opts
	}
	for _, f := range []struct {
		name              string
		value             *time.Duration
		usual, least, max time.Duration
	}{{"Hold", &s.opts.Hold, 30 * time.Second, 100 * time.Millisecond, 24 * time.Hour}, {"Block", &s.opts.Block, time.Second, 10 * time.Millisecond, time.Minute}} {
		if *f.value == 0 {
			*f.value = f.usual
		}
		if *f.value < f.least || *f.value > f.max {
			return nil, fmt.Errorf("redis: %w: Options.%s is %v: %v to %v are allowed", pawl.ErrInvalid, f.name, *f.value, f.least, f.max)
		}
	}
	if s.opts.MaxPending == 0 {
		s.opts.MaxPending = 100_000
	}
	if n := s.opts.MaxPending; n < 1 || n > 10_000_000 {
		return nil, fmt.Errorf("redis: %w: Options.MaxPending is %d: 1 to 10,000,000 are allowed", pawl.ErrInvalid, n)
	}
	if client == nil || stream == "" || group == "" {
		return nil, fmt.Errorf("redis: %w: client, stream or group is empty", pawl.ErrInvalid)
	}
	if s.opts.Start == "" {
		s.opts.Start = "0"
	}
	if s.opts.Dead == "" {
		s.opts.Dead = stream + ":" + group + ":dead"
	}
	if s.opts.Dead == stream { // a dead letter would be a message again
		return nil, fmt.Errorf("redis: %w: Options.Dead is %q, the source: another stream is allowed", pawl.ErrInvalid, stream)
	}
	return s, nil
}

// Open implements [inbox.Source].
func (s *Source) Open(ctx context.Context, single bool) (inbox.Feed, error) {
	b := s.client.B()
	err := s.client.Do(ctx, b.XgroupCreate().Key(s.stream).Group(s.group).Id(s.opts.Start).Mkstream().Build()).Error()
	if err != nil && !strings.HasPrefix(err.Error(), "BUSYGROUP") {
		return nil, s.failed("create the group", err)
	}
	if err := bury.Exec(ctx, s.client, []string{s.stream}, []string{s.group, "3600000"}).Error(); err != nil {
		return nil, s.failed("remove the dead consumers", err)
	}
	f := &feed{Source: s, name: s.process + rand.Text(), mine: make(map[string]*delivery), freed: make(chan struct{}, 1)}
	if single {
		f.single, f.recovers, f.after = true, true, "-"
	}
	return f, nil
}

// note remembers how often an entry that this process has, or asks for, was delivered. A count of 0 says that the entry is settled.
func (s *Source) note(id string, count int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if count == 0 {
		delete(s.counts, id)
		return
	}
	if len(s.counts) >= 2*s.opts.MaxPending { // other processes have taken many
		clear(s.counts)
	}
	s.counts[id] = count
}

// had returns the count of an entry that note has kept, or 0.
func (s *Source) had(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[id]
}

func (s *Source) failed(what string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("redis: group %q of stream %q: %s: %w", s.group, s.stream, what, err)
}

// message reads an entry. The ID is empty if the entry is no message.
func (s *Source) message(e rueidis.XRangeEntry) inbox.Message {
	m := inbox.Message{Topic: s.stream, ID: e.FieldValues[fieldID], Key: e.FieldValues[fieldKey], Payload: []byte(e.FieldValues[fieldPayload])}
	var err error
	if m.Time, err = time.Parse(time.RFC3339Nano, e.FieldValues[fieldTime]); err != nil {
		var ms int64
		fmt.Sscanf(e.ID, "%d-", &ms) //nolint:errcheck // the server makes it so
		m.Time = time.UnixMilli(ms)
	}
	for name, value := range e.FieldValues {
		if name, ok := strings.CutPrefix(name, headerPrefix); ok {
			if m.Headers == nil {
				m.Headers = make(map[string]string)
			}
			m.Headers[name] = value
		}
	}
	return m
}

// bury removes consumers that have no pending entries and were not heard of for so many milliseconds.
var bury = rueidis.NewLuaScript(`
for _, c in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
	local is = {}
	for i = 1, #c, 2 do is[c[i]] = c[i + 1] end
	if is.pending == 0 and is.idle >= tonumber(ARGV[2]) then redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], is.name) end
end
return 0`)

// leave removes a consumer, unless it has pending entries, which would be lost.
var leave = rueidis.NewLuaScript(`
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) == 0 then redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2]) end
return 0`)

// drop acknowledges those entries of a consumer that were removed from the stream.
var drop = rueidis.NewLuaScript(`
for i = 3, #ARGV do
	local id = ARGV[i]
	if #redis.call('XRANGE', KEYS[1], id, id) == 0 and #redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1, ARGV[2]) > 0 then
		redis.call('XACK', KEYS[1], ARGV[1], id)
	end
end
return 0`)

// touch sets the idle time and the count of deliveries of those entries that are still with their consumer. Another reader may have taken the
// others over: with Single, the feed of that reader would fail.
var touch = rueidis.NewLuaScript(`
local claim = {'XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0}
for i = 5, #ARGV do
	if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2]) > 0 then claim[#claim + 1] = ARGV[i] end
end
if #claim == 5 then return 0 end
for _, option in ipairs({'IDLE', ARGV[3], 'JUSTID'}) do claim[#claim + 1] = option end
if ARGV[4] ~= '-1' then
	claim[#claim + 1] = 'RETRYCOUNT'
	claim[#claim + 1] = ARGV[4]
end
redis.call(unpack(claim))
return 0`)

// load returns an entry that is pending, or that the group has not read as far as the server knows. In one step, because another process may
// read the entry meanwhile. An entry that is with its consumer gets a count of deliveries.
var load = rueidis.NewLuaScript(`
local pending = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1)[1]
if pending then
	if pending[2] == ARGV[2] then redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[3], 'JUSTID', 'RETRYCOUNT', ARGV[4]) end
	return redis.call('XRANGE', KEYS[1], ARGV[3], ARGV[3])
end
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
	local is = {}
	for i = 1, #group, 2 do is[group[i]] = group[i + 1] end
	if is.name == ARGV[1] then
		local last = redis.call('XREVRANGE', KEYS[1], ARGV[3], '(' .. is['last-delivered-id'], 'COUNT', 1)
		if last[1] and last[1][1] == ARGV[3] then return last end
	end
end
return {}`)

// dead adds the dead letter of an entry and then acknowledges the entry. dead returns 0 and does nothing if another consumer has the entry. An entry
// that nobody has is done with already. A script that fails undoes
// nothing, so an entry whose letter the server refuses has to be pending still. One call takes few arguments, so an entry
// with many fields becomes several letters. The server refuses none of them after the first.
var dead = rueidis.NewLuaScript(`
local pending = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1)[1]
if not pending then return 1 end
if pending[2] ~= ARGV[4] then return 0 end
local entry = redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2])
local all, size = entry[1] and entry[1][2] or {}, 2 * 1000
local parts = math.max(1, math.ceil(#all / size))
for part = 1, parts do
	local fields = {'dead:reason', ARGV[3], 'dead:entry', ARGV[2], 'dead:stream', KEYS[1], 'dead:group', ARGV[1]}
	if parts > 1 then
		fields[9], fields[10] = 'dead:part', part .. '/' .. parts
	end
	for i = (part - 1) * size + 1, math.min(part * size, #all) do fields[#fields + 1] = all[i] end
	redis.call('XADD', KEYS[2], '*', unpack(fields))
end
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
return 1`)
