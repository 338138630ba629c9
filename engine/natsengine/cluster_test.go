package natsengine

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/testservers"
)

func urlsOf(cluster []*testservers.Server) string {
	var urls []string
	for _, s := range cluster {
		urls = append(urls, "nats://"+s.Addr)
	}
	return strings.Join(urls, ",")
}

// Of several clients that write at one version at the same time, one succeeds. On a cluster of nats-server 2.9.10 this
// test found several winners in 469 of 500 rounds.
func TestOneWinsInACluster(t *testing.T) {
	urls := urlsOf(testservers.NATSCluster(t))
	var clients []*store
	for range 8 {
		clients = append(clients, newEngine(t, dial(t, urls), "").store)
	}
	version, err := clients[0].Swap(t.Context(), "c/x", []byte("first"), 0)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 300 {
		won := make(chan uint64, len(clients))
		var writing sync.WaitGroup
		for i, s := range clients {
			writing.Go(func() {
				written, err := s.Swap(t.Context(), "c/x", fmt.Appendf(nil, "%d by %d", round, i), version)
				switch {
				case err == nil:
					won <- written
				case !errors.Is(err, engine.ErrConflict):
					t.Error(err)
				}
			})
		}
		writing.Wait()
		if len(won) != 1 {
			t.Fatalf("round %d has %d winners", round, len(won))
		}
		item, err := clients[0].Load(t.Context(), "c/x")
		if version = <-won; err != nil || item.Version != version {
			t.Fatalf("round %d: version %d is read, %v; %d was written", round, item.Version, err, version)
		}
	}
}

// A cluster whose servers would let two clients write at one version is refused, and nothing is made there.
func TestOldClusterIsRefused(t *testing.T) {
	nc := dial(t, urlsOf(testservers.NATSOldCluster(t)))
	if !olderThan(nc.ConnectedServerVersion(), oldest) {
		t.Logf("nats-server %s is not old", nc.ConnectedServerVersion())
		return
	}
	_, err := New(t.Context(), nc, nil)
	if !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), nc.ConnectedServerVersion()) || !strings.Contains(err.Error(), "2.11") {
		t.Error(err)
	}
}

func TestVersions(t *testing.T) {
	for version, old := range map[string]bool{
		"2.9.10": true, "2.10.29": true, "1.4.1": true, "": true, "beta": true,
		"2.11.0": false, "2.12.1-RC.2": false, "3.0.0": false, "v2.11.10": false,
	} {
		if olderThan(version, oldest) != old {
			t.Errorf("%q: want older %v", version, old)
		}
	}
}
