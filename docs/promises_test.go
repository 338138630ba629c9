//go:build linux

// The promises of an engine may depend on the system (the clock of SQLite does): the table is
// that of Linux.

package docs_test

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
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
	"github.com/pawl-go/pawl/engine/mysqlengine"
	"github.com/pawl-go/pawl/engine/natsengine"
	"github.com/pawl-go/pawl/engine/pgengine"
	"github.com/pawl-go/pawl/engine/redisengine"
	"github.com/pawl-go/pawl/engine/redlockengine"
	"github.com/pawl-go/pawl/engine/sqliteengine"
	"github.com/pawl-go/pawl/engine/zkengine"
)

var update = flag.Bool("update", false, "write the tables of promises")

// promises are the rows of the table.
var promises = []struct {
	title string
	of    func(engine.Caps) string
}{
	{"Shared by", func(c engine.Caps) string { return string(c.Processes) }},
	{"Where tokens come from", func(c engine.Caps) string { return string(c.Token) }},
	{"Waiters are woken by", func(c engine.Caps) string { return string(c.Wake) }},
	{"The clock that ends a dead session", func(c engine.Caps) string { return string(c.Expiry) }},
	{"May forget grants in a restart", func(c engine.Caps) string {
		if c.Forgets {
			return "yes: then it has a restart grace"
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

// TestPromises: the tables of promises are what the engines say.
func TestPromises(t *testing.T) {
	all := engines(t)
	generated(t, "choosing.md", "promises", promisesTable(all))
	generated(t, "choosing.md", "lacks", lacksTable(all))
	generated(t, "choosing.zh.md", "promises", inChinese(promisesTable(all)))
	generated(t, "choosing.zh.md", "lacks", inChinese(lacksTable(all)))
}

// TestKeepers: command.md names the stores whose values outlive a restart and a failover. IDs may stand on these alone.
func TestKeepers(t *testing.T) {
	var keep []string
	for _, c := range engines(t) {
		if !c.Forgets && c.Failover != engine.FailoverLoses && c.Processes != engine.ReachProcess && c.RefuseFeature(engine.FeatureValues) == nil {
			keep = append(keep, c.Name)
		}
	}
	const said = "SQLite, etcd and ZooKeeper keep their writes."
	if !slices.Equal(keep, []string{"sqlite", "etcd", "zk"}) || !strings.Contains(read(t, "command.md"), said) {
		t.Errorf("%q keep their writes, and command.md has to say so: %s", keep, said)
	}
}

// generated holds the part of a file between two comments to what it should be.
func generated(t *testing.T, file, part, want string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- "+part+" -->\n", "<!-- /"+part+" -->\n"
	before, rest, found := strings.Cut(string(text), begin)
	is, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no place for it: %s ... %s", file, begin, end)
	}
	if is == want {
		return
	}
	if !*update {
		t.Fatalf("what %s says of %s is not what the engines say (go test ./docs -update writes it):\n%s", file, part, want)
	}
	if err := os.WriteFile(file, []byte(before+begin+want+end+after), 0o644); err != nil {
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
	redis := redisengine.New(nil, nil)
	redlock, err := redlockengine.New([]engine.Engine{redis, redis, redis}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return []engine.Caps{
		memengine.New().Caps(),
		sqlite.Caps(),
		redisengine.New(nil, nil).Caps(),
		redlock.Caps(),
		etcdengine.New(clientv3.NewCtxClient(context.Background()), nil).Caps(),
		zkengine.New(nil, nil).Caps(),
		natsengine.Caps(),
		pgengine.Options{}.Caps(),
		named("postgres, unlogged", pgengine.Options{Unlogged: true}.Caps()),
		named("postgres, pooled", pgengine.Options{Pooled: true}.Caps()),
		mysqlengine.Options{}.Caps(),
		pgengine.Row{}.Caps(),
		mysqlengine.Row{}.Caps(),
	}
}

// named is the form of an engine that has more than one.
func named(name string, c engine.Caps) engine.Caps {
	c.Name = name
	return c
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

// lacksTable says why each engine lacks what it lacks.
func lacksTable(all []engine.Caps) string {
	table := "| store | lacks | because |\n|---|---|---|\n"
	for _, c := range all {
		for _, f := range slices.Sorted(maps.Keys(c.Lacks)) {
			table += "| " + c.Name + " | " + string(f) + " | " + c.Lacks[f] + " |\n"
		}
	}
	return table
}
