//go:build unix

package cli

import (
	"context"
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/pawl-go/pawl/internal/testservers"
)

// soonAfter is how late a run may end: the farewell takes a second at most. A run that waits for the
// time-out of the store ends five seconds late.
const soonAfter = 1500 * time.Millisecond

// busy runs pawl again and again beside a test, until the test calls the function that busy returns. That
// function returns the longest time of such a run, by which other runs may be late as well.
func busy(t *testing.T) (longest func() time.Duration) {
	t.Helper()
	var most time.Duration
	args := command(t, "", "version")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			cmd := exec.Command(args.Path, args.Args[1:]...)
			cmd.Env = args.Env
			began := time.Now()
			if err := cmd.Run(); err != nil {
				t.Error(err)
			}
			most = max(most, time.Since(began))
		}
	}()
	end := func() time.Duration {
		stop()
		<-done
		return most
	}
	t.Cleanup(func() { end() })
	return end
}

func TestRun_waits_no_longer_for_a_store_that_hangs(t *testing.T) {
	t.Parallel()
	t.Run("at once", func(t *testing.T) {
		t.Parallel()
		silent, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
		late := busy(t)
		began := time.Now()
		_, stderr := want(t, 69, "redis://"+silent.Addr().String(), "run", "--wait", "300ms", "x", "--", "true")
		complaint(t, stderr, "unavailable")
		if took, late := time.Since(began), late(); took > 300*time.Millisecond+soonAfter+3*late {
			t.Errorf("it took %v, and other runs at most %v", took, late)
		}
	})
	t.Run("later", func(t *testing.T) {
		t.Parallel()
		server := testservers.Redis(t)
		store := "redis://" + server.Addr
		want(t, 0, store, "run", "--ttl", "1s", "warm", "--", "true")
		held(t, store, "--ttl", "1m", "x")
		late := busy(t)
		began := time.Now()
		p := start(t, command(t, store, "run", "--ttl", "1m", "--wait", "3s", "x", "--", "true"))
		eventually(t, "it waits", func() bool { return states(t, store, "x") == "granted waiting" })
		server.Pause()
		defer server.Resume()
		if code := p.wait(); code != 69 {
			t.Errorf("exit code %d: %s", code, p.errors())
		}
		if took, late := time.Since(began), late(); took > 3*time.Second+soonAfter+3*late {
			t.Errorf("it took %v, and other runs at most %v", took, late)
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
