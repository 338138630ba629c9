//go:build unix

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/internal/testservers"
)

// matches fails the test unless the lines of text match the expressions. A space in an expression
// stands for any number of spaces.
func matches(t *testing.T, text string, lines ...string) {
	t.Helper()
	expression := "^" + strings.ReplaceAll(strings.Join(lines, "\n"), " ", " +") + "\n$"
	if !regexp.MustCompile(expression).MatchString(text) {
		t.Errorf("output is\n%swant\n%s", text, expression)
	}
}

func TestLs(t *testing.T) {
	t.Parallel()
	overStores(t, func(t *testing.T, store, name string) {
		held(t, store, name+"/lock")
		held(t, store, "--shared", name+"/many")
		held(t, store, "--shared", name+"/many")
		held(t, store, "-n", "3", name+"/pool")
		held(t, store, name+"-other")
		start(t, command(t, store, "run", name+"/lock", "--", "true"))
		eventually(t, "one waits", func() bool { return states(t, store, name+"/lock") == "granted waiting" })

		stdout, _ := want(t, 0, store, "ls", name+"/")
		const tail = ` \d+ (unknown|[\d.]+m?s) (unknown|[\d.]+m?s)`
		matches(t, stdout,
			`NAME KIND HELD WAITING HOLDER TOKEN FOR LEFT`,
			name+`/lock lock 1 1 \S+ pid \d+: sh`+tail,
			name+`/many lock 2 0 \S+ pid \d+: sh \(\+1\)`+tail,
			name+`/pool semaphore of 3 1/3 0 \S+ pid \d+: sh`+tail)

		stdout, _ = want(t, 0, store, "ls", "--json", name+"/")
		var views []resourceView
		for decoder := json.NewDecoder(strings.NewReader(stdout)); decoder.More(); {
			var view resourceView
			if err := decoder.Decode(&view); err != nil {
				t.Fatalf("%v in %s", err, stdout)
			}
			views = append(views, view)
		}
		slices.SortFunc(views, func(a, b resourceView) int { return strings.Compare(a.Name, b.Name) })
		if len(views) != 3 || strings.Count(stdout, "\n") != 3 {
			t.Fatalf("not one object a line: %s", stdout)
		}
		if v := views[0]; v.Name != name+"/lock" || len(v.Claims) != 2 || v.Claims[1].Place != 1 || v.Claims[1].Token != 0 {
			t.Errorf("the first is %+v", v)
		}
		if v := views[2]; v.Kind != "semaphore" || v.Permits != 3 || v.Claims[0].Permits != 1 || v.Claims[0].Mode != "" {
			t.Errorf("the third is %+v", v)
		}
	})
}

func TestLs_empty(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	stdout, _ := want(t, 0, store, "ls")
	matches(t, stdout, `NAME KIND HELD WAITING HOLDER TOKEN FOR LEFT`)
	if stdout, _ = want(t, 0, store, "ls", "--json"); stdout != "" {
		t.Errorf("output %q", stdout)
	}
}

func TestLs_watches_until_interrupted(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	held(t, store, "early")
	p := start(t, command(t, store, "ls", "--watch"))
	for _, begins := range []string{"NAME ", "early ", "NAME "} {
		if line := p.line(); !strings.HasPrefix(line, begins) {
			t.Errorf("line %q, want %q", line, begins)
		}
	}
	held(t, store, "late")
	for !strings.HasPrefix(p.line(), "late ") {
	}
	p.signal(syscall.SIGINT)
	if code := p.wait(); code != 0 || p.errors() != "" {
		t.Errorf("exit code %d, %q", code, p.errors())
	}
}

// Many names on a distant store: pawl bounds each request of ls, not the whole list.
func TestLs_of_many_names(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	eng, err := open.Open(t.Context(), "redis://"+server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer eng.Close()
	if _, err := open.Init(t.Context(), eng); err != nil {
		t.Fatal(err)
	}
	c, err := pawl.New(t.Context(), eng, &pawl.Options{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	const names = 500
	for i := range names {
		if _, err := c.Mutex(fmt.Sprintf("name/%04d", i)).Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	link := proxy.New(t, server.Addr)
	link.Delay(20 * time.Millisecond) // one after the other they would take 20 s
	stdout, _ := want(t, 0, "redis://"+link.Addr, "ls")
	if n := strings.Count(stdout, "\nname/"); n != names {
		t.Errorf("%d names", n)
	}
}

// --watch goes on while the store does not answer, and says so.
func TestLs_watches_a_store_that_restarts(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	store := "redis://" + server.Addr
	p := start(t, command(t, store, "ls", "--watch"))
	p.line()
	server.Kill()
	eventually(t, "it says that the store does not answer", func() bool { return strings.Contains(p.errors(), "unavailable") })
	server.Restart()
	start(t, command(t, store, "run", "--ttl", "1s", "x", "--", "sleep", "1000"))
	for !strings.HasPrefix(p.line(), "x ") {
	}
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// A list asks for many announcements at once: here each answer waits until ten are asked for.
func TestLs_asks_leaders_at_once(t *testing.T) {
	t.Parallel()
	eng := &readsTogether{Engine: memengine.New(), all: make(chan struct{})}
	c, err := pawl.New(t.Context(), engine.Like(eng.Engine, eng), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.WithoutCancel(t.Context()))
	for i := range readersTogether {
		if _, err := c.Election(fmt.Sprint("shard/", i)).Campaign(t.Context(), []byte(fmt.Sprint("leader ", i))); err != nil {
			t.Fatal(err)
		}
	}
	eng.on.Store(true)
	var out strings.Builder
	if err := (&lister{w: &out}).list(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	for i := range readersTogether {
		if name := fmt.Sprintf("\"leader %d\"", i); !strings.Contains(out.String(), name) {
			t.Errorf("no %s in\n%s", name, out.String())
		}
	}
}

const readersTogether = 10

// readsTogether answers no Get before readersTogether of them wait.
type readsTogether struct {
	*memengine.Engine
	on    atomic.Bool
	reads atomic.Int64
	all   chan struct{}
}

func (e *readsTogether) Get(ctx context.Context, key string) (engine.Value, error) {
	if e.on.Load() {
		if e.reads.Add(1) == readersTogether {
			close(e.all)
		}
		select {
		case <-e.all:
		case <-ctx.Done():
			return engine.Value{}, engine.Unavailable("get", ctx.Err())
		}
	}
	return e.Engine.Get(ctx, key)
}
