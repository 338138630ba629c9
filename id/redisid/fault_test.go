package redisid_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/redisid"
	"github.com/pawl-go/pawl/internal/idtest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// load is processes that count on one key until it is ended.
type load struct {
	t     testing.TB
	check idtest.Checker[int64]
	given atomic.Int64
	ctx   context.Context
	end   context.CancelFunc
	group sync.WaitGroup
}

func newLoad(t testing.TB) *load {
	l := &load{t: t}
	l.ctx, l.end = context.WithCancel(t.Context())
	t.Cleanup(l.group.Wait)
	t.Cleanup(l.end)
	return l
}

// process adds a process: some of its goroutines want one number at a time, some a block.
func (l *load) process(c id.Counter) {
	strict := id.NewStrict(c)
	for g := range 4 {
		log := l.check.Log()
		l.group.Go(func() {
			for l.ctx.Err() == nil {
				last, n, err := int64(0), int64(1), error(nil)
				if g < 2 {
					last, err = strict.Next(l.ctx)
				} else {
					n = 1 + rand.Int64N(9)
					last, err = c.Add(l.ctx, n)
				}
				switch {
				case err == nil:
				case l.ctx.Err() != nil:
					return
				case errors.Is(err, pawl.ErrUnavailable) && last == 0:
					time.Sleep(time.Millisecond)
					continue
				default:
					l.t.Error(last, err)
					return
				}
				for i := range n {
					log.Add(last - n + 1 + i)
				}
				l.given.Add(n)
			}
		})
	}
}

// goesOn waits until many more numbers were given, by requests of all.
func (l *load) goesOn() {
	l.t.Helper()
	want := l.given.Load() + 300
	until(l.t, "some numbers", func() bool { return l.given.Load() >= want })
}

// ends returns the mistakes in the numbers.
func (l *load) ends() error {
	l.end()
	l.group.Wait()
	n, err := l.check.Check()
	l.t.Logf("%d numbers: %v", n, err)
	return err
}

// naive is a bare INCR.
type naive struct {
	client rueidis.Client
	key    string
}

func (c naive) Add(ctx context.Context, n int64) (int64, error) {
	last, err := c.client.Do(ctx, c.client.B().Incrby().Key(c.key).Increment(n).Build()).AsInt64()
	if err != nil {
		return 0, errors.Join(pawl.ErrUnavailable, err)
	}
	return last, nil
}

func isReplica(t *testing.T, server rueidis.Client) bool {
	info, err := server.Do(t.Context(), server.B().Info().Section("replication").Build()).ToString()
	return err == nil && strings.Contains(info, "role:slave") && strings.Contains(info, "master_link_status:up")
}

// follow has a server become the replica of another.
func follow(t *testing.T, server rueidis.Client, addr string) {
	host, port, _ := strings.Cut(addr, ":")
	does(t, server, "REPLICAOF", host, port)
	until(t, "it follows", func() bool { return isReplica(t, server) })
}

// TestFailover: a replica that lags is promoted, and the old master goes on for a while beside
// it. The old master is demoted, and promoted again. In between a client has counted, or none.
func TestFailover(t *testing.T) {
	t.Parallel()
	for name, is := range map[string]struct{ between, ahead int64 }{
		"counted in between": {2, 10_000}, "nobody counted in between": {0, 10_000}, "few ahead": {30, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := testservers.Redis(t)
			link := proxy.New(t, a.Addr)
			b := testservers.RedisReplica(t, link.Addr)
			oa, ob, mark := dial(t, a.Addr), dial(t, b.Addr), newMark(t)
			bare := []id.Counter{naive{oa, "bare"}, naive{ob, "bare"}}
			var check, bareCheck idtest.Checker[int64]
			check.Unordered, bareCheck.Unordered = true, true
			log, bareLog := check.Log(), bareCheck.Log()
			newcomer := func(which int) *redisid.Counter { // a process that has seen no number yet
				return counter(t, []rueidis.Client{oa, ob}[which], "ids", &redisid.Options{Mark: mark, Ahead: is.ahead})
			}
			count := func(which int) {
				t.Helper()
				log.Add(adds(t, newcomer(which), 1))
				n, err := bare[which].Add(t.Context(), 1)
				if err != nil {
					t.Fatal(err)
				}
				bareLog.Add(n)
			}
			count(0)
			does(t, oa, "WAIT", "1", "5000")
			link.Freeze()
			count(0) // which the replica never knows
			count(0)
			does(t, ob, "REPLICAOF", "NO", "ONE")
			for range is.between {
				count(1)
				count(0) // the old master serves somebody still
			}
			follow(t, oa, b.Addr)
			if last, err := newcomer(0).Add(t.Context(), 1); !errors.Is(err, pawl.ErrUnavailable) {
				t.Errorf("%d of a replica: %v", last, err)
			}
			does(t, oa, "REPLICAOF", "NO", "ONE")
			count(0)
			count(0)
			count(1)
			if n, err := check.Check(); err != nil {
				t.Error(n, err)
			}
			if _, err := bareCheck.Check(); err == nil {
				t.Error("a bare INCRBY is found well")
			}
		})
	}
}

// TestReplicaThatTakesWrites is no master.
func TestReplicaThatTakesWrites(t *testing.T) {
	t.Parallel()
	master := testservers.Redis(t)
	replica := dial(t, testservers.RedisReplica(t, master.Addr, "--replica-read-only", "no").Addr)
	does(t, replica, "SET", "x", "1")
	if last, err := counter(t, replica, "ids", &redisid.Options{Mark: newMark(t)}).Add(t.Context(), 1); !errors.Is(err, pawl.ErrUnavailable) {
		t.Error(last, err)
	}
}

// TestLateRequest: a request to count that was under way for long counts in the life that is
// there when it arrives.
func TestLateRequest(t *testing.T) {
	server, mark := testservers.Redis(t), newMark(t)
	slow := proxy.New(t, server.Addr)
	opts := &redisid.Options{Mark: mark, Ahead: 100}
	late, soon := counter(t, dial(t, slow.Addr), "ids", opts), counter(t, dial(t, server.Addr), "ids", opts)
	var check idtest.Checker[int64]
	log, beside := check.Log(), check.Log()
	log.Add(adds(t, late, 1))
	slow.Delay(200 * time.Millisecond)
	answered := make(chan int64)
	go func() {
		last, err := late.Add(t.Context(), 1)
		if err != nil {
			t.Error(err)
		}
		answered <- last
	}()
	does(t, dial(t, server.Addr), "FLUSHALL", "SYNC")
	for range 3 {
		beside.Add(adds(t, soon, 1)) // of which a busy machine may answer some after the late request
	}
	log.Add(<-answered)
	if _, err := check.Check(); err != nil {
		t.Error(err)
	}
}

// TestUnknownOutcome: a caller that was not answered leaves a gap, and a claim whose client was
// cut off is taken over.
func TestUnknownOutcome(t *testing.T) {
	server, mark := testservers.Redis(t), newMark(t)
	link := proxy.New(t, server.Addr)
	opts := &redisid.Options{Mark: mark, Ahead: 100}
	cut, other := counter(t, dial(t, link.Addr), "ids", opts), counter(t, dial(t, server.Addr), "ids", opts)
	before := adds(t, cut, 1)
	for _, prepare := range []func(){func() {}, func() { does(t, dial(t, server.Addr), "FLUSHALL", "SYNC") }} {
		prepare()
		link.FreezeReplies()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if last, err := cut.Add(ctx, 1); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, pawl.ErrUnavailable) || last != 0 {
			t.Error(last, err)
		}
		cancel()
		link.Thaw()
		after := adds(t, other, 1)
		if after <= before+1 {
			t.Errorf("%d after %d and one of unknown outcome", after, before)
		}
		before = after
	}
}

// TestRestored: a dump of the key is noticed also by a process that has seen no number, however long
// the key is.
func TestRestored(t *testing.T) {
	client, opts := dial(t, testservers.Redis(t).Addr), &redisid.Options{Mark: newMark(t), Ahead: 100}
	for _, key := range []string{t.Name(), strings.Repeat("k", 40), strings.Repeat("k", 41), strings.Repeat("k", 1024)} {
		first := adds(t, counter(t, client, key, opts), 1)
		dump, _ := does(t, client, "DUMP", key).ToString()
		before := adds(t, counter(t, client, key, opts), 10)
		if before != first+10 {
			t.Errorf("%d after %d and 10 more: the key was begun anew", before, first)
		}
		for _, words := range [][]string{{"0"}, {"3600000"}, {strconv.FormatInt(time.Now().Add(time.Hour).UnixMilli(), 10), "ABSTTL"}} {
			does(t, client, append([]string{"RESTORE", key, words[0], dump, "REPLACE"}, words[1:]...)...)
			after := adds(t, counter(t, client, key, opts), 1)
			if after <= before {
				t.Errorf("%d bytes, %v: %d after %d", len(key), words, after, before)
			}
			before = after
		}
	}
}

// TestOneForm: a server on which a dump of the key would not be noticed is refused.
func TestOneForm(t *testing.T) {
	client := dial(t, testservers.Redis(t).Addr)
	for setting, value := range map[string][2]string{"entries": {"2", "128"}, "value": {"20", "64"}, " value": {"20000", "64"}} {
		setting = "hash-max-listpack-" + strings.TrimSpace(setting)
		c := counter(t, client, "ids", &redisid.Options{Mark: newMark(t)})
		does(t, client, "CONFIG", "SET", setting, value[0])
		if last, err := c.Add(t.Context(), 1); !errors.Is(err, pawl.ErrUnsupported) || !strings.Contains(err.Error(), setting) {
			t.Errorf("%s %s: %d, %v", setting, value[0], last, err)
		}
		does(t, client, "CONFIG", "SET", setting, value[1])
		adds(t, c, 1)
		does(t, client, "DEL", "ids")
	}
}

// TestRenamed: the key of another counter is not counted on.
func TestRenamed(t *testing.T) {
	client := dial(t, testservers.Redis(t).Addr)
	mine, other := &redisid.Options{Mark: newMark(t), Ahead: 100}, &redisid.Options{Mark: newMark(t), Ahead: 100}
	before := adds(t, counter(t, client, t.Name(), mine), 10)
	adds(t, counter(t, client, t.Name()+" other", other), 1)
	does(t, client, "RENAME", t.Name()+" other", t.Name())
	for _, c := range []*redisid.Counter{counter(t, client, t.Name(), mine), counter(t, client, t.Name()+" other", other)} {
		if after := adds(t, c, 1); after <= before {
			t.Errorf("%d after %d", after, before)
		}
		before = 1
	}
}

// TestFieldsOverwritten: fields that are no numbers any more are begun anew, above the mark.
func TestFieldsOverwritten(t *testing.T) {
	client, opts := dial(t, testservers.Redis(t).Addr), &redisid.Options{Mark: newMark(t), Ahead: 100}
	before := adds(t, counter(t, client, "ids", opts), 10)
	for _, field := range [][]string{{"left", "many"}, {"left", "-5"}, {"limit", "-1"}, {"limit", ""}, {"life", ""}, {"reign", "x"}, {"form", "x"}, {"claim", "x"}} {
		does(t, client, append([]string{"HSET", "ids"}, field...)...)
		after := adds(t, counter(t, client, "ids", opts), 80)
		if after <= before {
			t.Errorf("%v: %d after %d", field, after, before)
		}
		before = after
	}
	does(t, client, "HDEL", "ids", "left")
	if after := adds(t, counter(t, client, "ids", opts), 1); after <= before {
		t.Errorf("%d after %d", after, before)
	}
}

// TestCopyPutBack: a copy of the key in the same server is noticed by a process that saw more.
func TestCopyPutBack(t *testing.T) {
	server, mark := testservers.Redis(t), newMark(t)
	c, operator := counter(t, dial(t, server.Addr), "ids", &redisid.Options{Mark: mark, Ahead: 100}), dial(t, server.Addr)
	adds(t, c, 1)
	does(t, operator, "COPY", "ids", "copy")
	before := adds(t, c, 10)
	does(t, operator, "COPY", "copy", "ids", "REPLACE")
	if last := adds(t, c, 1); last <= before {
		t.Errorf("%d after %d", last, before)
	}
}

// TestRefused: a server that cannot count is unavailable, and says why.
func TestRefused(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t, "--dbfilename", "dir.rdb")
	operator := dial(t, server.Addr)
	if err := os.Mkdir(filepath.Join(server.Dir, "dir.rdb"), 0o700); err != nil {
		t.Fatal(err)
	}
	for code, trouble := range map[string][2][]string{
		"OOM":        {{"CONFIG", "SET", "maxmemory", "1"}, {"CONFIG", "SET", "maxmemory", "0"}},
		"MISCONF":    {{"CONFIG", "SET", "save", "3600 1"}, {"CONFIG", "SET", "stop-writes-on-bgsave-error", "no"}},
		"READONLY":   {{"REPLICAOF", "127.0.0.1", "1"}, {"REPLICAOF", "NO", "ONE"}},
		"NOREPLICAS": {{"CONFIG", "SET", "min-replicas-to-write", "1"}, {"CONFIG", "SET", "min-replicas-to-write", "0"}},
	} {
		for kind, opts := range map[string]*redisid.Options{"bare": nil, "marked": {Mark: newMark(t)}, "marked before": {Mark: newMark(t)}} {
			c := counter(t, dial(t, server.Addr), code+kind, opts)
			if kind == "marked before" {
				adds(t, c, 1)
			}
			does(t, operator, trouble[0]...)
			if code == "MISCONF" {
				until(t, "a save failed", func() bool {
					operator.Do(t.Context(), operator.B().Bgsave().Build())
					info, _ := does(t, operator, "INFO", "persistence").ToString()
					return strings.Contains(info, "rdb_last_bgsave_status:err")
				})
			}
			if last, err := c.Add(t.Context(), 1); !errors.Is(err, pawl.ErrUnavailable) || !strings.Contains(err.Error(), code) {
				t.Errorf("%s, %s: %d, %v", code, kind, last, err)
			}
			does(t, operator, trouble[1]...)
			adds(t, c, 1)
			does(t, operator, "CONFIG", "SET", "stop-writes-on-bgsave-error", "yes", "save", "")
		}
	}
}

// TestUserWhoMayNotAsk: without INFO another server is not noticed, so nothing is counted.
func TestUserWhoMayNotAsk(t *testing.T) {
	server := testservers.RedisUser(t, "app", "secret", "~*", "+@all", "-info")
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr}, Username: "app", Password: "secret", DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := counter(t, client, "ids", &redisid.Options{Mark: newMark(t)}).Add(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "may not ask INFO") {
		t.Error(err)
	}
	adds(t, counter(t, client, "bare", nil), 1)
}

// TestListedRights: the rights that the documentation lists are enough.
func TestListedRights(t *testing.T) {
	for name, row := range map[string]struct {
		rights string
		opts   *redisid.Options
	}{
		"marked": {"+evalsha +eval +info +time +object|encoding +exists +del +@hash", &redisid.Options{Mark: newMark(t)}},
		"bare":   {"+evalsha +eval +@string", nil},
	} {
		rules := append([]string{"~*", "-@all"}, strings.Fields(row.rights)...)
		server := testservers.RedisUser(t, "app", "secret", rules...)
		client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr}, Username: "app", Password: "secret", DisableCache: true})
		if err != nil {
			t.Fatal(name, err)
		}
		t.Cleanup(client.Close)
		c := counter(t, client, "ids", row.opts)
		adds(t, c, 1)
		adds(t, c, 1)
	}
}

// TestCluster: the key is the only one, and each node notices for itself.
func TestCluster(t *testing.T) {
	t.Parallel()
	nodes := testservers.RedisCluster(t)
	client, mark := dial(t, nodes[0].Addr), newMark(t)
	l := newLoad(t)
	for _, key := range []string{"ids", "other", "third {x}"} {
		adds(t, counter(t, client, key, nil), 1)
		does(t, client, "DEL", key)
		adds(t, counter(t, client, key, &redisid.Options{Mark: newMark(t)}), 1)
		does(t, client, "DEL", key)
	}
	l.process(counter(t, client, "ids", &redisid.Options{Mark: mark, Ahead: 1000}))
	l.process(counter(t, dial(t, nodes[1].Addr), "ids", &redisid.Options{Mark: mark, Ahead: 1000}))
	l.goesOn()
	testservers.RestartRedisCluster(t, nodes)
	l.goesOn()
	if err := l.ends(); err != nil {
		t.Error(err)
	}
	if mark.raised.Load() < 2 {
		t.Error("the restart was not noticed")
	}
}

// hangingMark is a mark whose store hangs, and with it Redis.
type hangingMark struct {
	id.Mark
	hang func()
}

func (m hangingMark) Load(ctx context.Context) (id.Reading, error) {
	m.hang()
	<-ctx.Done()
	return id.Reading{}, context.Cause(ctx)
}

// TestEndOfCtx: stores that hang do not hold a caller up after its ctx.
func TestEndOfCtx(t *testing.T) {
	link := proxy.New(t, testservers.Redis(t).Addr)
	c := counter(t, dial(t, link.Addr), "ids", &redisid.Options{Mark: hangingMark{hang: link.FreezeReplies}})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	timer := time.NewTimer(600 * time.Millisecond) // a busy machine is late for both
	_, err := c.Add(ctx, 1)
	returned := time.Now()
	if late := returned.Sub(<-timer.C); !errors.Is(err, pawl.ErrUnavailable) || late > 100*time.Millisecond {
		t.Errorf("the call returned %v after the timer: %v", late, err)
	}
	link.Thaw()
}
