//go:build unix

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/internal/faulty"
)

// beLost makes the test binary a pawl whose lock is lost before its command starts. The next arguments are the way of the loss, and a file that
// the command makes.
const beLost = "__lost"

// losses are the ways in which a lock is lost. Each returns when that has happened.
var losses = map[string]func(j *job, client *pawl.Client, store *faulty.Store) error{
	"an operator breaks the lock": func(j *job, client *pawl.Client, _ *faulty.Store) error {
		_, err := client.Break(context.Background(), "x", pawl.BreakOptions{})
		<-j.lease.Context().Done()
		return err
	},
	"the time of the guard is over": func(j *job, _ *pawl.Client, _ *faulty.Store) error {
		j.guard.until(0)
		<-j.guard.ended
		return nil
	},
	"only the time of --grace is left": func(j *job, _ *pawl.Client, store *faulty.Store) error {
		store.Cut()
		<-time.After(time.Until(j.lease.ValidUntil()) - j.grace)
		return nil
	},
}

// runLost runs the command, and returns the exit code. A process of its own does that, because package cli waits for all children.
func runLost() int {
	ctx, store := context.Background(), faulty.New(memengine.New())
	j := &job{runOptions: &runOptions{name: "x", command: []string{"touch", os.Args[3]}, ttl: lossTTL, grace: lossTTL / 3}, signals: catchSignals()}
	client, err := pawl.New(ctx, engine.Like(store.Engine, store), &pawl.Options{TTL: j.ttl})
	if err == nil {
		j.lease, err = client.Mutex("x").Lock(ctx)
	}
	if err == nil {
		j.guard, err = startGuard()
	}
	if err == nil {
		err = losses[os.Args[2]](j, client, store)
	}
	if err != nil {
		fmt.Println(err)
		return exitInternal
	}
	path, _ := lookPath("touch")
	code, err := j.execute(path)
	if exit := (*exitError)(nil); errors.As(err, &exit) {
		code = exit.code
	}
	fmt.Println(code, err, j.lost)
	return code
}

// TestRun_lost_before_it_starts: a command whose lock is lost already, or is about to be, is not started.
func TestRun_lost_before_it_starts(t *testing.T) {
	t.Parallel()
	for way := range losses {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "file")
			p := start(t, command(t, "memory:", beLost, way, file))
			line := p.line()
			if code := p.wait(); code != 74 || !strings.Contains(line, "; touch was not started") {
				t.Errorf("exit code %d: %s", code, line)
			}
			if _, err := os.Stat(file); err == nil || p.errors() != "" {
				t.Errorf("the command has run: %s%s", line, p.errors())
			}
		})
	}
}
