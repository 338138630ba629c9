// Package redisid counts in Redis: one number a request in strict order, or blocks of them.
//
//	counter, err := redisid.New(client, "ids:orders", &redisid.Options{Mark: registers.Mark("orders")})
//	ids := id.NewStrict(counter) // or a block at a time, with package segment
//
// # What is promised, with a mark
//
// A number is given once, whatever becomes of Redis. Redis may be restarted with an old
// snapshot or none, emptied, restored, or replaced by a replica that lags behind. Two masters
// may serve at once. Redis gives numbers only up to a limit, which a durable [id.Mark] in
// another store covers. The script that counts gives none when its key
//
//   - is missing: it was deleted, expired, evicted or flushed;
//   - was written in another reign: before this server was started or promoted. A master
//     makes up its replication id (master_replid) at both times. So the id names one
//     reign of one process. The script asks INFO for the id, which costs 2 µs. The run_id,
//     or an earlier answer, would not show a server that became a replica and master again;
//   - was put back by RESTORE: a dump does not keep the form in which a hash is in memory. A server
//     whose settings give small and large hashes one form is refused by [pawl.ErrUnsupported];
//   - is the key of another counter, which was renamed.
//
// The client that finds the key so claims the key and raises the mark by a compare-and-set.
// Then it begins a row of numbers above the mark. All others wait for that. So each row belongs
// to one life of the data, and no two rows overlap. The numbers left of a row are a gap.
// Numbers rise for each process and, while one server is the master, over all of them.
//
// Not noticed is a key that an operator copied (COPY) and moved back in a running server,
// unless a process saw larger numbers. Numbers that were given since may repeat then. The same
// holds for a machine that was set back to an earlier state of its memory.
//
// # Without a mark
//
// A key that is missing begins at 1, and any other goes on from the number that it holds. All
// numbers that Redis forgot in a restart, a flush or a failover repeat. See [Counter.Forgets].
//
// The key is a hash with a mark, and else a plain number as INCR keeps it. The Redis user needs EVALSHA and EVAL.
// With a mark the user also needs INFO, TIME, OBJECT ENCODING, EXISTS, DEL and the commands of hashes. Without a mark the user needs the
// commands of strings. The client itself may need more, such as CLIENT TRACKING and CLUSTER SHARDS. A script touches no other
// key, so that any key does in a Redis Cluster.
package redisid

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/id"
)

// Options change how a [Counter] counts. The zero value is the default.
type Options struct {
	// Mark makes numbers unique over all that may happen to Redis. The mark is in a store that does
	// not forget, which is not this Redis, and belongs to this key alone. Default: none.
	Mark id.Mark

	// Ahead is by how many numbers the mark is raised at a time: 1 to 2^40. The mark is
	// raised again in the background when half of them are left. This half lasts through an
	// outage of the store of the mark. Numbers that are left when Redis forgets are a gap. Default: ten times the largest n that was asked for, and at least
	// 10,000.
	Ahead int64
}

const (
	maxAhead = 1 << 40
	maxKey   = 1024
)

// Counter is a counter in Redis. A Counter is an [id.Counter], safe for concurrent use. Create it
// with [New].
type Counter struct {
	client rueidis.Client
	key    string
	mark   id.Mark
	ahead  int64 // 0: by the largest n

	largest atomic.Int64 // n that was asked for
	seen    atomic.Int64 // the largest number that was answered

	turn   chan struct{} // held by the call that mends the key; bounded by ctx
	refill refill
}

var _ id.Counter = (*Counter)(nil)

// New returns the counter of a key: 1 to 1,024 bytes. The client stays the caller's. New
// makes no request: the first call of [Counter.Add] refuses a key that is in use as
// something else. Nil opts are the defaults. Options out of range are [pawl.ErrInvalid].
func New(client rueidis.Client, key string, opts *Options) (*Counter, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	switch {
	case client == nil:
		return nil, fmt.Errorf("%w: the client is nil", pawl.ErrInvalid)
	case key == "" || len(key) > maxKey:
		return nil, fmt.Errorf("%w: the key has %d bytes: 1 to %d are allowed", pawl.ErrInvalid, len(key), maxKey)
	case o.Ahead < 0 || o.Ahead > maxAhead:
		return nil, fmt.Errorf("%w: Ahead %d: 1 to %d are allowed, and 0 for the default", pawl.ErrInvalid, o.Ahead, int64(maxAhead))
	case o.Ahead > 0 && o.Mark == nil:
		return nil, fmt.Errorf("%w: Ahead %d: it is for a counter with a Mark", pawl.ErrInvalid, o.Ahead)
	}
	c := &Counter{client: client, key: key, mark: o.Mark, ahead: o.Ahead, turn: make(chan struct{}, 1)}
	c.refill.ctx, c.refill.end = context.WithCancel(context.Background())
	return c, nil
}

// Forgets reports whether numbers may repeat, because there is no mark: after Redis was
// restarted, emptied, restored or replaced by a replica that lags behind.
func (c *Counter) Forgets() bool { return c.mark == nil }

// Close ends what the counter does in the background, and waits for it until 100 ms after the end of ctx.
// Later calls of Add fail with [pawl.ErrClosed]. The mark stays where it is: other
// processes may count on. The client stays open.
func (c *Counter) Close(ctx context.Context) error {
	c.refill.close()
	done := make(chan struct{})
	go func() { c.refill.wg.Wait(); close(done) }()
	last, stop := pawl.Linger(ctx)
	defer stop()
	select {
	case <-done:
		return nil
	case <-last.Done():
		return fmt.Errorf("close the counter: %w", context.Cause(ctx))
	}
}

// Add implements [id.Counter] with one request, or a few when the mark has to be raised. With a
// mark, n is 2^40 at most.
//
// A Redis that cannot count, because it is full, read-only or cannot save, is
// [pawl.ErrUnavailable]. So is a Redis that does not answer until ctx ends: the numbers are a gap. So is a mark whose store does not answer when the last number is used
// up. A key that is in use as something else is [pawl.ErrMismatch], and nothing was written.
func (c *Counter) Add(ctx context.Context, n int64) (int64, error) {
	if err := id.CheckAdd(n); err != nil {
		return 0, err
	}
	if c.refill.ctx.Err() != nil {
		return 0, fmt.Errorf("count: %w", pawl.ErrClosed)
	}
	var last int64
	var err error
	if c.mark == nil {
		last, err = c.addBare(ctx, n)
	} else {
		last, err = c.addMarked(ctx, n)
	}
	if err != nil {
		return 0, fmt.Errorf("count on %q: %w", c.key, err)
	}
	return last, nil
}

func (c *Counter) addBare(ctx context.Context, n int64) (int64, error) {
	last, err := bareScript.Exec(ctx, c.client, []string{c.key}, []string{text(n)}).ToString()
	if err != nil {
		return 0, failed(ctx, err)
	}
	return strconv.ParseInt(last, 10, 64)
}

func (c *Counter) addMarked(ctx context.Context, n int64) (int64, error) {
	if n > maxAhead { // Lua counts in floating point
		return 0, fmt.Errorf("%w: add %d numbers: 1 to %d are allowed at a time", pawl.ErrInvalid, n, int64(maxAhead))
	}
	rise(&c.largest, n)
	wentBack := ""
	for {
		before := c.seen.Load()
		a, err := c.add(ctx, n)
		if err != nil {
			return 0, err
		}
		if a.given && a.last-n >= before {
			rise(&c.seen, a.last)
			if a.left < c.reserve()/2 {
				c.refillSoon()
			}
			return a.last, nil
		}
		if a.given { // smaller than before: the numbers are not used, and neither is this life any more
			wentBack = a.life
		}
		if err := c.mend(ctx, n, wentBack); err != nil {
			return 0, err
		}
	}
}

// rise raises a number that others raise at the same time.
func rise(number *atomic.Int64, to int64) {
	for is := number.Load(); is < to && !number.CompareAndSwap(is, to); is = number.Load() {
	}
}

// reserve is by how much the mark is raised.
func (c *Counter) reserve() int64 {
	if c.ahead > 0 {
		return max(c.ahead, c.largest.Load())
	}
	return min(max(10*c.largest.Load(), 10_000), maxAhead)
}

// failed classifies an error of Redis. A Redis that did not answer until ctx ended is away.
func failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return pawl.Unavailable(ctx, err)
	}
	if _, refused := rueidis.IsRedisErr(err); refused {
		for part, class := range classes { // Redis before 7 puts it into a sentence about the script
			if strings.Contains(err.Error(), part) {
				return fmt.Errorf("%w: %w", class, err)
			}
		}
	}
	return fmt.Errorf("%w: %w", pawl.ErrUnavailable, err)
}

// classes are those of the errors of Redis that have nothing to do with whether it can be asked.
var classes = map[string]error{
	"WRONGTYPE":               pawl.ErrMismatch,
	"value is not an integer": pawl.ErrMismatch,
	"would overflow":          id.ErrExhausted,
	"UNSUPPORTED":             pawl.ErrUnsupported,
}

// refill is the raising of the mark in the background, one at a time.
type refill struct {
	ctx context.Context // until the counter is closed
	end context.CancelFunc
	wg  sync.WaitGroup

	mu    sync.Mutex
	busy  bool
	pause time.Time // after it failed
}

// refillSoon starts one, unless one is under way.
func (c *Counter) refillSoon() {
	r := &c.refill
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy || r.ctx.Err() != nil || time.Now().Before(r.pause) {
		return
	}
	r.busy = true
	r.wg.Go(func() {
		ctx, cancel := context.WithTimeout(r.ctx, claimed)
		defer cancel()
		err := c.mend(ctx, c.reserve()/2, "")
		r.mu.Lock()
		defer r.mu.Unlock()
		r.busy = false
		if err != nil { // a caller that finds no number left will say so
			r.pause = time.Now().Add(time.Second)
		}
	})
}

func (r *refill) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end()
}
