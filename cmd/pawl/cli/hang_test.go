//go:build unix

package cli

import (
	"net"
	"testing"
	"time"

	"github.com/pawl-go/pawl/internal/testservers"
)

// soonAfter is how late a run may end on a busy machine. soonAfter is far less than the time-outs that a
// run without --wait has.
const soonAfter = 4 * time.Second

func TestRun_waits_no_longer_for_a_store_that_hangs(t *testing.T) {
	t.Parallel()
	t.Run("at once", func(t *testing.T) {
		t.Parallel()
		silent, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
		began := time.Now()
		_, stderr := want(t, 69, "redis://"+silent.Addr().String(), "run", "--wait", "300ms", "x", "--", "true")
		complaint(t, stderr, "unavailable")
		if took := time.Since(began); took > 300*time.Millisecond+soonAfter {
			t.Errorf("it took %v", took)
		}
	})
	t.Run("later", func(t *testing.T) {
		t.Parallel()
		server := testservers.Redis(t)
		store := "redis://" + server.Addr
		want(t, 0, store, "run", "--ttl", "1s", "warm", "--", "true")
		held(t, store, "--ttl", "1m", "x")
		began := time.Now()
		p := start(t, command(t, store, "run", "--ttl", "1m", "--wait", "3s", "x", "--", "true"))
		eventually(t, "it waits", func() bool { return states(t, store, "x") == "granted waiting" })
		server.Pause()
		defer server.Resume()
		if code := p.wait(); code != 69 {
			t.Errorf("exit code %d: %s", code, p.errors())
		}
		if took := time.Since(began); took > 3*time.Second+soonAfter {
			t.Errorf("it took %v", took)
		}
		complaint(t, p.errors(), "unavailable")
	})
	t.Run("gone", func(t *testing.T) {
		t.Parallel()
		server := testservers.Redis(t)
		store := "redis://" + server.Addr
		want(t, 0, store, "run", "--ttl", "1s", "warm", "--", "true")
		held(t, store, "--ttl", "1m", "x")
		p := start(t, command(t, store, "run", "--ttl", "20s", "--wait", "15s", "x", "--", "true"))
		eventually(t, "it waits", func() bool { return states(t, store, "x") == "granted waiting" })
		server.Kill()
		if code := p.wait(); code != 69 {
			t.Errorf("exit code %d: %s", code, p.errors())
		}
		complaint(t, p.errors(), "connection refused")
	})
}
