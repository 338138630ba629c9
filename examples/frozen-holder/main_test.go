//go:build unix

package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/internal/testservers"
)

// The test binary is the program when it is started as process A.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == holder {
		main()
		return
	}
	os.Exit(testservers.Main(m))
}

// run runs the program and returns its words, and the rows of its table.
func run(t *testing.T, args ...string) (out string, rows []string) {
	t.Helper()
	var text strings.Builder
	// A moment is enough, but a busy machine may be late to renew.
	if err := demonstrate(t.Context(), append([]string{"-ttl", "3s"}, args...), &text); err != nil {
		t.Fatalf("%v\n%s", err, text.String())
	}
	_, table, _ := strings.Cut(text.String(), "\n\n")
	table, _, _ = strings.Cut(table, "\n\n")
	spaces, tokens := regexp.MustCompile(` {2,}`), regexp.MustCompile(`\d{6,}`)
	for _, row := range strings.Split(table, "\n") {
		rows = append(rows, spaces.ReplaceAllString(tokens.ReplaceAllString(row, "T"), " | "))
	}
	return text.String(), rows
}

var (
	usual = []string{
		`place | guard | it now has the text | A's late write`,
		`SQL | no | "of A, late" | landed`,
		`SQL | yes | "of B" | refused: update report: stale fencing token: "report" has seen a newer token than T`,
		`HTTP | no | "of A, late" | landed`,
		`HTTP | yes | "of B" | refused: 412 Precondition Failed: stale fencing token: "/guarded" has seen a newer token than T`,
	}
	story = regexp.MustCompile(`^A holds the lock with token (\d+), .* is frozen\.\nB got the lock after \d+\.\d s with token (\d+) and writes\.\n`)
)

func check(t *testing.T, out string, rows, want []string) {
	t.Helper()
	if strings.Join(rows, "\n") != strings.Join(want, "\n") {
		t.Errorf("it prints\n%s\nwhich is not\n%s", strings.Join(rows, "\n"), strings.Join(want, "\n"))
	}
	tokens := story.FindStringSubmatch(out)
	if tokens == nil || fmt.Sprintf("%020s", tokens[1]) >= fmt.Sprintf("%020s", tokens[2]) {
		t.Errorf("it prints\n%s", out)
	}
}

func TestFrozenHolder(t *testing.T) {
	t.Setenv("FROZEN_HOLDER_REDIS", "")
	out, rows := run(t)
	check(t, out, rows, usual)
	if !strings.Contains(out, "Redis was left out") {
		t.Errorf("it does not say that it left Redis out:\n%s", out)
	}
}

func TestFrozenHolderWithRedis(t *testing.T) {
	url := "redis://" + testservers.SharedRedis(t).Addr
	out, rows := run(t, "-redis", url)
	for i := range rows {
		rows[i] = regexp.MustCompile(`"frozen-holder:[^"]*"`).ReplaceAllString(rows[i], "KEY")
	}
	check(t, out, rows, append(usual[:len(usual):len(usual)],
		`Redis | no | "of A, late" | landed`,
		`Redis | yes | "of B" | refused: stale fencing token: KEY has seen a newer token than T`,
	))
	if strings.Contains(out, "left out") {
		t.Errorf("it says that it left something out:\n%s", out)
	}
}
