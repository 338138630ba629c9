package enginetest

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
)

// boasting is a store that claims more than its harness can show.
type boasting struct{ engine.Engine }

func (b boasting) Caps() engine.Caps {
	caps := b.Engine.Caps()
	caps.Forgets, caps.Processes = true, engine.ReachNetwork
	return caps
}

const harnessChild = "PAWL_TEST_HARNESS"

// TestLackingHarness runs failing rows in a process of its own. A row whose hook is missing fails
// and names the hook, and the other rows go on.
func TestLackingHarness(t *testing.T) {
	store := boasting{memengine.New()}
	whole := Harness{Open: func(*testing.T) engine.Engine { return store }, TTL: 500 * time.Millisecond}
	if os.Getenv(harnessChild) != "" {
		t.Run("hooks", func(t *testing.T) { Run(t, &whole) })
		t.Run("function", func(t *testing.T) {
			h := whole
			h.Network = func(*testing.T) (engine.Engine, Network) { return store, Network{} }
			Run(t, &h)
		})
		t.Run("cannot", func(t *testing.T) {
			h := whole
			h.Cannot = map[string]string{"Snapshot": "nothing is kept", "Full": "nothing is full", "Hang": "nothing hangs", "Fulll": "a typing error"}
			Run(t, &h)
		})
		t.Run("open", func(t *testing.T) { Run(t, &Harness{TTL: time.Second}) })
		t.Run("ttl", func(t *testing.T) { Run(t, &Harness{Open: whole.Open}) })
		return
	}
	rows := "(a_store_that_forgot|a_lock_lost_is_taken_again|a_store_that_is_away|first_come|a_full_store|a_restored_store|a_name_that_hangs|a_value_may_be_the_first)"
	cmd := exec.Command(os.Args[0], "-test.v", "-test.run=^TestLackingHarness$/^(hooks|function|cannot|open|ttl)$/"+rows)
	cmd.Env = append(os.Environ(), harnessChild+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatal("nothing failed")
	}
	for _, want := range []string{
		"Harness.Forgetful is not set", "Harness.KillSession is not set", "Harness.Network is not set",
		"a Network that lacks a function", "Harness.Open is not set", "Harness.TTL is not set",
		"--- PASS: TestLackingHarness/hooks/first_come",
		"Harness.Fresh is not set", "Harness.Snapshot is not set", "Harness.Full is not set", "Harness.Hang is not set",
		"--- FAIL: TestLackingHarness/hooks/a_full_store_takes_releases",
		`no row "a full store takes releases": nothing is full`, `Harness.Cannot has a reason for "Fulll"`,
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	if strings.Contains(string(out), "panic:") {
		t.Errorf("it panicked:\n%s", out)
	}
}

// lagging is a store with replicas: to a client that knows any version, a watch may show first that there is nothing yet.
type lagging struct{ *memengine.Engine }

func (l lagging) Watch(ctx context.Context, key string, version uint64) (engine.Value, error) {
	if version > 0 {
		return engine.Value{}, nil
	}
	return l.Engine.Watch(ctx, key, version)
}

// TestReplicaMayLag: the row about the bytes of values asks no engine for more than the contract of Watch.
func TestReplicaMayLag(t *testing.T) {
	anyBytes(t, &Harness{Open: func(*testing.T) engine.Engine { return lagging{memengine.New()} }, TTL: time.Second})
}

// TestFullCrowd: the waiters of a soak are no more than the claims of a name. The store has connections for all their clients.
func TestFullCrowd(t *testing.T) {
	for _, c := range []struct{ most, clients, all int }{{0, 0, 5000}, {2000, 0, 1999}, {0, 60, 5000}, {2000, 60, 1999}, {30, 0, 29}} {
		h := Harness{Clients: c.clients}
		own, clients, each := h.fullCrowd(c.most)
		if own+clients*each != c.all || own < 10 || each < 10 || clients > 499 || c.clients > 0 && clients > c.clients {
			t.Errorf("%+v: %d waiters of one client, and %d each of %d", c, own, each, clients)
		}
	}
}
