//go:build unix

package main

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

// private is a Redis of the tests.
type private struct{ *testservers.Server }

func (p private) url() string { return "redis://" + p.Addr }

func (p private) crash(context.Context) error {
	p.Kill()
	p.Restart()
	return nil
}

// shown is the whole output, as the recipes have it.
func shown(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/recipes/ids.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(page), "```text\n")
	block, _, found := strings.Cut(block, "```")
	if !found {
		t.Fatal("the page does not show the output")
	}
	return block
}

func TestIDs(t *testing.T) {
	var out strings.Builder
	dir := t.TempDir()
	if err := clockStepsBack(t.Context(), dir, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if err := redisForgets(t.Context(), private{testservers.Redis(t)}, dir, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if want := shown(t); out.String() != want {
		t.Errorf("it prints\n%s\nand the page shows\n%s", out.String(), want)
	}
}

// TestOwnRedis: the Redis of the program itself forgets in the same way, and it is gone at the end.
func TestOwnRedis(t *testing.T) {
	program, err := exec.LookPath(cmp.Or(os.Getenv("PAWL_TEST_REDIS_SERVER"), "redis-server"))
	if err != nil {
		t.Fatal(err)
	}
	redis, err := startRedis(t.Context(), program, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer redis.stop() //nolint:errcheck // as below
	var out strings.Builder
	if err := redisForgets(t.Context(), redis, redis.dir, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if err := redis.stop(); err != nil {
		t.Fatal(err)
	}
	if err := redis.ping(t.Context()); err == nil {
		t.Error("the Redis runs on")
	}
}

// TestNoRedis: the rest is shown, and the program says what it left out.
func TestNoRedis(t *testing.T) {
	t.Setenv("PATH", "")
	var out strings.Builder
	if err := run(t.Context(), nil, &out); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); !strings.HasPrefix(shown(t), strings.Split(text, "\nRedis was left out")[0]) || !strings.Contains(text, "no redis-server") {
		t.Errorf("it prints\n%s", text)
	}
	missing := filepath.Join(t.TempDir(), "redis-server")
	if err := run(t.Context(), []string{"-redis", missing}, &out); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("a Redis that is not there: %v", err)
	}
}
