//go:build unix

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/open"
)

// beLost makes the test binary a pawl whose lock is lost before its command starts. The next argument is a file that the command makes.
const beLost = "__lost"

// runLost runs the command, and returns the exit code. A process of its own does that, because package cli waits for all children.
func runLost() int {
	ctx := context.Background()
	eng, err := open.Open(ctx, "memory:")
	var client *pawl.Client
	if err == nil {
		client, err = pawl.New(ctx, eng, nil)
	}
	j := &job{runOptions: &runOptions{name: "x", command: []string{"touch", os.Args[2]}, ttl: time.Minute, grace: time.Second}, signals: catchSignals()}
	if err == nil {
		j.lease, err = client.Mutex("x").Lock(ctx)
	}
	if err == nil {
		j.guard, err = startGuard()
	}
	if err == nil {
		_, err = client.Break(ctx, "x", pawl.BreakOptions{})
	}
	if err != nil {
		fmt.Println(err)
		return exitInternal
	}
	<-j.lease.Context().Done()
	path, _ := lookPath("touch")
	code, err := j.execute(path)
	if exit := (*exitError)(nil); errors.As(err, &exit) {
		code = exit.code
	}
	fmt.Println(code, err, j.lost)
	return code
}

// TestRun_lost_before_it_starts: a command whose lock is lost already is not started.
func TestRun_lost_before_it_starts(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	p := start(t, command(t, "memory:", beLost, file))
	line := p.line()
	if code := p.wait(); code != 74 {
		t.Errorf("exit code %d: %s", code, line)
	}
	if _, err := os.Stat(file); err == nil || p.errors() != "" {
		t.Errorf("the command has run: %s%s", line, p.errors())
	}
}
