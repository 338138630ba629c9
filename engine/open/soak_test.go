package open_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// soak locks and unlocks random names, and checks that the client keeps no goroutine and no memory
// of them. soak first holds a lock until the client has made everything that long holds need.
func soak(t *testing.T, url string, cycles int, ttl time.Duration, workers int, there func() bool) {
	t.Helper()
	c, err := pawl.New(t.Context(), connect(t, url), &pawl.Options{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	var troubles atomic.Int64
	round := func(n int) {
		var left atomic.Int64
		left.Store(int64(n))
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for left.Add(-1) >= 0 && !t.Failed() {
					m := c.Mutex(fmt.Sprintf("soak/%d", rand.N(cycles)))
					err := m.Do(t.Context(), func(context.Context) error { return nil })
					if errors.Is(err, pawl.ErrUnavailable) && troubles.Add(1) <= 10 {
						continue // a busy machine answers late, and a heartbeat repeats the release
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	}
	measure := func() (goroutines int, heap uint64) {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // the second run frees the memory that pools kept over the first
		runtime.ReadMemStats(&m)
		return runtime.NumGoroutine(), m.HeapAlloc
	}
	if err := c.Mutex("held").Do(t.Context(), func(context.Context) error {
		sessiontest.Until(t, "all is there", there)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	round(cycles / 20) // pools and connections exist then
	goroutines, heap := measure()
	round(cycles)
	after, grown := measure()
	if after > goroutines+4 { // a pool may make a connection late, with two goroutines for each
		t.Errorf("%d goroutines, %d before", after, goroutines)
	}
	if grown > heap+2<<20 {
		t.Errorf("heap of %d KiB, %d before", grown>>10, heap>>10)
	}
	t.Logf("%d cycles: %d goroutines (%d before), heap %d KiB (%d before)", cycles, after, goroutines, grown>>10, heap>>10)
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func nothing() bool { return true }

func TestNothingStaysInSQLite(t *testing.T) {
	dir := t.TempDir()
	url := "sqlite:" + filepath.Join(dir, "pawl.db")
	soak(t, url, sqliteCycles, 30*time.Second, 8, nothing)
	rows := sqliteRows(t, filepath.Join(dir, "pawl.db"))
	if len(rows) > 0 {
		t.Errorf("rows that stay: %v", rows)
	}
	if files, err := filepath.Glob(filepath.Join(dir, "*", "*")); err != nil || len(files) > 0 {
		t.Errorf("files that stay: %q, %v", files, err)
	}
}

func TestNothingStaysInRedis(t *testing.T) {
	addr := testservers.Redis(t).Addr
	raw := oneRedis(t, addr)
	soak(t, redisURL(addr), cycles, 5*time.Second, 64, func() bool { // the grace of a new server is that long
		clients, err := raw.Do(t.Context(), raw.B().Info().Section("clients").Build()).ToString()
		return err == nil && strings.Contains(clients, "tracking_clients:1\r")
	})
	keys, err := raw.Do(t.Context(), raw.B().Keys().Pattern("*").Build()).AsStrSlice()
	if slices.Sort(keys); err != nil || len(keys) != 3 || keys[0] != "pawl:beliefs" || keys[1] != "pawl:boot" || !strings.HasPrefix(keys[2], "pawl:boot:") {
		t.Errorf("keys that stay: %q, %v; only the boot mark and the beliefs are documented", keys, err)
	}
}

func TestNothingStaysInEtcd(t *testing.T) {
	addr := testservers.Etcd(t).Addr
	soak(t, etcdURL(addr), cycles, 30*time.Second, 64, nothing)
	raw, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	keys, err := raw.Get(t.Context(), "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil || len(keys.Kvs) != 1 || string(keys.Kvs[0].Key) != "pawl/format" {
		t.Errorf("keys that stay: %v, %v; only the mark of the format is documented", keys, err)
	}
	leases, err := raw.Leases(t.Context())
	if err != nil || len(leases.Leases) > 0 {
		t.Errorf("leases that stay: %v, %v", leases, err)
	}
}
