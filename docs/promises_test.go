//go:build linux

// What an engine promises may depend on the system (the clock of SQLite does):
// the table is that of Linux.

package docs_test

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/etcdengine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/engine/redisengine"
	"github.com/pawl-go/pawl/engine/sqliteengine"
)

var update = flag.Bool("update", false, "write the table of promises into README.md")

const (
	readme = "../README.md"
	begin  = "<!-- promises -->\n"
	end    = "<!-- /promises -->\n"
)

// promises are the rows of the table.
var promises = []struct {
	title string
	of    func(engine.Caps) string
}{
	{"Who can share it", func(c engine.Caps) string { return string(c.Processes) }},
	{"Where tokens come from", func(c engine.Caps) string { return string(c.Token) }},
	{"What wakes who waits", func(c engine.Caps) string { return string(c.Wake) }},
	{"The clock that ends a dead session", func(c engine.Caps) string { return string(c.Expiry) }},
	{"May forget grants in a restart", func(c engine.Caps) string {
		if c.Forgets {
			return "yes: then it gives nothing out for one TTL"
		}
		return "no"
	}},
	{"A change of the store's leader", func(c engine.Caps) string { return string(c.Failover) }},
	{"Round trips to lock + unlock", func(c engine.Caps) string {
		return fmt.Sprintf("%d + %d", c.EnterTrip, c.LeaveTrip)
	}},
	{"What it lacks", func(c engine.Caps) string {
		var lacks []string
		for f := range c.Lacks {
			lacks = append(lacks, string(f))
		}
		slices.Sort(lacks)
		return cmp.Or(strings.Join(lacks, ", "), "nothing")
	}},
	{"Shortest TTL", func(c engine.Caps) string { return max(c.MinTTL, shortestTTL).String() }},
}

// shortestTTL is what pawl.Options.TTL may be, whatever the store keeps.
const shortestTTL = 100 * time.Millisecond

// TestPromises: the table of promises in the README is what the engines say.
func TestPromises(t *testing.T) {
	want := promisesTable(engines(t))
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	is, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no place for the table: %s ... %s", readme, begin, end)
	}
	if is == want {
		return
	}
	if !*update {
		t.Fatalf("the table in %s is not what the engines say (go test ./docs -update writes it):\n%s", readme, want)
	}
	if err := os.WriteFile(readme, []byte(before+begin+want+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// engines returns the capabilities of all engines; those of servers need none.
func engines(t *testing.T) []engine.Caps {
	t.Helper()
	sqlite, err := sqliteengine.New(t.Context(), filepath.Join(t.TempDir(), "pawl.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sqlite.Close()
	return []engine.Caps{
		memengine.New().Caps(),
		sqlite.Caps(),
		redisengine.New(nil, nil).Caps(),
		etcdengine.New(clientv3.NewCtxClient(context.Background()), nil).Caps(),
	}
}

// promisesTable has a row for each engine.
func promisesTable(all []engine.Caps) string {
	table, line := "| store", "|---"
	for _, p := range promises {
		table += " | " + p.title
		line += "|---"
	}
	table += " |\n" + line + "|\n"
	for _, c := range all {
		table += "| " + c.Name
		for _, p := range promises {
			table += " | " + p.of(c)
		}
		table += " |\n"
	}
	return table
}
