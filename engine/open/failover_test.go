package open_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/engine/redisengine/goredis"
	"github.com/pawl-go/pawl/internal/testservers"
)

// failoverTTL is well above the time of a failover, which is a little over two seconds.
const failoverTTL = 6 * time.Second

// held is the test's knowledge of a lock that was taken before a fault.
type held struct {
	*pawl.Lease
	ended chan time.Time // when its context ended
}

func client(t *testing.T, url string) *pawl.Client {
	t.Helper()
	return clientOf(t, connect(t, url), failoverTTL)
}

func hold(t *testing.T, c *pawl.Client, name string) held {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := c.Mutex(name).Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	h := held{l, make(chan time.Time, 1)}
	context.AfterFunc(l.Context(), func() { h.ended <- time.Now() })
	return h
}

// eventually polls for a condition that takes a while.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// queued waits until so many claims are in the store.
func queued(t *testing.T, url, name string, n int) {
	t.Helper()
	eng := connect(t, url)
	eventually(t, "queued", func() bool {
		r, err := eng.Show(t.Context(), name)
		return err == nil && len(r.Claims) == n
	})
}

// after checks that the next holder came after the first had ended, with a larger token.
func after(t *testing.T, first held, ended time.Time, got <-chan locked) {
	t.Helper()
	next := <-got
	if next.err != nil {
		t.Fatal(next.err)
	}
	t.Logf("the next holds %v after the first ended", next.at.Sub(ended).Round(time.Millisecond))
	if next.at.Before(ended) {
		t.Errorf("both believed for %v", ended.Sub(next.at))
	}
	if next.Token() <= first.Token() {
		t.Errorf("token %v after %v", next.Token(), first.Token())
	}
	// A request may meet a server that hangs; the heartbeat repeats it.
	if err := next.Unlock(t.Context()); err != nil && !errors.Is(err, pawl.ErrUnavailable) {
		t.Error(err)
	}
}

// keeps waits until the first holder has lived on for a TTL after a fault. Then it ends that hold,
// and returns the time of the end.
func keeps(t *testing.T, first held, fault time.Time, ttl time.Duration) (ended time.Time) {
	t.Helper()
	eventually(t, "it was renewed, or is lost", func() bool {
		return first.Err() != nil || first.ValidUntil().After(fault.Add(2*ttl))
	})
	if err := first.Err(); err != nil {
		t.Errorf("lost: %v", err)
	}
	t.Logf("renewed %v after the fault", time.Since(fault).Round(time.Millisecond))
	ended = time.Now()
	// A request may meet a server that hangs; the heartbeat repeats it.
	if err := first.Unlock(t.Context()); err != nil && !errors.Is(err, pawl.ErrUnavailable) {
		t.Error(err)
	}
	return ended
}

// TestRedisFailover: a grant that the replica knows outlives the master.
func TestRedisFailover(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*testservers.Server){
		"master killed": (*testservers.Server).Kill,
		"master paused": (*testservers.Server).Pause,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testservers.RedisSentinels(t)
			url := sentinelURL(testservers.SentinelMaster, s.Addrs()...)
			first := hold(t, client(t, url), "failover")
			next := lockSoon(t, client(t, url).Mutex("failover"))
			queued(t, url, "failover", 2)
			replicated(t, s.Replica.Addr, "failover")
			began := time.Now()
			fault(s.Master)
			after(t, first, keeps(t, first, began, failoverTTL), next)
		})
	}
}

// TestRedisFailoverOfGoRedis: the same with the client of another library.
func TestRedisFailoverOfGoRedis(t *testing.T) {
	t.Parallel()
	s := testservers.RedisSentinels(t)
	through := func() *pawl.Client {
		raw := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: testservers.SentinelMaster, SentinelAddrs: s.Addrs()})
		t.Cleanup(func() { raw.Close() })
		eng, err := goredis.New(raw, nil)
		if err != nil {
			t.Fatal(err)
		}
		return clientOf(t, eng, failoverTTL)
	}
	first := hold(t, through(), "failover")
	next := lockSoon(t, through().Mutex("failover"))
	queued(t, sentinelURL(testservers.SentinelMaster, s.Addrs()...), "failover", 2)
	replicated(t, s.Replica.Addr, "failover")
	began := time.Now()
	s.Master.Kill()
	after(t, first, keeps(t, first, began, failoverTTL), next)
}

// replicated waits until the replica knows the holder.
func replicated(t *testing.T, addr, name string) {
	t.Helper()
	raw := oneRedis(t, addr)
	eventually(t, "replicated", func() bool {
		n, err := raw.Do(t.Context(), raw.B().Exists().Key("pawl:{"+name+"}").Build()).AsInt64()
		return err == nil && n == 1
	})
}

// TestRedisFailoverLosesWhatWasNotReplicated shows the worth of replication without a wait: the
// grant is lost. The engine notices that another server answers, and grants nothing for one TTL. So
// the holder learns of the loss, and no two holders trust the lock at once.
func TestRedisFailoverLosesWhatWasNotReplicated(t *testing.T) {
	t.Parallel()
	s := testservers.RedisSentinels(t)
	url := sentinelURL(testservers.SentinelMaster, s.Addrs()...)
	a, b := client(t, url), client(t, url)
	if err := hold(t, a, "known").Unlock(t.Context()); err != nil { // the grace of a new server has ended
		t.Fatal(err)
	}
	s.CutReplica()
	first := hold(t, a, "failover")
	next := lockSoon(t, b.Mutex("failover"))
	queued(t, url, "failover", 2)
	s.Master.Kill()
	ended := <-first.ended
	if err := first.Err(); !errors.Is(err, pawl.ErrLost) {
		t.Errorf("lost: %v", err)
	}
	after(t, first, ended, next)
}

// TestEtcdLeaderFails: nothing is lost, whichever member leads.
func TestEtcdLeaderFails(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*testservers.Server){
		"leader killed": (*testservers.Server).Kill,
		"leader paused": (*testservers.Server).Pause,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := testservers.EtcdCluster(t)
			url := etcdCluster(addrsOf(cluster))
			first := hold(t, client(t, url), "failover")
			next := lockSoon(t, client(t, url).Mutex("failover"))
			queued(t, url, "failover", 2)
			leader, _ := testservers.EtcdLeader(t, cluster)
			began := time.Now()
			fault(leader)
			after(t, first, keeps(t, first, began, failoverTTL), next)
		})
	}
}

// TestNATSLeaderFails: a bucket with three replicas loses nothing, and a restart of one server is no grace. The
// servers elect after 4 to 9 seconds, which the default TTL outlives.
func TestNATSLeaderFails(t *testing.T) {
	t.Parallel()
	const ttl = 15 * time.Second
	for name, fault := range map[string]func(*testservers.Server){
		"leader killed": (*testservers.Server).Kill,
		"leader paused": (*testservers.Server).Pause,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := testservers.NATSCluster(t)
			url := natsCluster(addrsOf(cluster))
			if _, err := open.Init(t.Context(), connect(t, url)); err != nil {
				t.Fatal(err)
			}
			first := hold(t, clientOf(t, connect(t, url), ttl), "failover")
			next := lockSoon(t, clientOf(t, connect(t, url), ttl).Mutex("failover"))
			queued(t, url, "failover", 2)
			leader, _ := testservers.NATSLeader(t, cluster, "KV_pawl")
			began := time.Now()
			fault(leader)
			after(t, first, keeps(t, first, began, ttl), next)
		})
	}
}
