//go:build unix

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/outbox"
)

// filled makes a table in a SQLite file with these messages, and runs statements there.
func filled(t *testing.T, all []outbox.Message, statements ...string) (url string, db *open.Database, table *outbox.Table) {
	t.Helper()
	url = "sqlite:" + filepath.Join(t.TempDir(), "box.db")
	want(t, 0, "memory:", "outbox", "migrate", "--db", url)
	db, err := open.OpenDatabase(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() }) //nolint:errcheck // the end
	table, err = outbox.New(db.Dialect, nil)
	if err == nil {
		_, err = table.Enqueue(t.Context(), db.DB, all...)
	}
	for _, statement := range statements {
		if err == nil {
			_, err = db.DB.ExecContext(t.Context(), statement)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return url, db, table
}

// TestOutbox_status: a halted key does not hide that messages wait for long, and a dead message without a key has a next step.
func TestOutbox_status(t *testing.T) {
	t.Parallel()
	all := []outbox.Message{{ID: "a", Topic: "t", Key: "k"}, {ID: "b", Topic: "t", Key: "k"}, {ID: "c", Topic: "t"}, {ID: "d", Topic: "t", Key: "other"}}
	url, db, _ := filled(t, all, "UPDATE pawl_outbox SET state = 4, reason = 'no' WHERE id = 'c'", "UPDATE pawl_outbox SET created = created - 86400 WHERE id = 'd'")
	status := func(waitsLong bool, lines ...string) {
		t.Helper()
		stdout, _ := want(t, 0, "memory:", "outbox", "status", "--db", url)
		for _, line := range lines {
			if !strings.Contains(stdout, "\n"+line+"\n") {
				t.Errorf("%q is missing in %s", line, stdout)
			}
		}
		if strings.Contains(stdout, "wait for long") != waitsLong {
			t.Error(stdout)
		}
		var s summaryView
		if stdout, _ = want(t, 0, "memory:", "outbox", "status", "--db", url, "--json"); json.Unmarshal([]byte(stdout), &s) != nil || s.WaitsLong != waitsLong {
			t.Error(stdout)
		}
	}
	keyless := "Dead messages without a key: 1 (try: pawl outbox ls --state dead)"
	next := "Mend the reason, and then send dead messages again: pawl outbox requeue --key KEY, or an ID, or --all"
	status(true, keyless, next, "Messages wait for long. The relays print the reason, if any relay runs.")
	run := func(statement string) {
		t.Helper()
		if _, err := db.DB.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	run("UPDATE pawl_outbox SET state = 4, reason = 'no' WHERE id = 'a'")
	status(true, "k           1        1     a           no", "The waiting messages of these keys are sent after the dead ones. Only relays with --continue-keys send them before.",
		keyless, next, "Messages wait for long, perhaps only behind the dead ones. The relays print the reason, if any relay runs.")
	run("UPDATE pawl_outbox SET state = 2 WHERE id = 'd'")
	status(false, keyless, next)
}

// TestOutbox_relay_metrics: each metric has the value that is true.
func TestOutbox_relay_metrics(t *testing.T) {
	t.Parallel()
	var all []outbox.Message
	for _, id := range []string{"good", "away", "odd", "hangs", "refused"} {
		all = append(all, outbox.Message{ID: id, Topic: "t", Key: id})
	}
	all = append(all, outbox.Message{ID: "behind", Topic: "t", Key: "refused"}, outbox.Message{ID: "refused without a key", Topic: "t"})
	_, db, table := filled(t, all, "UPDATE pawl_outbox SET attempt = 1 WHERE id LIKE 'refused%'", "UPDATE pawl_outbox SET created = created - 1000 WHERE id = 'behind'")
	release := make(chan struct{})
	relay, stop := relayHere(t, table, db, publishes(func(id string) error {
		switch id {
		case "away":
			return outbox.ErrBlocked
		case "odd":
			return errors.New("odd")
		case "hangs":
			<-release
		case "refused", "refused without a key":
			return outbox.ErrRefused
		}
		return nil
	}))
	serve := func() string { // a new service reads the table at once
		server := httptest.NewServer((&relayService{relay: relay, table: table, db: db.DB, name: "pawl_outbox"}).handler())
		t.Cleanup(server.Close)
		return server.URL
	}
	at := serve()
	eventually(t, "a message is under way", func() bool { return metric(t, at, "pawl_outbox_sending") == 1 })
	eventually(t, "a sending hangs", func() bool { s := relay.Stats(); return s.Hung == 1 && s.Dead == 2 && s.Failed == 2 })
	at = serve()
	oldest := metric(t, at, "pawl_outbox_oldest_seconds")
	if oldest < 1000 || oldest > 1000+int(patience/time.Second) {
		t.Errorf("the oldest waits for %d s", oldest)
	}
	want := map[string]int{"partitions": 16, "sending": 0, "hung": 1, "confirmed_total": 1, "refused_total": 2, "blocked_total": 1, "failed_total": 2, "died_total": 2,
		"table_read": 1, "pending": 4, "dead": 2, "halted_keys": 1, "oldest_seconds": oldest}
	if is := metrics(t, at); !maps.Equal(is, want) {
		t.Errorf("the metrics are %v, want %v", is, want)
	}
	close(release)
	stop()
	if err := db.Close(); err != nil {
		t.Error(err)
	}
	is := metrics(t, serve())
	if _, there := is["dead"]; there || is["table_read"] != 0 || is["refused_total"] != 2 {
		t.Errorf("the database is closed: %v", is)
	}
}

// metrics reads all figures of a relay, by their names without the prefix that all have.
func metrics(t *testing.T, at string) map[string]int {
	t.Helper()
	text, _ := get(t, 200, at+"/metrics")
	all := make(map[string]int)
	for _, found := range regexp.MustCompile(`(?m)^pawl_outbox_(\w+)\{`).FindAllStringSubmatch(text, -1) {
		all[found[1]] = metric(t, at, "pawl_outbox_"+found[1])
	}
	return all
}

// relayHere runs a relay in the process of the test, until the test calls stop. A message dies at its second failure, and is sent once
// in an hour.
func relayHere(t *testing.T, table *outbox.Table, db *open.Database, p outbox.Publisher) (relay *outbox.Relay, stop func()) {
	t.Helper()
	client, err := pawl.New(t.Context(), memengine.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	relay, err = table.Relay(client, db.DB, p, &outbox.RelayOptions{MaxAttempts: 2, Timeout: 2 * time.Second, Backoff: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	return relay, func() {
		t.Helper()
		cancel()
		if err := errors.Join(<-done, client.Close(t.Context())); err != nil {
			t.Error(err)
		}
	}
}

// publishes is a broker that says this of the message with an ID.
type publishes func(id string) error

func (p publishes) Publish(_ context.Context, m outbox.Message) error { return p(m.ID) }

// TestOutbox_relay_begins: a relay that begins says where its locks are, and that nobody signs the webhooks.
func TestOutbox_relay_begins(t *testing.T) {
	t.Parallel()
	url, _, _ := filled(t, []outbox.Message{{Topic: "t"}})
	home, store := t.TempDir(), sqliteStore(t)
	secret := "PAWL_WEBHOOK_SECRET=whsec_YSBzZWNyZXQgb2YgdHdlbnR5LWZvdXIgYnl0ZXM="
	begins := func(env []string, drop string, says string, signed bool) {
		t.Helper()
		cmd := command(t, store, "outbox", "relay", "--db", url, "--to", "http://127.0.0.1:1/", "--listen", "127.0.0.1:0")
		cmd.Env = slices.DeleteFunc(cmd.Env, func(v string) bool { return strings.HasPrefix(v, drop+"=") })
		cmd.Env = append(cmd.Env, env...)
		p := start(t, cmd)
		eventually(t, says, func() bool { return strings.Contains(p.errors(), "pawl: the partitions are locked in "+says+"\n") })
		p.signal(syscall.SIGTERM)
		if code := p.wait(); code != 0 {
			t.Errorf("code %d", code)
		}
		if text := p.errors(); strings.Contains(text, "pawl: the webhooks are not signed: PAWL_WEBHOOK_SECRET is missing\n") == signed {
			t.Errorf("signed %t: %s", signed, text)
		}
	}
	begins(nil, "nothing", store+": all relays of the table need this store", false)
	begins([]string{secret, "HOME=" + home, "XDG_STATE_HOME="}, "PAWL_STORE",
		fmt.Sprintf("sqlite:%s/.local/state/pawl/pawl.db: relays of other users or machines do not see these locks, and need one --store with this relay", home), true)
	for location, want := range map[string]string{
		"redis://user:hidden@h:1/2?prefix=hidden": "redis://h:1/2",
		"nats://hidden@h,i":                       "nats://h,i",
		"redlock://u:hid%40den@h:1,i:1?x=y@z":     "redlock://h:1,i:1",
		"redlock:u:hidden@h:1,i:1":                "redlock://h:1,i:1",
		"postgres://h/db":                         "postgres://h/db",
		"sqlite:/a@b/c.db":                        "sqlite:/a@b/c.db",
	} {
		if is := place(location); is != want {
			t.Errorf("%s: %s, want %s", location, is, want)
		}
	}
}
