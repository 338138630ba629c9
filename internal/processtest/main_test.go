package processtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/internal/testservers"
)

// The test binary is also the other processes. A worker starts with the URL of its store in
// beWorker. The worker's arguments are its TTL and its task.
const beWorker = "PAWL_BE_WORKER"

func TestMain(m *testing.M) {
	if url := os.Getenv(beWorker); url != "" {
		if err := serve(url, os.Args[1:]); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(testservers.Main(m))
}

// stores are the stores that processes can share. Each function returns a URL.
var stores = map[string]func(*testing.T) string{
	"sqlite": func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "pawl.db") },
	"redis":  func(t *testing.T) string { return "redis://" + testservers.SharedRedis(t).Addr },
	"etcd":   func(t *testing.T) string { return "etcd://" + testservers.SharedEtcd(t).Addr },
}

// moreStores are for the full numbers.
var moreStores = map[string]func(*testing.T) string{
	"postgres": func(t *testing.T) string {
		return "postgres://postgres@" + testservers.SharedPostgres(t).Addr + "/postgres"
	},
	"mariadb":   func(t *testing.T) string { return "mysql://root@" + testservers.SharedMariaDB(t).Addr + "/pawl" },
	"nats":      func(t *testing.T) string { return "nats://" + testservers.SharedNATS(t).Addr },
	"zookeeper": func(t *testing.T) string { return "zk://" + testservers.SharedZooKeeper(t).Addr + "?tick=200ms" },
}

// soak asks for the full numbers. Without it the tests end in a minute or two, also under the race
// detector.
var soak = os.Getenv("PAWL_TEST_SOAK") != ""

func scaled(full, usual, race int) int {
	switch {
	case soak:
		return full
	case raceDetector:
		return race
	}
	return usual
}

// overStores runs a test over each store, one after the other, because processes need the machine.
func overStores(t *testing.T, ttl time.Duration, test func(f *fleet)) {
	t.Helper()
	all := maps.Clone(stores)
	if soak {
		maps.Copy(all, moreStores)
	}
	for kind, store := range all {
		t.Run(kind, func(t *testing.T) {
			url := store(t)
			eng, err := open.Open(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			defer eng.Close()
			c, err := connect(t.Context(), eng, ttl)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close(context.Background())
			began := time.Now()
			test(&fleet{T: t, client: c, engine: eng, url: url, ttl: ttl, lines: make(chan line, 10_000)})
			t.Logf("took %v", time.Since(began).Round(time.Millisecond))
		})
	}
}

// roles are the tasks of workers.
var roles = map[string]func(context.Context, *pawl.Client, ...string) error{
	"barrier": crossBarrier, "latch": countDown, "election": lead,
}

// serve is a worker process. The process ends with its input, so with its parent at the latest.
func serve(url string, args []string) (err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer func() {
		if ctx.Err() != nil { // wherever the worker was
			err = nil
		}
	}()
	go func() {
		io.Copy(io.Discard, os.Stdin) //nolint:errcheck // an error ends the input, too
		cancel()
	}()
	eng, err := open.Open(ctx, url)
	if err != nil {
		return err
	}
	defer eng.Close()
	ttl, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	c, err := connect(ctx, eng, ttl)
	if err != nil {
		return err
	}
	defer c.Close(context.Background())
	return roles[args[1]](ctx, c, args[2:]...)
}

// connect tolerates that a busy machine answers late when all workers start at once.
func connect(ctx context.Context, eng engine.Engine, ttl time.Duration) (c *pawl.Client, err error) {
	for range 10 {
		if c, err = pawl.New(ctx, eng, &pawl.Options{TTL: ttl}); !errors.Is(err, pawl.ErrUnavailable) {
			break
		}
	}
	return c, err
}

// say prints an event with its time. All processes of a machine have one clock.
func say(what string, more ...any) {
	fmt.Println(what, time.Now().UnixNano(), fmt.Sprint(more...))
}

// fleet is the workers of a test.
type fleet struct {
	*testing.T
	client *pawl.Client // of the test itself
	engine engine.Engine
	url    string
	ttl    time.Duration // of all clients
	lines  chan line     // of all
}

// line is a line of a worker's output.
type line struct {
	from *worker
	what string
	at   time.Time
	more string
}

type worker struct {
	name  string
	cmd   *exec.Cmd
	input io.Closer
	done  chan struct{}
}

// start starts a worker.
func (f *fleet) start(args ...string) *worker {
	f.Helper()
	w := &worker{name: strings.Join(args, " "), cmd: exec.Command(os.Args[0], append([]string{f.ttl.String()}, args...)...), done: make(chan struct{})}
	w.cmd.Env = append(os.Environ(), beWorker+"="+f.url, "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	w.cmd.Stderr = os.Stderr
	input, err := w.cmd.StdinPipe()
	if err != nil {
		f.Fatal(err)
	}
	w.input = input
	output, err := w.cmd.StdoutPipe()
	if err != nil {
		f.Fatal(err)
	}
	if err := w.cmd.Start(); err != nil {
		f.Fatal(err)
	}
	go func() {
		defer close(w.done)
		for scan := bufio.NewScanner(output); scan.Scan(); {
			f.lines <- parse(w, scan.Text())
		}
		w.cmd.Wait() //nolint:errcheck // its output tells how it ended
	}()
	f.Cleanup(func() { f.kill(w) })
	return w
}

func parse(w *worker, text string) line {
	words := strings.SplitN(text, " ", 3)
	if len(words) == 3 {
		if nanos, err := strconv.ParseInt(words[1], 10, 64); err == nil {
			return line{w, words[0], time.Unix(0, nanos), words[2]}
		}
	}
	return line{w, "said", time.Now(), text}
}

// kill kills a worker and returns when it is dead.
func (f *fleet) kill(w *worker) time.Time {
	at := time.Now()
	w.cmd.Process.Kill() //nolint:errcheck // it may have ended
	f.gone(w)
	return at
}

// end lets a worker say goodbye.
func (f *fleet) end(w *worker) {
	f.Helper()
	w.input.Close()
	f.gone(w)
	if code := w.cmd.ProcessState.ExitCode(); code != 0 {
		f.Errorf("%s ended with %d", w.name, code)
	}
}

func (f *fleet) gone(w *worker) {
	f.Helper()
	select {
	case <-w.done:
		w.input.Close()
	case <-time.After(time.Minute):
		f.Fatalf("%s does not end", w.name)
	}
}

// next waits for the next line of any worker.
func (f *fleet) next() line {
	f.Helper()
	select {
	case l := <-f.lines:
		if l.what == "said" {
			f.Fatalf("%s: %s", l.from.name, l.more)
		}
		return l
	case <-time.After(time.Minute):
		f.Fatal("nobody says anything")
	}
	return line{}
}

// number is the number in a line.
func (f *fleet) number(l line) int {
	f.Helper()
	n, err := strconv.Atoi(l.more)
	if err != nil {
		f.Fatal(err)
	}
	return n
}
