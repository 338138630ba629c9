package testservers

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var (
	mu      sync.Mutex
	running = make(map[string]*process) // shared servers by kind
	missing error                       // why a server that a test needs could not run
	// folders of data as a new server has them, by kind
	templates = make(map[string]string)
)

// missed remembers that a server could not run, so that [Main] fails the run even if the test goes
// on.
func missed(err error) error {
	mu.Lock()
	defer mu.Unlock()
	missing = err
	return err
}

// shared returns the server of its kind for all tests of this process.
func shared(t testing.TB, k kind) *Server {
	t.Helper()
	if addr := os.Getenv(k.given); addr != "" {
		return &Server{Addr: addr, t: t}
	}
	mu.Lock()
	p := running[k.name]
	mu.Unlock()
	if p == nil {
		p = launchShared(t, k)
	}
	return &Server{Addr: p.addr, Dir: p.dir, t: t, proc: p}
}

var launching sync.Mutex // held by the test that starts a shared server

func launchShared(t testing.TB, k kind) *process {
	t.Helper()
	launching.Lock()
	defer launching.Unlock()
	mu.Lock()
	p := running[k.name]
	mu.Unlock()
	if p != nil {
		return p
	}
	p, err := launch(k, nil)
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	running[k.name] = p
	mu.Unlock()
	return p
}

// ours is the goroutine that stays: it starts servers.
var ours = goleak.IgnoreTopFunction("github.com/pawl-go/pawl/internal/testservers.spawnAll")

// Main runs the tests of a package. Call Main from TestMain and exit with its result. Main stops
// the shared servers. Main fails a run that left a goroutine behind or whose servers could not run.
func Main(m *testing.M) int {
	code := m.Run()
	mu.Lock()
	defer mu.Unlock()
	for _, p := range running {
		p.remove()
	}
	for _, dir := range templates {
		os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	}
	if code != 0 {
		return code
	}
	if missing != nil {
		fmt.Fprintln(os.Stderr, "a server that a test needs did not run:", missing)
		return 1
	}
	// The client of a Redis Cluster keeps connections to nodes that left for 5 s.
	err := goleak.Find(ours)
	for giveUp := time.Now().Add(6 * time.Second); err != nil && time.Now().Before(giveUp); {
		err = goleak.Find(ours)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "goroutines were left behind:", err)
		return 1
	}
	return 0
}
