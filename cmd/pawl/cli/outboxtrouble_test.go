//go:build unix

package cli

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
)

// TestOutbox_relay_blocked: a broker that takes no messages for long is a line for the operator, and not one for each message and
// try. The metrics count it, and "status" says where to look. When the broker takes messages again, all arrive.
func TestOutbox_relay_blocked(t *testing.T) {
	t.Parallel()
	for kind, broker := range map[string]func(t *testing.T) blockable{"RabbitMQ": blockableRabbit, "Redis": blockableRedis} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := broker(t)
			url := "sqlite:" + filepath.Join(t.TempDir(), "box.db")
			enqueue := boxOf(t, url, "pawl_outbox", "orders")
			cmd := command(t, sqliteStore(t), "outbox", "relay", "--listen", "127.0.0.1:0", "--poll", "50ms", "--timeout", "2s")
			cmd.Env = append(cmd.Env, "PAWL_DB="+url, "PAWL_TO="+b.url)
			p := start(t, cmd)
			at := p.line()
			enqueue(20)
			eventually(t, "confirmed", func() bool { return metric(t, at, "pawl_outbox_confirmed_total") >= 20 })
			began := time.Now()
			b.block()
			enqueue(50)
			blocked := metric(t, at, "pawl_outbox_blocked_total")
			eventually(t, "the relay tries often", func() bool { return metric(t, at, "pawl_outbox_blocked_total") >= blocked+60 })
			text, minutes := p.errors(), 1+int(time.Since(began)/sameWhile)
			if lines := strings.Count(text, "the broker takes no messages now: "+b.says); lines < 1 || lines > 2*minutes { // also of a sending that was under way
				t.Errorf("%d lines in %d minutes name the reason: %s", lines, minutes, text)
			}
			if strings.Contains(text, "confirms messages again") {
				t.Errorf("it does not: %s", text)
			}
			if n := metric(t, at, "pawl_outbox_died_total"); n != 0 {
				t.Errorf("%d messages died", n)
			}
			older(t, url)
			if stdout, _ := want(t, 0, "memory:", "outbox", "status", "--db", url); !strings.Contains(stdout, "The relays print the reason") {
				t.Error(stdout)
			}
			b.free()
			eventually(t, "all has arrived", func() bool { return b.arrived(t) >= 70 })
			eventually(t, "the operator reads of it", func() bool { return strings.Contains(p.errors(), "the broker confirms messages again") })
			eventually(t, "nothing waits", func() bool {
				stdout, _ := want(t, 0, "memory:", "outbox", "status", "--db", url)
				return !strings.Contains(stdout, "The relays print the reason")
			})
			p.signal(syscall.SIGTERM)
			if code := p.wait(); code != 0 {
				t.Errorf("code %d: %s", code, p.errors())
			}
			t.Log(p.errors())
		})
	}
}

// TestOutbox_relay_partly_blocked: one queue of a broker is full, and the others take messages. That is a line for the operator, and the broker
// has not recovered between two tries. When the queue takes messages again, the operator reads of it.
func TestOutbox_relay_partly_blocked(t *testing.T) {
	t.Parallel()
	url, channel := sharedRabbit(t)
	full, free := "full of "+t.Name(), "free of "+t.Name()
	_, err := channel.QueueDeclare(free, true, false, false, false, nil)
	if err == nil {
		_, err = channel.QueueDeclare(full, true, false, false, false, amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	}
	if err != nil {
		t.Fatal(err)
	}
	db := "sqlite:" + filepath.Join(t.TempDir(), "box.db")
	enqueue := boxOf(t, db, "pawl_outbox", free)
	p, at := relaying(t, sqliteStore(t), db, "pawl_outbox", url)
	put(t, db, outbox.Message{ID: "full 1", Topic: full, Key: "a"}, outbox.Message{ID: "full 2", Topic: full, Key: "b"}) // of which the queue takes one
	began := time.Now()
	eventually(t, "the relay tries often", func() bool { enqueue(1); return metric(t, at, "pawl_outbox_blocked_total") >= 7 })
	text, minutes := p.errors(), 1+int(time.Since(began)/sameWhile)
	if lines := strings.Count(text, "a queue has rejected the message"); lines < 1 || lines > minutes {
		t.Errorf("%d lines in %d minutes name the reason: %s", lines, minutes, text)
	}
	if strings.Contains(text, "confirms messages again") {
		t.Errorf("the queue is full: %s", text)
	}
	if _, err := channel.QueuePurge(full, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the operator reads of it", func() bool { enqueue(1); return strings.Contains(p.errors(), "the broker confirms messages again") })
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("code %d: %s", code, p.errors())
	}
	t.Log(p.errors())
}

// put enqueues messages in the usual table.
func put(t *testing.T, url string, messages ...outbox.Message) {
	t.Helper()
	db, err := open.OpenDatabase(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	table, err := outbox.New(db.Dialect, nil)
	if err == nil {
		_, err = table.Enqueue(t.Context(), db.DB, messages...)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// older makes the messages of a table a day older.
func older(t *testing.T, url string) {
	t.Helper()
	db, err := open.OpenDatabase(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.DB.ExecContext(t.Context(), "UPDATE pawl_outbox SET created = created - 86400"); err != nil {
		t.Fatal(err)
	}
}

// blockable is a broker of the test, which can take no messages for a while.
type blockable struct {
	url, says   string
	block, free func()
	arrived     func(t *testing.T) int // different messages that have arrived by now
}

func blockableRabbit(t *testing.T) blockable {
	server := testservers.RabbitMQ(t)
	url := testservers.RabbitMQURL(server.Addr)
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() }) //nolint:errcheck // the end
	channel, err := conn.Channel()
	if err == nil {
		_, err = channel.QueueDeclare("orders", true, false, false, false, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	control := func(args ...string) func() {
		return func() {
			testservers.RabbitMQControl(t, server, append([]string{"set_vm_memory_high_watermark"}, args...)...)
		}
	}
	ids := make(map[string]bool)
	return blockable{url: url, says: "low on memory", block: control("0"), free: control("absolute", "512MB"), arrived: func(t *testing.T) int {
		for {
			got, ok, err := channel.Get("orders", true)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				return len(ids)
			}
			ids[got.MessageId] = true
		}
	}}
}

func blockableRedis(t *testing.T) blockable {
	server := testservers.Redis(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	limit := func(bytes string) func() {
		return func() {
			if err := client.Do(t.Context(), client.B().ConfigSet().ParameterValue().ParameterValue("maxmemory", bytes).Build()).Error(); err != nil {
				t.Fatal(err)
			}
		}
	}
	return blockable{url: "redis://" + server.Addr, says: "OOM", block: limit("1"), free: limit("0"), arrived: func(t *testing.T) int {
		all, err := client.Do(t.Context(), client.B().Xrange().Key("orders").Start("-").End("+").Build()).AsXRange()
		if err != nil {
			t.Fatal(err)
		}
		ids := make(map[string]bool)
		for _, entry := range all {
			ids[entry.FieldValues["id"]] = true
		}
		return len(ids)
	}}
}

// TestOutbox_rights: an operator reads which right is missing for which table, and the exit code is not that of a fault of pawl.
func TestOutbox_rights(t *testing.T) {
	t.Parallel()
	overDatabases(t, func(t *testing.T, url, name string) {
		if strings.HasPrefix(url, "sqlite:") {
			return // which has no users
		}
		redis := testservers.Redis(t)
		enqueue := boxOf(t, url, name, "orders")
		enqueue(10)
		as, user, do := rightless(t, url, name)
		denied := "permission denied for table "
		if strings.HasPrefix(url, "mysql:") {
			denied = "command denied to user "
		}
		box := func(code int, args ...string) (stdout, stderr string) {
			t.Helper()
			return want(t, code, "memory:", append([]string{"outbox", "--db", as, "--table", name}, args...)...)
		}
		refused := func(args ...string) {
			t.Helper()
			_, stderr := box(69, args...)
			complaint(t, stderr, denied)
			complaint(t, stderr, name)
			t.Log(args, stderr)
		}
		refused("status")
		do("GRANT SELECT ON " + name + "_parts TO " + user)
		refused("status")
		do("GRANT SELECT ON " + name + " TO " + user)
		box(0, "status")
		box(0, "ls")
		box(0, "show", "1")
		refused("requeue", "--all")
		refused("requeue", "1")
		do("UPDATE " + name + " SET state = 2 WHERE id = '9'") // else there is nothing to delete
		refused("purge", "--older", "0s")
		do("UPDATE " + name + " SET state = 0 WHERE id = '9'")
		p, at := relaying(t, sqliteStore(t), as, name, "redis://"+redis.Addr)
		eventually(t, "the relay says what it may not", func() bool {
			return strings.Contains(p.errors(), "outbox: relay: change table "+name+": ") && strings.Contains(p.errors(), denied)
		})
		do("GRANT UPDATE, DELETE ON "+name+" TO "+user, "GRANT UPDATE ON "+name+"_parts TO "+user)
		eventually(t, "the relay goes on", func() bool { return metric(t, at, "pawl_outbox_confirmed_total") == 10 })
		p.signal(syscall.SIGTERM)
		if code := p.wait(); code != 0 {
			t.Errorf("code %d", code)
		}
		spoken(t, p.errors())
		inStream(t, redis.Addr, "orders", 10)
	})
}

// rightless makes a user without rights, and returns the URL and the name of this user. Do runs statements with all rights.
func rightless(t *testing.T, url, name string) (as, user string, do func(queries ...string)) {
	t.Helper()
	db, err := open.OpenDatabase(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() }) //nolint:errcheck // the end
	do = func(queries ...string) {
		t.Helper()
		for _, query := range queries {
			if _, err := db.DB.ExecContext(t.Context(), query); err != nil {
				t.Fatal(err)
			}
		}
	}
	user = "u_" + name
	if strings.HasPrefix(url, "mysql:") { // without any right the user cannot connect to the database
		do("CREATE USER "+user, "CREATE TABLE seen_"+user+" (n int)", "GRANT SELECT ON seen_"+user+" TO "+user)
	} else {
		do("CREATE ROLE " + user + " LOGIN")
	}
	return strings.NewReplacer("postgres://postgres@", "postgres://"+user+"@", "root@", user+"@").Replace(url), user, do
}

// TestOutbox_version: no verb touches a table of another version, and each says which one it is.
func TestOutbox_version(t *testing.T) {
	t.Parallel()
	overDatabases(t, func(t *testing.T, url, name string) {
		boxOf(t, url, name, "orders")(3)
		db, err := open.OpenDatabase(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.DB.ExecContext(t.Context(), "UPDATE "+name+"_parts SET token = 2 WHERE part = -1"); err != nil {
			t.Fatal(err)
		}
		for _, verb := range []string{"migrate", "status", "ls", "show 1", "requeue --all", "purge --older 0s --dead", "relay --to redis://127.0.0.1:1"} {
			_, stderr := want(t, 64, sqliteStore(t), append([]string{"outbox", "--db", url, "--table", name}, strings.Fields(verb)...)...)
			lines := strings.Split(strings.TrimSpace(stderr), "\n") // the relay also says that the broker is away
			complaint(t, lines[len(lines)-1]+"\n", fmt.Sprintf("table %s_parts has format 2 with 16 partitions, and this version of pawl knows format 1 with 16", name))
		}
	})
}

// TestOutbox_relay_databases: neither a database that restarts ends the relay, nor a database that does not let the operator in. No
// line has a password.
func TestOutbox_relay_databases(t *testing.T) {
	t.Parallel()
	for kind, server := range map[string]func(t *testing.T) (*testservers.Server, string){
		"postgres": func(t *testing.T) (*testservers.Server, string) {
			s := testservers.Postgres(t)
			return s, "postgres://postgres:hidden@" + s.Addr + "/postgres"
		},
		"mysql": func(t *testing.T) (*testservers.Server, string) {
			s := testservers.MariaDB(t)
			return s, "mysql://root@" + s.Addr + "/pawl"
		},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server, url := server(t)
			redis := testservers.Redis(t)
			enqueue := boxOf(t, url, "pawl_outbox", "orders")
			p, at := relaying(t, sqliteStore(t), url, "pawl_outbox", "redis://"+redis.Addr)
			enqueue(20)
			eventually(t, "confirmed", func() bool { return metric(t, at, "pawl_outbox_confirmed_total") >= 20 })
			server.Stop()
			eventually(t, "the relay says so", func() bool { return strings.Contains(p.errors(), "outbox: ") })
			_, stderr := want(t, 69, "memory:", "outbox", "status", "--db", url)
			complaint(t, stderr, "store unavailable")
			get(t, 200, at+"/healthz")
			get(t, 503, at+"/readyz")
			server.Restart()
			enqueue(20)
			eventually(t, "confirmed", func() bool { return metric(t, at, "pawl_outbox_confirmed_total") >= 40 })
			p.signal(syscall.SIGTERM)
			if code := p.wait(); code != 0 {
				t.Errorf("code %d", code)
			}
			spoken(t, p.errors())
			inStream(t, redis.Addr, "orders", 40)
			nobody := strings.NewReplacer("postgres:hidden@", "nobody:hidden@", "root@", "root:hidden@").Replace(url)
			_, stderr = want(t, 69, "memory:", "outbox", "status", "--db", nobody)
			complaint(t, stderr, "store unavailable")
			t.Log(stderr)
			p, at = relaying(t, sqliteStore(t), nobody, "pawl_outbox", "redis://"+redis.Addr)
			eventually(t, "the relay is not let in", func() bool { return strings.Contains(p.errors(), "outbox: check: ") })
			get(t, 503, at+"/readyz")
			p.signal(syscall.SIGTERM)
			if code := p.wait(); code != 0 {
				t.Errorf("code %d", code)
			}
			spoken(t, p.errors())
		})
	}
}

// spoken fails the test if a line for an operator is no line of pawl, or has a password.
func spoken(t *testing.T, text string) {
	t.Helper()
	t.Log(text)
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "pawl: ") || strings.Contains(line, "hidden") {
			t.Errorf("the operator reads %q", line)
		}
	}
}
