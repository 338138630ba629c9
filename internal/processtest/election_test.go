package processtest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
)

// lead campaigns again and again. A leader has a lock on a file, and writes there until when it
// trusts its lead. So the next leader must find neither that lock nor that trust.
func lead(ctx context.Context, c *pawl.Client, args ...string) error {
	e := c.Election(args[0])
	for {
		term, err := e.Campaign(ctx, []byte(strconv.Itoa(os.Getpid())))
		if errors.Is(err, pawl.ErrUnavailable) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return err
		}
		if err := believe(ctx, term, args[1]); err != nil {
			return err
		}
	}
}

func believe(ctx context.Context, term *pawl.Lease, path string) error {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	belief := make([]byte, 8)
	if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		// Another leader lives. That leader may not have noticed its loss yet, but that does not make this
		// candidate a leader.
		if _, err := file.ReadAt(belief, 0); err == nil {
			if left := time.Until(time.Unix(0, int64(binary.BigEndian.Uint64(belief)))); left > 0 {
				return fmt.Errorf("another one believes for %v", left)
			}
		}
		term.Unlock(ctx) //nolint:errcheck // heartbeats repeat it; without it the next campaign waits behind this term
		return nil
	}
	say("leads", term.Token())
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for term.Err() == nil {
		binary.BigEndian.PutUint64(belief, uint64(term.ValidUntil().UnixNano()))
		if _, err := file.WriteAt(belief, 0); err != nil {
			return err
		}
		<-tick.C
	}
	return nil
}

// TestElection: among eight processes the leader is killed again and again. Never do two processes
// trust that they lead, and there is a new leader within a TTL and a second.
func TestElection(t *testing.T) {
	kills := scaled(20, 5, 3)
	overStores(t, 2*time.Second, func(f *fleet) {
		path := filepath.Join(f.TempDir(), "belief")
		begin := func() { f.start("election", "election", path) }
		for range 8 {
			begin()
		}
		leader := f.next()
		var longest time.Duration
		follows := func(next line) {
			if next.what != "leads" || f.number(next) <= f.number(leader) {
				f.Errorf("%s: %s %s after token %s", next.from.name, next.what, next.more, leader.more)
			}
			leader = next
		}
		for range kills {
			select {
			case l := <-f.lines: // a busy machine kept the leader from renewing
				follows(l)
			case <-time.After(rand.N(time.Second)):
			}
			killed := f.kill(leader.from)
			begin()
			next := f.next()
			follows(next)
			took := next.at.Sub(killed)
			if took > f.ttl+time.Second {
				f.Errorf("nobody led for %v", took)
			}
			longest = max(longest, took)
			is, err := f.client.Election("election").Leader(f.Context())
			if err != nil || string(is.Value) != strconv.Itoa(next.from.cmd.Process.Pid) || is.Token.String() != next.more {
				f.Errorf("leader %q with token %v, %v; want %d with %s", is.Value, is.Token, err, next.from.cmd.Process.Pid, next.more)
			}
		}
		f.Logf("the leader was killed %d times; nobody led for at most %v", kills, longest)
	})
}
