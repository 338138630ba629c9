package idemleasetest

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// store is a store that processes share. The URL is of an address, or of a file in a folder.
type store struct {
	addr func(*testing.T) string
	url  func(at string) string
	ttl  time.Duration
}

var stores = map[string]store{
	"sqlite":    {nil, func(dir string) string { return "sqlite:" + filepath.Join(dir, "pawl.db") }, time.Second},
	"redis":     {func(t *testing.T) string { return testservers.SharedRedis(t).Addr }, func(at string) string { return "redis://" + at }, time.Second},
	"etcd":      {func(t *testing.T) string { return testservers.SharedEtcd(t).Addr }, func(at string) string { return "etcd://" + at }, 2 * time.Second},
	"postgres":  {func(t *testing.T) string { return testservers.SharedPostgres(t).Addr }, func(at string) string { return "postgres://postgres@" + at + "/postgres" }, time.Second},
	"mariadb":   {func(t *testing.T) string { return testservers.SharedMariaDB(t).Addr }, func(at string) string { return "mysql://root@" + at + "/pawl" }, time.Second},
	"nats":      {func(t *testing.T) string { return testservers.SharedNATS(t).Addr }, func(at string) string { return "nats://" + at }, time.Second},
	"zookeeper": {func(t *testing.T) string { return testservers.SharedZooKeeper(t).Addr }, func(at string) string { return "zk://" + at + "?tick=200ms" }, time.Second},
}

const processes = 4

// storm is one run of all processes on one store.
type storm struct {
	*testing.T
	store
	at    string // of the server; "" for a file
	dir   string
	keys  int
	lasts time.Duration
}

func newStorm(t *testing.T, s store) *storm {
	run := &storm{T: t, store: s, dir: t.TempDir(), keys: 1024, lasts: 3 * time.Second}
	if os.Getenv("PAWL_TEST_SOAK") != "" {
		run.keys, run.lasts = 100_000, 10*time.Minute
	}
	if s.addr != nil {
		run.at = s.addr(t)
	}
	return run
}

// fleet is the processes of a storm.
type fleet struct {
	*storm
	kind    string
	mu      sync.Mutex
	running [processes]*exec.Cmd
}

// run has processes work. Each second one of them is killed, and started again. Each of them has
// trouble with the network of its own. run returns how many were killed.
func (s *storm) run(kind string) (kills int) {
	f := &fleet{storm: s, kind: kind}
	var group sync.WaitGroup
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	for i := range processes {
		url := s.url(s.dir)
		if s.at != "" {
			link := proxy.New(s, s.at)
			group.Go(func() { trouble(ctx, link, s.ttl) })
			url = s.url(link.Addr)
		}
		group.Go(func() { f.keep(ctx, i, url) })
	}
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for began, n := time.Now(), 0; ctx.Err() == nil; n++ {
		<-second.C
		// On a busy machine a process needs longer than its life to get anywhere: the kills get rarer.
		if pause := 1 + int(time.Since(began)/(3*s.lasts)); n%pause == 0 {
			f.kill(rand.IntN(processes))
			kills++
		}
		enough := kind == "naive" || s.loaded()
		if took := time.Since(began); took > s.lasts && (enough || took > 150*s.lasts) {
			cancel()
		}
	}
	for i := range processes {
		f.kill(i)
	}
	group.Wait()
	return kills
}

// keep has a process at work, and starts it again when it was killed.
func (f *fleet) keep(ctx context.Context, i int, url string) {
	for ctx.Err() == nil {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), beWorker+"="+strings.Join([]string{url, f.dir, fmt.Sprint(f.keys), f.ttl.String(), f.kind}, "\n"))
		var said strings.Builder
		cmd.Stderr = &said
		f.mu.Lock()
		err := ctx.Err() // the last kill sees every process that was started
		if err == nil {
			if err = cmd.Start(); err != nil {
				f.Error(err)
			}
			f.running[i] = cmd
		}
		f.mu.Unlock()
		if err != nil {
			return
		}
		if err := cmd.Wait(); err == nil {
			return // it has been through all keys
		}
		if said.Len() > 0 {
			f.Errorf("a process: %s", said.String())
			return
		}
	}
}

func (f *fleet) kill(i int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if cmd := f.running[i]; cmd != nil && cmd.Process != nil {
		cmd.Process.Kill() //nolint:errcheck // it may be dead
	}
}

// loaded reports whether there were calls enough that a fault would show.
func (s *storm) loaded() bool {
	keys, calls := 0, 0
	for _, is := range s.read() {
		keys++
		calls += len(is.results)
	}
	return keys >= block/2 && calls >= 150
}

// trouble loses replies for a moment, and now and then for longer than a lease lasts.
func trouble(ctx context.Context, link *proxy.Proxy, ttl time.Duration) {
	defer link.Heal()
	for n := rand.IntN(4); ctx.Err() == nil; n++ {
		wait(ctx, time.Duration(300+rand.IntN(500))*time.Millisecond)
		link.FreezeReplies()
		if n%4 == 0 {
			wait(ctx, ttl+ttl/4)
		} else {
			wait(ctx, 100*time.Millisecond)
		}
		link.Heal()
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// seen is what the processes wrote of one key.
type seen struct {
	beliefs []belief
	effects int
	results []string
}

type belief struct {
	at    int64
	token uint64
}

func (s *storm) read() map[string]*seen {
	all := make(map[string]*seen)
	file, err := os.Open(filepath.Join(s.dir, "log"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		s.Fatal(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var what, key, result string
		fmt.Sscan(lines.Text(), &what, &key, &result) //nolint:errcheck // effects have no result
		if all[key] == nil {
			all[key] = new(seen)
		}
		is := all[key]
		switch what {
		case "believes":
			var b belief
			if _, err := fmt.Sscan(lines.Text(), &what, &key, &b.at, &b.token); err != nil {
				s.Fatal(err)
			}
			is.beliefs = append(is.beliefs, b)
		case "effect":
			is.effects++
		case "result":
			is.results = append(is.results, result)
		}
	}
	return all
}

// overlaps reports whether a worker believed in an older claim after another had a newer one.
func (is *seen) overlaps() bool {
	slices.SortFunc(is.beliefs, func(a, b belief) int { return cmp.Compare(a.at, b.at) })
	return !slices.IsSortedFunc(is.beliefs, func(a, b belief) int { return cmp.Compare(a.token, b.token) })
}

// TestStorm: on every store at most one holder of a key believes in its claim at a time. An effect that
// records its key is applied once, and all callers have its result. An effect that does not
// record its key is applied no more often than the key was claimed.
func TestStorm(t *testing.T) {
	for name, s := range stores {
		t.Run(name, func(t *testing.T) {
			run := newStorm(t, s)
			kills := run.run("lease")
			client := run.client()
			w, err := newWorker(client, run.dir, false)
			if err != nil {
				t.Fatal(err)
			}
			defer w.log.Close()
			all := run.read()
			worked := len(all)
			var doubles, repeats, takenOver int
			for key := range run.keys { // the last calls end what the dead have begun
				if all[fmt.Sprint(key)] != nil {
					if err := w.work(fmt.Sprint(key)); err != nil {
						t.Fatal(err)
					}
				}
			}
			for key, is := range run.read() {
				e, found, err := w.leases.Show(t.Context(), keyOf(run.dir, key))
				if err != nil || !found {
					t.Fatalf("key %s: %v, %v", key, found, err)
				}
				applied, err := os.Readlink(filepath.Join(run.dir, "effect-"+key))
				different := slices.ContainsFunc(is.results, func(r string) bool { return r != applied })
				switch {
				case err != nil || e.State != idem.Done || string(e.Result) != applied || different:
					t.Errorf("key %s is %s with %q, its effect is of %q, and callers have %q: %v", key, e.State, e.Result, applied, is.results, err)
				case is.overlaps():
					t.Errorf("key %s: two are believed to hold it: %v", key, is.beliefs)
				case is.effects > e.Attempts:
					t.Errorf("key %s has %d effects of %d claims", key, is.effects, e.Attempts)
				}
				repeats += len(is.results) - 1
				doubles += is.effects - 1
				takenOver += e.Attempts - 1
			}
			t.Logf("%d kills, %d keys, %d repeats, %d claims taken over, %d bare effects repeated", kills, worked, repeats, takenOver, doubles)
			if !run.loaded() {
				t.Error("that is no load")
			}
		})
	}
}

func (s *storm) client() *pawl.Client {
	at := s.dir
	if s.at != "" {
		at = s.at
	}
	eng, err := open.Open(s.Context(), s.url(at))
	if err != nil {
		s.Fatal(err)
	}
	var client *pawl.Client
	sessiontest.Until(s, "a session is open", func() bool { // on a busy machine a store may need longer than a request has
		client, err = pawl.New(s.Context(), eng, &pawl.Options{TTL: s.ttl})
		return !errors.Is(err, pawl.ErrUnavailable)
	})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		client.Close(context.Background()) //nolint:errcheck // it holds nothing
		eng.Close()                        //nolint:errcheck // as above
	})
	return client
}

// TestNaiveStorm: under the same load the log shows the doubles of a check before the effect and a
// write after it.
func TestNaiveStorm(t *testing.T) {
	run := newStorm(t, stores["redis"])
	run.run("naive")
	doubles, overlaps := 0, 0
	for _, is := range run.read() {
		if is.effects > 1 {
			doubles++
		}
		if is.overlaps() {
			overlaps++
		}
	}
	if t.Logf("%d keys have more than one effect, %d more than one holder at a time", doubles, overlaps); doubles == 0 || overlaps == 0 {
		t.Error("the faults are not found")
	}
}
