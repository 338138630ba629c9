package redisid_test

import (
	"context"
	"errors"
	"math"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/redisid"
	"github.com/pawl-go/pawl/internal/idtest"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

// dial is a client of its own, as a process has.
func dial(t testing.TB, addrs ...string) rueidis.Client {
	t.Helper()
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: addrs, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// does runs a command that must be well, as an operator.
func does(t testing.TB, c rueidis.Client, words ...string) rueidis.RedisResult {
	t.Helper()
	var r rueidis.RedisResult
	until(t, strings.Join(words, " "), func() bool {
		command := c.B().Arbitrary(words[0])
		if len(words) > 1 {
			command = command.Keys(words[1]).Args(words[2:]...)
		}
		r = c.Do(t.Context(), command.Build())
		_, refused := rueidis.IsRedisErr(r.Error())
		return r.Error() == nil || refused // else its connection is that of a server that is no more
	})
	if err := r.Error(); err != nil && !rueidis.IsRedisNil(err) {
		t.Fatal(words, err)
	}
	return r
}

func until(t testing.TB, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not soon: " + what)
		}
	}
}

// spyMark is a mark that is watched, and whose store may be away.
type spyMark struct {
	id.Mark
	raised atomic.Int64
	away   atomic.Bool
}

var errAway = errors.New("the store of the mark is away")

func (m *spyMark) Raise(ctx context.Context, to int64, from id.Reading) (id.Reading, error) {
	if m.away.Load() {
		return id.Reading{}, errors.Join(pawl.ErrUnavailable, errAway)
	}
	is, err := m.Mark.Raise(ctx, to, from)
	if err == nil {
		m.raised.Add(1)
	}
	return is, err
}

// newMark is a mark in a store that does not forget while the test runs.
func newMark(t testing.TB) *spyMark {
	t.Helper()
	client, err := pawl.New(t.Context(), memengine.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(context.Background()) }) //nolint:errcheck // it is in memory
	registers, err := id.Values(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &spyMark{Mark: registers.Mark("orders")}
}

func counter(t testing.TB, client rueidis.Client, key string, opts *redisid.Options) *redisid.Counter {
	t.Helper()
	c, err := redisid.New(client, key, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

func adds(t testing.TB, c *redisid.Counter, n int64) int64 {
	t.Helper()
	last, err := c.Add(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	return last
}

// TestCounts: several processes, with a mark and without, share the numbers from 1 on; and with
// nothing in the way, none is left out.
func TestCounts(t *testing.T) {
	addr := testservers.Redis(t).Addr
	for name, opts := range map[string]*redisid.Options{"bare": nil, "marked": {Mark: newMark(t)}, "few ahead": {Mark: newMark(t), Ahead: 7}} {
		t.Run(name, func(t *testing.T) {
			var all []id.Counter
			for range 3 {
				all = append(all, counter(t, dial(t, addr), t.Name(), opts))
			}
			n, err := idtest.Count(t.Context(), 4, 100, all...)
			if err != nil {
				t.Fatal(err)
			}
			c := all[0].(*redisid.Counter)
			if last := adds(t, c, 1); last <= n || name != "few ahead" && last != n+1 {
				t.Errorf("%d after %d numbers", last, n)
			}
			if c.Forgets() != (opts == nil) {
				t.Error("it does not say whether it forgets")
			}
		})
	}
}

// TestStrict: the calls of a process share requests, and a call that begins after another
// ended gets a larger number, in whichever process.
func TestStrict(t *testing.T) {
	addr, mark := testservers.Redis(t).Addr, newMark(t)
	var check idtest.Checker[int64]
	var group sync.WaitGroup
	var last atomic.Int64
	for range 2 {
		ids := id.NewStrict(counter(t, dial(t, addr), t.Name(), &redisid.Options{Mark: mark, Ahead: 50}))
		for range 8 {
			log := check.Log()
			group.Go(func() {
				for range 200 {
					before := last.Load()
					n, err := ids.Next(t.Context())
					if err != nil || n <= before {
						t.Errorf("%d after %d, %v", n, before, err)
						return
					}
					for is := last.Load(); is < n && !last.CompareAndSwap(is, n); is = last.Load() {
					}
					log.Add(n)
				}
			})
		}
	}
	group.Wait()
	if n, err := check.Check(); err != nil || n != 2*8*200 {
		t.Error(n, err)
	}
}

// TestBeginsOnce: of many processes that find no key, one raises the mark.
func TestBeginsOnce(t *testing.T) {
	server := testservers.Redis(t)
	mark, operator := newMark(t), dial(t, server.Addr)
	var all []id.Counter
	for range 8 {
		all = append(all, counter(t, dial(t, server.Addr), "ids", &redisid.Options{Mark: mark}))
	}
	for round := int64(1); round <= 3; round++ {
		if _, err := idtest.Count(t.Context(), 2, 3, all...); err != nil {
			t.Fatal(err)
		}
		if n := mark.raised.Load(); n != round {
			t.Errorf("raised %d times by round %d", n, round)
		}
		does(t, operator, "FLUSHALL", "SYNC")
	}
}

// TestKeyInUse: one clear error, and the key stays as it is.
func TestKeyInUse(t *testing.T) {
	client := dial(t, testservers.Redis(t).Addr)
	for name, write := range map[string][]string{
		"text": {"SET", "", "hello"}, "negative": {"SET", "", "-5"}, "too long": {"SET", "", "99999999999999999999"}, "a list": {"RPUSH", "", "1"},
		"a hash": {"HSET", "", "name", "value"}, "a hash like ours": {"HSET", "", "pawl", "counter 2 x"}, "a number": {"SET", "", "41"},
	} {
		for kind, opts := range map[string]*redisid.Options{"bare": nil, "marked": {Mark: newMark(t)}} {
			if kind == "bare" && name == "a number" {
				continue // which is what INCR left
			}
			t.Run(kind+" "+name, func(t *testing.T) {
				write[1] = t.Name()
				does(t, client, write...)
				before, _ := does(t, client, "DUMP", t.Name()).ToString()
				_, err := counter(t, client, t.Name(), opts).Add(t.Context(), 1)
				if !errors.Is(err, pawl.ErrMismatch) || errors.Is(err, pawl.ErrUnavailable) || !strings.Contains(err.Error(), t.Name()) {
					t.Error(err)
				}
				if after, _ := does(t, client, "DUMP", t.Name()).ToString(); after != before {
					t.Error("the key was changed")
				}
				if opts != nil && opts.Mark.(*spyMark).raised.Load() > 0 {
					t.Error("the mark was raised")
				}
			})
		}
	}
	does(t, client, "SET", t.Name(), "41")
	if last := adds(t, counter(t, client, t.Name(), nil), 1); last != 42 {
		t.Errorf("%d after what INCR left at 41", last)
	}
}

// TestOptionsOutOfRange: nothing is asked, and the field and its range are named.
func TestOptionsOutOfRange(t *testing.T) {
	client := dial(t, testservers.Redis(t).Addr)
	for part, try := range map[string]func() (*redisid.Counter, error){
		"client":                            func() (*redisid.Counter, error) { return redisid.New(nil, "key", nil) },
		"the key has 0 bytes: 1 to 1024":    func() (*redisid.Counter, error) { return redisid.New(client, "", nil) },
		"the key has 1025 bytes: 1 to 1024": func() (*redisid.Counter, error) { return redisid.New(client, strings.Repeat("x", 1025), nil) },
		"Ahead -1: 1 to 1099511627776": func() (*redisid.Counter, error) {
			return redisid.New(client, "key", &redisid.Options{Mark: newMark(t), Ahead: -1})
		},
		"Ahead 1099511627777": func() (*redisid.Counter, error) {
			return redisid.New(client, "key", &redisid.Options{Mark: newMark(t), Ahead: 1<<40 + 1})
		},
		"Ahead 5: it is for a counter with a Mark": func() (*redisid.Counter, error) { return redisid.New(client, "key", &redisid.Options{Ahead: 5}) },
	} {
		if _, err := try(); !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v", part, err)
		}
	}
	c := counter(t, client, t.Name(), &redisid.Options{Mark: newMark(t)})
	for _, n := range []int64{0, -1, math.MinInt64, 1<<40 + 1} {
		if _, err := c.Add(t.Context(), n); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("add %d: %v", n, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		if err := c.Close(ended); err != nil { // nothing goes on
			t.Fatal(err)
		}
	}
	if _, err := c.Add(t.Context(), 1); !errors.Is(err, pawl.ErrClosed) {
		t.Error(err)
	}
}

// TestEnd: numbers beyond what Lua can hold are exact, and after the last there is an error.
func TestEnd(t *testing.T) {
	client, mark := dial(t, testservers.Redis(t).Addr), newMark(t)
	if _, err := mark.Raise(t.Context(), math.MaxInt64-30, id.Reading{}); err != nil {
		t.Fatal(err)
	}
	does(t, client, "SET", t.Name(), "9223372036854775777")
	for _, c := range []*redisid.Counter{counter(t, client, t.Name(), nil), counter(t, client, t.Name()+" marked", &redisid.Options{Mark: mark, Ahead: 10})} {
		for i := range int64(10) {
			if last := adds(t, c, 3); last != math.MaxInt64-30+3*(i+1) {
				t.Fatalf("%d numbers before the end after %d", math.MaxInt64-last, 3*(i+1))
			}
		}
		if last, err := c.Add(t.Context(), 1); !errors.Is(err, id.ErrExhausted) || errors.Is(err, pawl.ErrUnavailable) {
			t.Error(last, err)
		}
	}
}

// TestMarkIsAway: numbers go on up to what the mark covers, and no further; and go on when the
// mark is back.
func TestMarkIsAway(t *testing.T) {
	client, mark := dial(t, testservers.Redis(t).Addr), newMark(t)
	c := counter(t, client, t.Name(), &redisid.Options{Mark: mark, Ahead: 100})
	adds(t, c, 1)
	mark.away.Store(true)
	for range 99 {
		adds(t, c, 1)
	}
	for range 3 {
		if last, err := c.Add(t.Context(), 1); !errors.Is(err, pawl.ErrUnavailable) || !errors.Is(err, errAway) {
			t.Fatal(last, err)
		}
	}
	mark.away.Store(false)
	if last := adds(t, c, 1); last != 101 {
		t.Errorf("%d after 100", last)
	}
}

// TestMarkIsRaisedInTime: when half of the numbers are left, and not by the calls.
func TestMarkIsRaisedInTime(t *testing.T) {
	mark := newMark(t)
	c := counter(t, dial(t, testservers.Redis(t).Addr), t.Name(), &redisid.Options{Mark: mark, Ahead: 1000})
	adds(t, c, 501)
	until(t, "raised", func() bool { return mark.raised.Load() == 2 })
	mark.away.Store(true)
	for range 14 {
		adds(t, c, 100)
	}
}

// TestMarkBehind: a mark that was lost does not bring numbers back that Redis still knows of.
func TestMarkBehind(t *testing.T) {
	client := dial(t, testservers.Redis(t).Addr)
	before := adds(t, counter(t, client, t.Name(), &redisid.Options{Mark: newMark(t), Ahead: 1000}), 900)
	lost := newMark(t)
	c := counter(t, client, t.Name(), &redisid.Options{Mark: lost, Ahead: 10})
	if last := adds(t, c, 2000); last-2000 < before {
		t.Errorf("%d to %d after %d", last-1999, last, before)
	}
	if is, err := lost.Load(t.Context()); err != nil || is.Value < 2900 {
		t.Errorf("the mark is %+v, %v", is, err)
	}
}
