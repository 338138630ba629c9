package snowflake_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/sqliteengine"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/snowflake"
	"github.com/pawl-go/pawl/internal/idtest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// The variables of a process that makes IDs until it is killed.
const (
	makerFolder = "PAWL_TEST_SNOWFLAKE_FOLDER" // of the store and the IDs
	makerName   = "PAWL_TEST_SNOWFLAKE_NAME"   // of the process; the files with its IDs begin so
	makerSkew   = "PAWL_TEST_SNOWFLAKE_SKEW"   // of its clock
	makerNaive  = "PAWL_TEST_SNOWFLAKE_NAIVE"  // the worker number of a naive generator; "": a real one
)

func TestMain(m *testing.M) {
	if os.Getenv(makerFolder) != "" {
		fmt.Fprintln(os.Stderr, makeIDs(context.Background()))
		os.Exit(1)
	}
	os.Exit(testservers.Main(m))
}

// makeIDs makes IDs by four goroutines, each of which writes them to a file of its own.
func makeIDs(ctx context.Context) error {
	folder := os.Getenv(makerFolder)
	skew, err := time.ParseDuration(os.Getenv(makerSkew))
	if err != nil {
		return err
	}
	clock := func() time.Time { return time.Now().Add(skew) }
	next, err := maker(ctx, folder, clock)
	if err != nil {
		return err
	}
	ended, parent := make(chan error), os.Getppid()
	for i := range 4 {
		file, err := os.Create(filepath.Join(folder, fmt.Sprintf("%s-%d.ids", os.Getenv(makerName), i)))
		if err != nil {
			return err
		}
		go func() {
			ids := make([]int64, 64)
			for tick := time.NewTicker(2 * time.Millisecond); ; <-tick.C {
				if err := next(ids); err != nil {
					ended <- err
				}
				if os.Getppid() != parent {
					ended <- errors.New("the test has ended")
				}
				if err := binary.Write(file, binary.BigEndian, ids); err != nil {
					ended <- err
				}
			}
		}()
	}
	return <-ended
}

func maker(ctx context.Context, folder string, clock func() time.Time) (func([]int64) error, error) {
	if naive := os.Getenv(makerNaive); naive != "" {
		return naiveMaker(int64(naive[0]-'0'), clock), nil
	}
	eng, err := sqliteengine.New(ctx, filepath.Join(folder, "pawl.db"), nil)
	if err != nil {
		return nil, err
	}
	client, err := pawl.New(ctx, eng, &pawl.Options{TTL: time.Second})
	if err != nil {
		return nil, err
	}
	marks, err := id.Values(client, nil)
	if err != nil {
		return nil, err
	}
	g, err := snowflake.New(ctx, client, marks, "killed", &snowflake.Options{Clock: clock})
	if err != nil {
		return nil, err
	}
	return func(ids []int64) error { _, err := g.NextN(ctx, ids); return err }, nil
}

// naiveMaker knows its clock and a configured worker number.
func naiveMaker(worker int64, clock func() time.Time) func([]int64) error {
	var mu sync.Mutex
	var tick, sequence int64
	return func(ids []int64) error {
		mu.Lock()
		defer mu.Unlock()
		for i := range ids {
			if now := clock().UnixMilli(); now > tick {
				tick, sequence = now, 0
			}
			ids[i] = tick<<22 | worker<<12 | sequence
			sequence++
		}
		return nil
	}
}

const makers, kills = 4, 28

// killed runs processes, of which each is killed after some time and started anew with
// another clock, and returns the IDs that they made.
func killed(t *testing.T, naive bool) *idtest.Checker[int64] {
	t.Helper()
	folder := t.TempDir()
	skews := []time.Duration{0, -time.Second, time.Hour, -time.Hour, 30 * time.Minute, -500 * time.Millisecond, -time.Second, 0}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var running [makers]*exec.Cmd
	kill := func(i int) {
		if cmd := running[i]; cmd != nil {
			running[i] = nil
			cmd.Process.Kill() //nolint:errcheck // it may have failed, which Wait tells
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) || exit.Exited() {
				t.Errorf("a maker ended by itself: %v", err)
			}
		}
	}
	t.Cleanup(func() {
		for i := range running { // when the test failed
			kill(i)
		}
	})
	for n := range makers + kills {
		i := n % makers
		kill(i)
		cmd := exec.Command(self)
		cmd.Stderr = os.Stderr
		cmd.Env = append(os.Environ(), makerFolder+"="+folder, makerName+"="+fmt.Sprint(n), makerSkew+"="+skews[n/makers%len(skews)].String())
		if naive {
			cmd.Env = append(cmd.Env, makerNaive+"="+fmt.Sprint(i))
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		running[i] = cmd
		filled(t, folder, n)
	}
	for i := range running {
		kill(i)
	}
	return madeIn(t, folder)
}

// filled waits until a process has made so many IDs that a mistake would show.
func filled(t *testing.T, folder string, n int) {
	t.Helper()
	const least = 5_000 * 8
	deadline := time.Now().Add(30 * time.Second)
	for {
		info, err := os.Stat(filepath.Join(folder, fmt.Sprintf("%d-0.ids", n)))
		if err == nil && info.Size() >= least {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d has made no IDs: %v", n, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func madeIn(t *testing.T, folder string) *idtest.Checker[int64] {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.ids"))
	if err != nil {
		t.Fatal(err)
	}
	made := &idtest.Checker[int64]{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		log := made.Log()
		for ; len(text) >= 8; text = text[8:] {
			log.Add(int64(binary.BigEndian.Uint64(text)))
		}
	}
	return made
}

// TestKilled: processes that are killed again and again, whose clocks go back and forth. The same
// check finds the naive way wrong.
func TestKilled(t *testing.T) {
	made := killed(t, false)
	wantUnique(t, made, 1_000_000)
	n, err := made.Check()
	t.Logf("%d IDs over %d kills: %v", n, kills, err)
	n, err = killed(t, true).Check()
	if err == nil {
		t.Error("the check finds nothing wrong with a naive snowflake")
	}
	t.Logf("the naive way, in %d IDs: %v", n, err)
}
