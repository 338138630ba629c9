package model

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
)

func TestMemory(t *testing.T) { Run(t, memengine.New(), nil) }

// unfair treats claims that may not wait as if they may.
type unfair struct{ engine.Engine }

type unfairSession struct{ engine.Session }

func (u unfair) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	s, err := u.Engine.Open(ctx, opts)
	return unfairSession{s}, err
}

func (s unfairSession) Enter(ctx context.Context, c *engine.Claim, _ bool) (engine.Grant, error) {
	return s.Session.Enter(ctx, c, true)
}

// TestDifference runs failing tests in a process of its own. Nearly every series of an engine that
// differs from the queue fails, and a seed that failed fails again.
func TestDifference(t *testing.T) {
	const child = "PAWL_TEST_MODEL"
	if os.Getenv(child) != "" {
		Run(t, unfair{memengine.New()}, &Options{Series: 3})
		Run(t, unfair{memengine.New()}, &Options{Seed: 1})
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestDifference$")
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.CombinedOutput()
	if n := strings.Count(string(out), "--- FAIL: TestDifference/"); err == nil || n < 4*3 { // now and then a short series shows nothing
		t.Errorf("%d of %d series failed: %v\n%s", n, 4*(3+1), err, out)
	}
	if !strings.Contains(string(out), "enter c1") || !strings.Contains(string(out), "--- FAIL: TestDifference/lock/1 ") {
		t.Errorf("no steps, or no seed in the name:\n%s", out)
	}
}
