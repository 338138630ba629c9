//go:build unix

package cli

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
)

// overDatabases runs a test on every database, with a table that no other test has. Outbox runs a verb there.
func overDatabases(t *testing.T, test func(t *testing.T, url, table string)) {
	for name, url := range map[string]func() string{
		"sqlite":   func() string { return "sqlite:" + filepath.Join(t.TempDir(), "box.db") },
		"postgres": func() string { return "postgres://postgres@" + testservers.SharedPostgres(t).Addr + "/postgres" },
		"mysql":    func() string { return "mysql://root@" + testservers.SharedMariaDB(t).Addr + "/pawl" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, url(), "box_"+strings.ToLower(rand.Text()))
		})
	}
}

func TestOutbox(t *testing.T) {
	t.Parallel()
	overDatabases(t, func(t *testing.T, url, name string) {
		box := func(code int, args ...string) (stdout, stderr string) {
			t.Helper()
			return want(t, code, "memory:", append([]string{"outbox", "--db", url, "--table", name}, args...)...)
		}
		_, stderr := box(64, "status")
		complaint(t, stderr, "(try: pawl outbox migrate)")
		if file, is := strings.CutPrefix(url, "sqlite:"); is {
			if _, err := os.Stat(file); err == nil {
				t.Error("a look has made a file")
			}
		} else {
			complaint(t, stderr, "no such table: "+name+"_parts")
		}
		for range 2 {
			if stdout, _ := box(0, "migrate"); stdout != name+" is ready\n" {
				t.Error(stdout)
			}
		}
		db, table := fillBox(t, url, name)
		var s summaryView
		stdout, _ := box(0, "status", "--json")
		if err := json.Unmarshal([]byte(stdout), &s); err != nil || s.Pending != 1 || s.Confirmed != 1 || s.Dead != 1 || s.HaltedKeys != 1 || s.Oldest == nil {
			t.Errorf("%s: %v", stdout, err)
		}
		if want := []haltedView{{"k", 1, 1, "dead\n", "the broker refused the message: too large\n"}}; !slices.Equal(s.Halted, want) {
			t.Errorf("%+v", s.Halted)
		}
		if stdout, _ = box(0, "status"); !strings.Contains(stdout, "halted keys         1\n") || !strings.Contains(stdout, "Z, ") || !strings.Contains(stdout, "\nk           1        1     dead?       the broker refused the message: too large?\n") {
			t.Error(stdout)
		}
		stdout, _ = box(0, "ls")
		if lines := strings.Split(stdout, "\n"); len(lines) != 5 || !strings.HasPrefix(lines[1], "dead?   t?     k      dead") || !strings.Contains(lines[1], "too large?") {
			t.Errorf("%q", stdout)
		}
		if stdout, _ = box(0, "ls", "--state", "pending", "--state", "confirmed", "--json", "-n", "1"); strings.Count(stdout, "\n") != 1 || !strings.Contains(stdout, `"id":"behind"`) {
			t.Error(stdout)
		}
		if stdout, _ = box(0, "ls", "--key", "other"); strings.Contains(stdout, "behind") || !strings.Contains(stdout, "good") {
			t.Error(stdout)
		}
		if stdout, _ = box(0, "show", "good", "--payload"); stdout != "a\x00b\n" {
			t.Errorf("%q", stdout)
		}
		if stdout, _ = box(0, "show", "good"); !strings.Contains(stdout, "good: confirmed\n") || !strings.Contains(stdout, "header trace") || !strings.Contains(stdout, "4 bytes") {
			t.Error(stdout)
		}
		if stdout, _ = box(0, "show", "good", "--json"); !strings.Contains(stdout, `"payload":"YQBiCg=="`) {
			t.Error(stdout)
		}
		boxMended(t, box)
		if s, err := table.Summary(t.Context(), db.DB); err != nil || s != (outbox.Summary{Pending: 2, Oldest: s.Oldest, Lag: s.Lag}) {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

// boxMended requeues the dead message, and purges the rest.
func boxMended(t *testing.T, box func(int, ...string) (string, string)) {
	_, stderr := box(64, "show", "nobody")
	complaint(t, stderr, "nobody: outbox: status: no such message")
	_, stderr = box(64, "requeue", "good")
	complaint(t, stderr, "the message is not dead")
	if stdout, _ := box(0, "requeue", "--key", "other"); stdout != "requeued 0\n" {
		t.Error(stdout)
	}
	if stdout, _ := box(0, "requeue", "dead\n"); stdout != "requeued 1: a relay that runs looks for requeued messages once a minute\n" {
		t.Error(stdout)
	}
	if stdout, _ := box(0, "show", "dead\n"); !strings.Contains(stdout, "dead?: pending\n") || strings.Contains(stdout, "too large") || !strings.Contains(stdout, "  reason    -\n") {
		t.Error(stdout)
	}
	for _, args := range [][]string{{"--older", "1h"}, {"--older", "0s", "--done"}} {
		if stdout, _ := box(0, append([]string{"purge"}, args...)...); stdout != "purged 0\n" {
			t.Error(stdout)
		}
	}
	if stdout, _ := box(0, "purge", "--older", "0s", "--dead"); stdout != "purged 1\n" {
		t.Error(stdout)
	}
}

// refusing is a broker that refuses the message "dead".
type refusing struct{}

func (refusing) Publish(_ context.Context, m outbox.Message) error {
	if m.ID == "dead\n" {
		return fmt.Errorf("%w: too large\n", outbox.ErrRefused)
	}
	return nil
}

// fillBox enqueues a message that a broker takes, a message that the broker refuses, and a message behind it.
func fillBox(t *testing.T, url, name string) (*open.Database, *outbox.Table) {
	t.Helper()
	db, err := open.OpenDatabase(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() }) //nolint:errcheck // the end
	table, err := outbox.New(db.Dialect, &outbox.Options{Table: name})
	if err != nil {
		t.Fatal(err)
	}
	_, err = table.Enqueue(t.Context(), db.DB, outbox.Message{ID: "dead", Topic: "t", Key: "k"}, outbox.Message{ID: "behind", Topic: "t", Key: "k"},
		outbox.Message{ID: "good", Topic: "t", Key: "other", Headers: map[string]string{"trace": "1"}, Payload: []byte("a\x00b\n")})
	if err == nil { // other programs may write to the table
		_, err = dialect.New(db.Dialect).Add("UPDATE ").Table(name).Add(" SET id = ").Value("dead\n").Add(", topic = ").Value("t\x1b").Add(" WHERE id = 'dead'").Exec(t.Context(), db.DB)
	}
	if err != nil {
		t.Fatal(err)
	}
	client, err := pawl.New(t.Context(), memengine.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	relay, err := table.Relay(client, db.DB, refusing{}, &outbox.RelayOptions{MaxAttempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	go func() { done <- relay.Run(ctx) }()
	for s, err := table.Summary(ctx, db.DB); s.Dead != 1 || s.Confirmed != 1; s, err = table.Summary(ctx, db.DB) {
		if err != nil {
			t.Fatal(err)
		}
	}
	stop()
	if err := errors.Join(<-done, client.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	return db, table
}

func TestOutbox_usage(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "box.db")
	want(t, 0, "memory:", "outbox", "migrate", "--db", "sqlite:"+file, "--table", "other")
	for line, says := range map[string]string{
		"outbox":                                  "a verb is missing (try: pawl help outbox)",
		"outbox status":                           "--db is missing: the URL of the database, or put it into PAWL_DB",
		"outbox status --db oracle://h":           "--db: bad store URL: unknown scheme \"oracle\": known are mysql, postgres, postgresql, sqlite",
		"outbox status --db redis://h":            "redis is no SQL database: allowed are",
		"outbox status --table a;b --db sqlite:x": "--table: outbox: invalid: Options.Table",
		"outbox ls --state odd --db sqlite:x":     `--state is "odd": allowed are pending, sent, confirmed, done, dead`,
		"outbox ls -n 0 --db sqlite:x":            "-n is 0: 1 to 1000 are allowed",
		"outbox show --json --payload x":          "--json and --payload exclude each other",
		"outbox requeue --db sqlite:x":            "IDs, a --key or --all is needed",
		"outbox requeue --all x --db sqlite:x":    "IDs, a --key or --all is needed",
		"outbox requeue --key= --db sqlite:x":     "--key is empty",
		"outbox purge --db sqlite:x":              "--older is needed: a time as 168h, 0 or more",
		"outbox purge --older -1s --db sqlite:x":  "--older is needed: a time as 168h, 0 or more",
	} {
		_, stderr := want(t, 64, "memory:", strings.Fields(strings.ReplaceAll(line, "sqlite:x", "sqlite:"+file))...)
		complaint(t, stderr, says)
	}
	_, stderr := want(t, 69, "memory:", "outbox", "status", "--db", "postgres://user:hidden@127.0.0.1:1/db")
	complaint(t, stderr, "store unavailable")
	if strings.Contains(stderr, "hidden") {
		t.Error(stderr)
	}
	cmd := command(t, "memory:", "outbox", "migrate")
	cmd.Env = append(cmd.Env, "PAWL_DB=sqlite:"+file)
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "pawl_outbox is ready\n" {
		t.Errorf("%s, %v", out, err)
	}
}
