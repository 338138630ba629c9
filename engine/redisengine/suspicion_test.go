package redisengine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// looking is a client whose looks at the mark are stopped.
type looking struct {
	Client
	stop func(ctx context.Context) error
}

func (l looking) asks(ctx context.Context, cmds ...Command) error {
	if slices.ContainsFunc(cmds, func(c Command) bool { return strings.HasPrefix(c.Head[len(c.Head)-2], "-- Looks at the boot mark") }) {
		return l.stop(ctx)
	}
	return nil
}

func (l looking) Do(ctx context.Context, cmd Command) Reply {
	if err := l.asks(ctx, cmd); err != nil {
		return Reply{Err: err}
	}
	return l.Client.Do(ctx, cmd)
}

// Together: a failed command does not keep a server from the next ones.
func (l looking) Together(ctx context.Context, cmds []Command) []Reply {
	if err := l.asks(ctx, cmds...); err != nil {
		return append([]Reply{{Err: err}}, l.Client.Together(ctx, cmds[1:])...)
	}
	return l.Client.Together(ctx, cmds)
}

// swapBack makes a master a replica of a replica that lags, and promotes that master again. The master
// was never restarted, has its own mark and knows the scripts, and has lost what the holder holds. The
// other client may have met the replica.
func swapBack(t *testing.T, stop func(ctx context.Context) error, met bool) (a *testservers.Server, holder, other visitor) {
	t.Helper()
	a = testservers.Redis(t)
	b := testservers.RedisReplica(t, a.Addr)
	ea, eb := onServer(t, a, 0), onServer(t, b, 0)
	isNew(t, ea)
	holder, other = visit(t, ea, time.Minute, "job"), visit(t, NewOn(looking{onRueidis{dialOne(t, a.Addr)}, stop}, nil), time.Minute, "job")
	other.holds(all) // its scripts are known to a
	other.leaves()
	does(t, ea, "WAIT", "1", "5000")
	does(t, eb, "REPLICAOF", "127.0.0.1", "1") // it lags from now on
	holder.holds(all)
	does(t, eb, "REPLICAOF", "NO", "ONE")
	_, portB, _ := strings.Cut(b.Addr, ":")
	does(t, ea, "REPLICAOF", "127.0.0.1", portB)
	linked(t, ea)
	if met {
		if _, err := other.Renew(sessiontest.Soon(t), nil); err == nil {
			t.Fatal("a replica renews a session")
		}
	}
	does(t, ea, "REPLICAOF", "NO", "ONE")
	return a, holder, other
}

// linked waits until a replica has what its master had.
func linked(t *testing.T, replica *Engine) {
	t.Helper()
	sessiontest.Until(t, "the replica has all", func() bool {
		info, _ := does(t, replica, "INFO", "replication").Value.(string)
		return strings.Contains(info, "master_link_status:up")
	})
}

func never(context.Context) error { return nil }

// TestSwapBackIsNoticed: so is a master that became a replica of a replica that lags, and is promoted again.
func TestSwapBackIsNoticed(t *testing.T) {
	for _, met := range []string{"a client that comes later", "a client that met the replica"} {
		t.Run(met, func(t *testing.T) {
			a, holder, other := swapBack(t, never, met == "a client that met the replica")
			if met == "a client that comes later" {
				other = visit(t, onServer(t, a, 0), time.Minute, "job")
			}
			refused(t, other.session, "job")
			if gone, err := holder.Renew(sessiontest.Soon(t), []*engine.Claim{holder.claim(all)}); err != nil || len(gone) != 1 {
				t.Errorf("the holder has lost %d claims, %v", len(gone), err)
			}
		})
	}
}

// TestLookThatFails: a look at the mark that fails is no look. The next step looks again.
func TestLookThatFails(t *testing.T) {
	var fails atomic.Bool
	_, _, other := swapBack(t, func(context.Context) error {
		if fails.Swap(false) {
			return errors.New("LOADING Redis is loading the dataset in memory")
		}
		return nil
	}, true)
	fails.Store(true)
	refused(t, other.session, "job")
}

// TestLookUnderWay: a step does not go on while the look of another step is under way.
func TestLookUnderWay(t *testing.T) {
	const beside = 2
	var stops atomic.Bool
	arrived, gate := make(chan struct{}, 2*beside), make(chan struct{})
	_, _, other := swapBack(t, func(context.Context) error {
		if stops.Load() {
			arrived <- struct{}{}
			<-gate
		}
		return nil
	}, true)
	stops.Store(true)
	ended := make(chan error, beside)
	for range beside {
		c := sessiontest.Whole(t, sessiontest.Fair)
		c.Resource = "job"
		go func() {
			_, err := other.Enter(sessiontest.Soon(t), c, false)
			ended <- err
		}()
		select {
		case <-arrived:
		case err := <-ended:
			t.Fatalf("entered without a look: %v", err)
		}
	}
	close(gate)
	for range beside {
		if err := <-ended; !errors.Is(err, engine.ErrGrace) {
			t.Errorf("entered: %v, want the grace", err)
		}
	}
}

// TestReplicaIsTaughtNothing: a replica that refuses the look learns no script. A client that comes after its promotion would
// be granted by these scripts before anybody has looked.
func TestReplicaIsTaughtNothing(t *testing.T) {
	a := testservers.Redis(t)
	b := testservers.RedisReplica(t, a.Addr)
	ea, eb := onServer(t, a, 0), onServer(t, b, 0)
	isNew(t, ea)
	var now atomic.Bool
	w := visit(t, NewOn(switching{onRueidis{dialOne(t, a.Addr)}, onRueidis{dialOne(t, b.Addr)}, &now}, nil), time.Minute, "job")
	w.holds(all)
	linked(t, eb)
	now.Store(true)
	if err := w.Leave(t.Context(), "job", w.claim(all).ID); err == nil {
		t.Fatal("a replica lets a claim leave")
	}
	for v, s := range w.engine.life.Load().scripts {
		if known, _ := does(t, eb, "SCRIPT", "EXISTS", s.sha).Value.([]any); known[0] != int64(0) {
			t.Errorf("the replica knows script %c", letters[v])
		}
	}
}

// TestServersWhoseRestartsGoUnnoticed: a server that keeps scripts over a restart, or tells of no run, is refused.
func TestServersWhoseRestartsGoUnnoticed(t *testing.T) {
	const run = "run_id:0123456789abcdef0123456789abcdef01234567\r\n"
	for info, refused := range map[string]string{
		"redis_version:6.2.14\r\n" + run:                           "6.2.14",
		"redis_version:6.3.4\r\n" + run:                            "6.3.4", // KeyDB
		"redis_version:5.0.14\r\n" + run:                           "5.0.14",
		"redis_version:7.4.0\r\ndragonfly_version:df-v1.40.1\r\n":  "run_id",
		"redis_version:7.0.0\r\n" + run:                            "",
		"redis_version:7.2.4\r\nserver_name:valkey\r\n" + run:      "",
		"redis_version:10.6.2\r\n" + run:                           "",
		"redis_version:255.255.255\r\n" + run:                      "", // of a development branch
		"redis_version:7.0.15\r\n" + run + "mem_allocator:6.2\r\n": "",
	} {
		err := unnoticed("# Server\r\n" + info)
		if refused == "" && err != nil || refused != "" && (!errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), refused)) {
			t.Errorf("%q: %v", info, err)
		}
	}
	e := onServer(t, testservers.Redis(t), 0)
	visit(t, e, time.Minute, "job")
	if info, _ := does(t, e, "INFO", "server").Value.(string); unnoticed(info) != nil || unnoticed(strings.Replace(info, "run_id:", "", 1)) == nil {
		t.Errorf("this server: %v, without its run: %v", unnoticed(info), unnoticed(strings.Replace(info, "run_id:", "", 1)))
	}
	if err := e.checked(Reply{Value: []any{int64(1), "mark", "# Server\r\nredis_version:6.2.14\r\n" + run}}); !errors.Is(err, engine.ErrUnsupported) || e.life.Load().mark == "mark" {
		t.Errorf("a server of version 6.2 is taken: %v", err)
	}
}
