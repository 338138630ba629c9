package open

import (
	"syscall"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/testservers"
)

func cpu(t *testing.T) time.Duration {
	t.Helper()
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		t.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// TestSentinelsAway: the client retries them without a pause of its own.
func TestSentinelsAway(t *testing.T) {
	sentinel := testservers.RedisObserver(t, testservers.SharedRedis(t).Addr)
	eng, err := Open(t.Context(), "redis+sentinel://"+sentinel.Addr+"/"+testservers.ObservedMaster)
	if err != nil {
		t.Fatal(err)
	}
	defer eng.Close()
	sentinel.Kill()
	const watched = time.Second
	before, timer := cpu(t), time.NewTimer(watched)
	<-timer.C
	if used := cpu(t) - before; used > watched/10 {
		t.Errorf("%v of CPU in %v", used, watched)
	}
	if _, err := eng.(engine.Values).Get(t.Context(), "nothing"); err != nil {
		t.Errorf("the master is there: %v", err)
	}
}
