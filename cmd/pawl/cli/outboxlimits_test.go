//go:build unix

package cli

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
)

// natsBox makes a stream for topics, and a table of messages in a SQLite file. Count returns how many messages a topic has in the
// stream.
func natsBox(t *testing.T, addr string, topics []string, all ...outbox.Message) (url string, count func(topic string) int) {
	t.Helper()
	js := testservers.JetStream(t, addr)
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "BOX", Subjects: topics})
	if err != nil {
		t.Fatal(err)
	}
	url = "sqlite:" + filepath.Join(t.TempDir(), "box.db")
	want(t, 0, "memory:", "outbox", "migrate", "--db", url)
	put(t, url, all...)
	return url, func(topic string) int {
		info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(topic))
		if err != nil {
			t.Fatal(err)
		}
		return int(info.State.Subjects[topic])
	}
}

// TestOutbox_relay_tooLarge: a message that the broker's limit does not let in is dead, and "status" names its halted key with the
// reason. Other keys go on. When the operator has given the message up, its key goes on too.
func TestOutbox_relay_tooLarge(t *testing.T) {
	t.Parallel()
	server := testservers.NATS(t) // whose limit is 1 MiB with the headers
	url, count := natsBox(t, server.Addr, []string{"large", "behind", "other"},
		outbox.Message{ID: "large", Topic: "large", Key: "k", Payload: make([]byte, 1<<20)}, outbox.Message{ID: "behind", Topic: "behind", Key: "k"},
		outbox.Message{ID: "other", Topic: "other", Key: "o"})
	relay := func() (p *process, at string) {
		cmd := command(t, sqliteStore(t), "outbox", "relay", "--db", url, "--to", "nats://"+server.Addr, "--listen", "127.0.0.1:0", "--poll", "50ms", "--attempts", "2")
		p = start(t, cmd)
		return p, p.line()
	}
	end := func(p *process) {
		t.Helper()
		p.signal(syscall.SIGTERM)
		if code := p.wait(); code != 0 {
			t.Errorf("code %d", code)
		}
		spoken(t, p.errors())
	}
	p, at := relay()
	eventually(t, "the message is dead", func() bool { return metric(t, at, "pawl_outbox_died_total") == 1 })
	eventually(t, "the other key goes on", func() bool { return count("other") == 1 })
	if n := metric(t, at, "pawl_outbox_refused_total"); n != 2 {
		t.Errorf("%d refusals", n)
	}
	stdout, _ := want(t, 0, "memory:", "outbox", "status", "--db", url, "--json")
	var s summaryView
	if err := json.Unmarshal([]byte(stdout), &s); err != nil || s.Dead != 1 || s.HaltedKeys != 1 || len(s.Halted) != 1 {
		t.Fatalf("%s: %v", stdout, err)
	}
	if k := s.Halted[0]; k.Key != "k" || k.ID != "large" || k.Waiting != 1 || !strings.Contains(k.Reason, "maximum payload exceeded") {
		t.Errorf("%+v", k)
	}
	if stdout, _ = want(t, 0, "memory:", "outbox", "status", "--db", url); !strings.Contains(stdout, "\nk           1        1     large       nats: publish to subject ") {
		t.Error(stdout)
	}
	if count("large")+count("behind") != 0 {
		t.Error("the halted key went on")
	}
	end(p)
	if stdout, _ = want(t, 0, "memory:", "outbox", "purge", "--db", url, "--older", "0s", "--dead"); !strings.HasPrefix(stdout, "purged ") {
		t.Error(stdout)
	}
	p, _ = relay()
	eventually(t, "the key goes on", func() bool { return count("behind") == 1 })
	end(p)
}

// TestOutbox_relay_denied: the operator reads which right is missing in NATS. Messages without the right wait while others are
// confirmed, and none of them dies.
func TestOutbox_relay_denied(t *testing.T) {
	t.Parallel()
	server := testservers.NATSUsers(t, `
		{ user: admin, password: a },
		{ user: app, password: hidden, permissions: { publish: { deny: ["closed"] } } }`)
	all := []outbox.Message{{ID: "closed", Topic: "closed", Key: "closed"}}
	url, count := natsBox(t, "admin:a@"+server.Addr, []string{"open", "closed"}, append(all, outbox.Message{ID: "open", Topic: "open", Key: "open"})...)
	cmd := command(t, sqliteStore(t), "outbox", "relay", "--listen", "127.0.0.1:0", "--poll", "50ms", "--attempts", "2")
	cmd.Env = append(cmd.Env, "PAWL_DB="+url, "PAWL_TO=nats://app:hidden@"+server.Addr)
	p := start(t, cmd)
	at := p.line()
	eventually(t, "the relay tries often", func() bool { return metric(t, at, "pawl_outbox_blocked_total") >= 5 })
	eventually(t, "the other is confirmed", func() bool { return count("open") == 1 })
	if says := `permission denied: nats: Permissions Violation for Publish to "closed"`; !strings.Contains(p.errors(), says) {
		t.Errorf("%q is missing in %s", says, p.errors())
	}
	if died, failed := metric(t, at, "pawl_outbox_died_total"), metric(t, at, "pawl_outbox_failed_total"); died+failed != 0 || count("closed") != 0 {
		t.Errorf("%d died, %d failed", died, failed)
	}
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("code %d", code)
	}
	spoken(t, p.errors())
}
