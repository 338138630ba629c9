package idprocesstest

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl/internal/testservers"
)

// The test binary is also the processes that make IDs.
func TestMain(m *testing.M) {
	if task := os.Getenv(beProcess); task != "" {
		fmt.Fprintln(os.Stderr, work(task))
		os.Exit(1)
	}
	os.Exit(testservers.Main(m))
}

// goal is how long the processes go on: until all of it is there.
type goal struct {
	kills, faults    int // faults of each server
	inMemory, stored int // IDs of each kind
	least, most      time.Duration
	pause            time.Duration
}

func goals() goal {
	if os.Getenv("PAWL_TEST_SOAK") != "" {
		return goal{300, 30, 100_000_000, 1_000_000, 10 * time.Minute, 40 * time.Minute, 8 * time.Millisecond}
	}
	return goal{20, 3, 1_000_000, 10_000, 0, 10 * time.Minute, 40 * time.Millisecond}
}

// missing says what there is too little of.
func (g goal) missing(f *fleet, faults int, since time.Time) (all []string) {
	f.mu.Lock()
	kills := f.kills
	f.mu.Unlock()
	if took := time.Since(since).Round(time.Second); took < g.least {
		all = append(all, took.String())
	}
	if kills < g.kills || faults < g.faults {
		all = append(all, fmt.Sprintf("%d kills, %d faults of each server", kills, faults))
	}
	for i, k := range kinds {
		if n := f.checks[i].Len(); n < g.of(k) {
			all = append(all, fmt.Sprintf("%s: %d", k.name, n))
		}
	}
	return all
}

func (g goal) of(k kind) int {
	switch {
	case k.naive:
		return 1000 // which repeat soon
	case k.atStore:
		return g.stored
	}
	return g.inMemory
}

// TestIDs: no ID is there twice, and the IDs of a goroutine rise, whatever is killed, set back, or
// forgotten. 4 processes make IDs of all kinds by 4 goroutines each. A process is killed each second, and started again with another
// clock, which is set while it runs, too. The servers are killed, and Redis loses its data in all ways. The
// same check finds that naive ways repeat IDs.
func TestIDs(t *testing.T) {
	goal, began := goals(), time.Now()
	redis, servers := testservers.Redis(t), []*testservers.Server{testservers.Postgres(t), testservers.MariaDB(t), testservers.Etcd(t)}
	midnight := began.UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
	f := newFleet(t, task{
		Postgres: servers[0].Addr, MariaDB: servers[1].Addr, Etcd: servers[2].Addr, Redis: redis.Addr,
		Pause: goal.pause, Skew: midnight.Sub(began), // days change under the readable IDs
	})
	losses := newLosses(t, redis)
	faults := func() int { return losses.n / 2 } // of the servers
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for missing := goal.missing(f, 0, began); len(missing) > 0 && !t.Failed(); missing = goal.missing(f, faults()/len(servers), began) {
		if time.Since(began) > goal.most {
			t.Fatalf("in %v there are only %s", goal.most, strings.Join(missing, "; "))
		}
		<-tick.C // they work meanwhile
		f.more(began.Add(goal.most))
		if losses.next(); losses.n%2 == 0 {
			servers[faults()%len(servers)].Restart() // after a kill
		}
	}
	f.end()
	t.Logf("%v, %d kills of processes, %d of servers, %d losses of Redis", time.Since(began).Round(time.Second), f.kills, faults(), losses.n)
	for i, k := range kinds {
		check := f.checks[i]
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			n, err := check.Check()
			t.Logf("%d IDs: %v", n, err)
			found := err != nil && strings.Contains(err.Error(), "was handed out twice")
			if k.naive && !found || !k.naive && err != nil {
				t.Errorf("%d IDs: %v", n, err)
			}
		})
	}
}
