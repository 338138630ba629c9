//go:build unix

package outbox_test

import (
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestFrozen: relays are frozen one after another in the midst of their work, until the others have taken all that the frozen relay
// had. Then the relay wakes. Nothing is lost, and the first of each message is in the order of its key. A relay that is frozen
// between two statements must keep no lock in the database, or its successor would wait for as long.
func TestFrozen(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		if d.dialect == dialect.SQLite {
			return // a frozen writer keeps the lock of the file, whatever the program does
		}
		if err := d.exec(t.Context(), d.db, "CREATE TABLE counts_"+d.name+" (k bigint PRIMARY KEY, n bigint NOT NULL)"); err != nil {
			t.Fatal(err)
		}
		file, env := d.prepare(t)
		var relays []*exec.Cmd
		for range 3 {
			relay := exec.Command(os.Args[0])
			relay.Env = append(append(os.Environ(), env...), "PAWL_OUTBOX_WORKER=relay")
			relay.Stderr = os.Stderr
			if err := relay.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { relay.Process.Kill() }) //nolint:errcheck // it may have ended
			relays = append(relays, relay)
		}
		until(t, "all partitions have a relay", func() bool { return !d.anyOf(t, map[int64]bool{0: true}) })
		store := lockStore(t)
		var rounds atomic.Int64
		produced := make(chan error, 1)
		go func() { produced <- d.produceIn(t.Context(), &rounds) }()
		for i := range frozenRounds {
			rounds.Add(1)
			var has map[int64]bool
			until(t, "the relay has partitions", func() bool { has = d.held(t, store, relays[i%3]); return len(has) >= 4 })
			if err := relays[i%3].Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			until(t, "the others have the partitions", func() bool { return !d.anyOf(t, has) })
			if err := relays[i%3].Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
		}
		rounds.Add(1)
		if err := <-produced; err != nil {
			t.Fatal(err)
		}
		for _, relay := range relays {
			if err := relay.Wait(); err != nil {
				t.Error(err)
			}
		}
		lost, disordered, repeats := d.check(t, file)
		t.Logf("%d lost, %d out of order, %d repeats", lost, disordered, repeats)
		if lost+disordered > 0 {
			t.Errorf("%d messages are lost, %d are out of order", lost, disordered)
		}
	})
}

const frozenRounds = 6

// lockStore returns a client of the store where the relays have their locks.
func lockStore(t *testing.T) *pawl.Client {
	t.Helper()
	store, end, err := connect(t.Context(), "redis://"+testservers.SharedRedis(t).Addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	return store
}

// produceIn commits messages, an equal part of all in each round.
func (d *database) produceIn(ctx context.Context, rounds *atomic.Int64) error {
	for {
		n, err := d.produced(ctx)
		if err == nil && n >= killedMessages {
			return nil
		}
		if err == nil && int64(n) >= rounds.Load()*int64(killedMessages/(frozenRounds+1)+1) {
			time.Sleep(3 * time.Millisecond)
			continue
		}
		if err == nil {
			err = d.produceOne(ctx, rand.IntN(killedKeys))
		}
		if err != nil && !dialect.Again(err) {
			return err
		}
	}
}

// held returns the tokens of the partitions of a relay.
func (d *database) held(t *testing.T, store *pawl.Client, relay *exec.Cmd) map[int64]bool {
	t.Helper()
	is, err := store.Show(t.Context(), d.slots(t))
	if err != nil {
		t.Fatal(err)
	}
	has := make(map[int64]bool)
	for _, holder := range is.Holders {
		if holder.Label == strconv.Itoa(relay.Process.Pid) {
			has[int64(holder.Token)] = true
		}
	}
	return has
}

// anyOf reports whether the table knows one of these tokens as that of a partition.
func (d *database) anyOf(t *testing.T, tokens map[int64]bool) bool {
	t.Helper()
	rows, err := d.db.QueryContext(t.Context(), "SELECT token FROM "+d.name+"_parts WHERE part >= 0")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var token int64
		if err := rows.Scan(&token); err != nil {
			t.Fatal(err)
		}
		if tokens[token] {
			return true
		}
	}
	return false
}
