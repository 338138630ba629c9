//go:build unix

package cli

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
	"github.com/pawl-go/pawl/outbox/webhook"
)

// boxOf makes a table and returns a way to fill it: messages of ten keys, numbered over all calls.
func boxOf(t *testing.T, url, name, topic string) (enqueue func(n int)) {
	t.Helper()
	want(t, 0, "memory:", "outbox", "migrate", "--db", url, "--table", name)
	db, err := open.OpenDatabase(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() }) //nolint:errcheck // the end
	db.DB.SetMaxIdleConns(0)         // a test may restart the server
	table, err := outbox.New(db.Dialect, &outbox.Options{Table: name})
	if err != nil {
		t.Fatal(err)
	}
	next := 0
	return func(n int) {
		t.Helper()
		var all []outbox.Message
		for range n {
			all = append(all, outbox.Message{ID: strconv.Itoa(next), Topic: topic, Key: fmt.Sprint("k", next%10), Payload: []byte("payload")})
			next++
		}
		if _, err := table.Enqueue(t.Context(), db.DB, all...); err != nil {
			t.Fatal(err)
		}
	}
}

// relaying starts a relay with metrics.
func relaying(t *testing.T, store, url, name, to string, env ...string) (p *process, at string) {
	t.Helper()
	cmd := command(t, store, "outbox", "relay", "--table", name, "--listen", "127.0.0.1:0", "--poll", "50ms")
	cmd.Env = append(append(cmd.Env, "PAWL_DB="+url, "PAWL_TO="+to), env...)
	p = start(t, cmd)
	return p, p.line()
}

// metric reads a figure of a relay.
func metric(t *testing.T, at, name string) int {
	t.Helper()
	text, _ := get(t, 200, at+"/metrics")
	found := regexp.MustCompile(`(?m)^` + name + `\{table="[^"]*"\} (\d+)$`).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("no %s in %s", name, text)
	}
	return atoi(t, found[1])
}

// TestOutbox_relay: relays begin while the broker is away, and send all when it comes. A relay that is told to end gives its
// partitions to the other.
func TestOutbox_relay(t *testing.T) {
	t.Parallel()
	overDatabases(t, func(t *testing.T, url, name string) {
		redis := testservers.Redis(t)
		redis.Stop()
		enqueue, store := boxOf(t, url, name, "orders"), sqliteStore(t)
		enqueue(100)
		a, atA := relaying(t, store, url, name, "redis://"+redis.Addr)
		eventually(t, "the broker is away", func() bool { return metric(t, atA, "pawl_outbox_blocked_total") > 0 })
		get(t, 200, atA+"/healthz")
		ready(t, atA)
		b, atB := relaying(t, store, url, name, "redis://"+redis.Addr)
		eventually(t, "the relays share the partitions", func() bool {
			return metric(t, atA, "pawl_outbox_partitions") == 8 && metric(t, atB, "pawl_outbox_partitions") == 8
		})
		redis.Restart()
		confirmed := func() int {
			return metric(t, atA, "pawl_outbox_confirmed_total") + metric(t, atB, "pawl_outbox_confirmed_total")
		}
		eventually(t, "all is confirmed", func() bool { return confirmed() >= 100 })
		eventually(t, "the operator reads of it", func() bool { return strings.Contains(a.errors(), "confirms messages again") })
		a.signal(syscall.SIGTERM)
		if code := a.wait(); code != 0 {
			t.Errorf("code %d: %s", code, a.errors())
		}
		eventually(t, "the other has all partitions", func() bool { return metric(t, atB, "pawl_outbox_partitions") == 16 })
		before := metric(t, atB, "pawl_outbox_confirmed_total")
		enqueue(50)
		eventually(t, "the other sends", func() bool { return metric(t, atB, "pawl_outbox_confirmed_total") >= before+50 })
		eventually(t, "nothing waits", func() bool { return metric(t, atB, "pawl_outbox_pending") == 0 })
		b.signal(syscall.SIGTERM)
		if code := b.wait(); code != 0 {
			t.Errorf("code %d: %s", code, b.errors())
		}
		text := a.errors() + b.errors()
		for _, says := range []string{"; the relay tries again\n", " of 16 partitions\n", "pawl: the broker confirms messages again\n"} {
			if !strings.Contains(text, says) {
				t.Errorf("%q is missing in %s", says, text)
			}
		}
		if lines := strings.Count(text, "\n"); lines > 100 {
			t.Errorf("%d lines for the operator", lines)
		}
		inStream(t, redis.Addr, "orders", 150)
	})
}

// inStream fails the test unless a stream has all messages, and those of a key first in their order.
func inStream(t *testing.T, addr, stream string, n int) {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	all, err := client.Do(t.Context(), client.B().Xrange().Key(stream).Start("-").End("+").Build()).AsXRange()
	if err != nil {
		t.Fatal(err)
	}
	seen, last := make(map[int]bool), make(map[int]int)
	for _, entry := range all {
		id := atoi(t, entry.FieldValues["id"])
		if !seen[id] && id < last[id%10] {
			t.Errorf("message %d came after message %d of its key", id, last[id%10])
		}
		seen[id], last[id%10] = true, max(last[id%10], id)
	}
	if len(seen) != n {
		t.Errorf("%d messages, want %d", len(seen), n)
	}
}

// TestOutbox_relay_brokers: a message goes to each kind of broker.
func TestOutbox_relay_brokers(t *testing.T) {
	t.Parallel()
	for kind, broker := range map[string]func(t *testing.T, topic string) (url string, env []string, arrived func() bool){
		"RabbitMQ": rabbitQueue, "JetStream": natsStream, "webhook": hook,
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			topic := "orders-" + kind
			to, env, arrived := broker(t, topic)
			url, store := "sqlite:"+filepath.Join(t.TempDir(), "box.db"), sqliteStore(t)
			enqueue := boxOf(t, url, "pawl_outbox", topic)
			p, at := relaying(t, store, url, "pawl_outbox", to, env...)
			enqueue(1)
			eventually(t, "confirmed", func() bool { return metric(t, at, "pawl_outbox_confirmed_total") >= 1 })
			eventually(t, "arrived", arrived)
			p.signal(syscall.SIGTERM)
			if code := p.wait(); code != 0 {
				t.Errorf("code %d: %s", code, p.errors())
			}
		})
	}
}

// sharedRabbit is a channel of the shared RabbitMQ.
func sharedRabbit(t *testing.T) (url string, channel *amqp.Channel) {
	t.Helper()
	url = testservers.RabbitMQURL(testservers.SharedRabbitMQ(t).Addr)
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() }) //nolint:errcheck // the end
	if channel, err = conn.Channel(); err != nil {
		t.Fatal(err)
	}
	return url, channel
}

func rabbitQueue(t *testing.T, topic string) (string, []string, func() bool) {
	url, channel := sharedRabbit(t)
	if _, err := channel.QueueDeclare(topic, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	return url, nil, func() bool {
		got, ok, err := channel.Get(topic, true)
		return err == nil && ok && got.MessageId == "0" && string(got.Body) == "payload"
	}
}

func natsStream(t *testing.T, topic string) (string, []string, func() bool) {
	addr := testservers.SharedNATS(t).Addr
	js := testservers.JetStream(t, addr)
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: topic, Subjects: []string{topic}})
	if err != nil {
		t.Fatal(err)
	}
	return "nats://" + addr, nil, func() bool {
		got, err := stream.GetLastMsgForSubject(t.Context(), topic)
		return err == nil && string(got.Data) == "payload"
	}
}

func hook(t *testing.T, topic string) (string, []string, func() bool) {
	secret := []byte("a secret of twenty-four bytes")
	var mu sync.Mutex
	good := false
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		good = err == nil && webhook.Verify(r.Header, body, time.Minute, secret) == nil && string(body) == "payload" && r.Header.Get("Ce-Id") == "0"
	}))
	t.Cleanup(server.Close)
	return server.URL, []string{"PAWL_WEBHOOK_SECRET=whsec_" + base64.StdEncoding.EncodeToString(secret)}, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return good
	}
}

// TestOutbox_relay_usage: mistakes are one clear error each, and no error shows a password.
func TestOutbox_relay_usage(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "box.db")
	relay := func(code int, says string, env []string, args ...string) {
		t.Helper()
		cmd := command(t, sqliteStore(t), append([]string{"outbox", "relay"}, args...)...)
		cmd.Env = append(cmd.Env, env...)
		p := start(t, cmd)
		is, lines := p.wait(), strings.Split(strings.TrimSpace(p.errors()), "\n")
		if strings.Contains(says, "no such table") && len(lines) == 3 { // the relay had begun
			lines = lines[2:]
		}
		if is != code || !strings.Contains(lines[0], says) || len(lines) != 1 || strings.Contains(p.errors(), "hidden") {
			t.Errorf("%q: code %d, want %d: %s", args, is, code, p.errors())
		}
	}
	db := "PAWL_DB=sqlite:" + file
	relay(64, "--db is missing", nil, "--to", "nats://h")
	relay(64, "no store yet: nobody has used it (try: pawl outbox migrate)", []string{db}, "--to", "nats://h")
	if _, err := os.Stat(file); err == nil {
		t.Error("the relay has made a database")
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	relay(64, "no such table: pawl_outbox_parts (try: pawl outbox migrate)", []string{db}, "--to", "http://h")
	want(t, 0, "memory:", "outbox", "migrate", "--db", "sqlite:"+file)
	for args, says := range map[string]string{
		"":                               "--to is missing: the URL of the broker, or put it into PAWL_TO",
		"--to kafka://user:hidden@h":     "--to has no scheme of a broker: allowed are amqp, ",
		"--to amqp://user:hidden@h:x":    "--to is no URL of AMQP",
		"--to amqp://h --maxlen 7":       "--maxlen is not for a broker of amqp",
		"--to redis://h --exchange x":    "--exchange is not for a broker of redis",
		"--to nats://h --source /x":      "--source is not for a broker of nats",
		"--to nats://user:hidden@h/path": "it has a path",
		"--to http://h --listen x":       `--listen is "x": HOST:PORT is allowed`,
	} {
		relay(64, says, []string{db}, strings.Fields(args)...)
	}
	relay(64, "PAWL_WEBHOOK_SECRET: webhook: invalid: the secret", []string{db, "PAWL_WEBHOOK_SECRET=hidden"}, "--to", "http://h")
}
