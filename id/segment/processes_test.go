package segment_test

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/segment"
	"github.com/pawl-go/pawl/id/sqlmark"
	"github.com/pawl-go/pawl/internal/idtest"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) {
	if source := os.Getenv("PAWL_SEGMENT_PROCESS"); source != "" {
		fmt.Fprintln(os.Stderr, makeNumbers(source, os.Getenv("PAWL_SEGMENT_NAIVE") != "", os.Stdout))
		os.Exit(1)
	}
	os.Exit(testservers.Main(m))
}

const (
	goroutines = 4  // of a process
	frame      = 64 // the number of the goroutine, then its next numbers
)

// makeNumbers is a process of the test: it writes frames until its reader is gone.
func makeNumbers(source string, naive bool, to io.Writer) error {
	db, err := sql.Open("pgx", source)
	if err != nil {
		return err
	}
	r, err := sqlmark.New(db, dialect.PostgreSQL, nil)
	if err != nil {
		return err
	}
	counter := r.Counter("it")
	if naive {
		counter = idtest.NaiveCounter(r.Mark("naive"))
	}
	g, err := segment.New(counter, &segment.Options{MinStep: 100, MaxStep: 20000, Cover: 50 * time.Millisecond, RequestTimeout: time.Second})
	if err != nil {
		return err
	}
	broken := make(chan error)
	for i := range goroutines {
		go func() {
			for numbers := make([]int64, frame); ; time.Sleep(time.Millisecond) {
				numbers[0] = int64(i)
				_, err := g.NextN(context.Background(), numbers[1:])
				if err == nil { // a pipe takes a frame whole
					err = binary.Write(to, binary.LittleEndian, numbers)
				}
				if err != nil {
					broken <- err
				}
			}
		}()
	}
	return <-broken
}

// processes keeps 4 of them at work, each started again when it is killed, until stop is called.
func processes(t *testing.T, check *idtest.Dense, env ...string) (kill, stop func()) {
	t.Helper()
	var mu sync.Mutex
	running := make([]*exec.Cmd, 4)
	ended := false
	var group sync.WaitGroup
	for i := range running {
		group.Go(func() {
			for {
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), env...)
				var said strings.Builder
				cmd.Stderr = &said
				out, err := cmd.StdoutPipe()
				mu.Lock()
				if ended {
					mu.Unlock()
					return
				}
				if err = errors.Join(err, cmd.Start()); err != nil {
					mu.Unlock()
					t.Error(err)
					return
				}
				running[i] = cmd
				mu.Unlock()
				readNumbers(out, check)
				cmd.Wait() //nolint:errcheck // it was killed
				if said.Len() > 0 {
					t.Errorf("a process ended by itself: %s", said.String())
				}
			}
		})
	}
	kill = func() {
		mu.Lock()
		defer mu.Unlock()
		if cmd := running[rand.IntN(len(running))]; cmd != nil {
			cmd.Process.Kill() //nolint:errcheck // it may be dead
		}
	}
	return kill, func() {
		mu.Lock()
		ended = true
		for _, cmd := range running {
			if cmd != nil {
				cmd.Process.Kill() //nolint:errcheck // it may be dead
			}
		}
		mu.Unlock()
		group.Wait()
	}
}

// readNumbers notes what a process wrote before it was killed.
func readNumbers(from io.Reader, check *idtest.Dense) {
	logs := make([]*idtest.DenseLog, goroutines)
	for i := range logs {
		logs[i] = check.Log()
	}
	for numbers := make([]int64, frame); binary.Read(from, binary.LittleEndian, numbers) == nil; {
		logs[numbers[0]].Add(numbers[1:]...)
	}
}

// Of 4 processes with 4 goroutines each one is killed again and again, and the server 3 times. No
// number is there twice, and numbers rise for each goroutine. The same faults show the
// duplicates of a counter that writes without a version.
func TestKilledProcesses(t *testing.T) {
	kills, faults := 24, 3
	if os.Getenv("PAWL_TEST_SOAK") != "" {
		kills, faults = 1200, 60 // 5 minutes
	}
	server := testservers.Postgres(t)
	source := testservers.PostgresURL(server.Addr)
	r, err := sqlmark.New(open(t, source), dialect.PostgreSQL, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	var ours, naive idtest.Dense
	kill, stop := processes(t, &ours, "PAWL_SEGMENT_PROCESS="+source)
	killNaive, stopNaive := processes(t, &naive, "PAWL_SEGMENT_PROCESS="+source, "PAWL_SEGMENT_NAIVE=1")
	for i := range kills {
		<-time.After(250 * time.Millisecond) // in which they work
		kill()
		killNaive()
		if i%(kills/faults) == kills/faults-1 {
			server.Kill()
			server.Restart()
		}
	}
	<-time.After(time.Second) // as above
	stop()
	stopNaive()
	n, err := ours.Check()
	if t.Logf("%d numbers, %d kills of processes, %d of the server", n, kills, faults); err != nil || n < 1_000_000 {
		t.Errorf("%d numbers: %v", n, err)
	}
	if n, err := naive.Check(); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("the naive counter is not found wrong after %d numbers: %v", n, err)
	}
	if last, err := id.NewStrict(r.Counter("it")).Next(t.Context()); err != nil || last < int64(n) {
		t.Errorf("the next number is %d after %d: %v", last, n, err)
	}
}

func open(t *testing.T, source string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", source)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() }) //nolint:errcheck // nothing is lost
	return db
}
