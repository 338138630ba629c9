package inboxtest_test

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/killtest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// wholeMessages is how many messages are sent in each row, and wholeKills is how often each server is killed meanwhile.
var wholeMessages, wholeKills = 1_500, 2

func init() {
	if n, err := strconv.Atoi(os.Getenv("PAWL_TEST_MESSAGES")); err == nil {
		wholeMessages, wholeKills = n, 4
	} else if os.Getenv("PAWL_TEST_SOAK") != "" {
		wholeMessages, wholeKills = 1_000_000, 20
	}
}

// doubtful is the key of the messages of a transaction in doubt.
const doubtful = 999

// whole is the way from producers to effects: a database, a broker, and processes that are killed.
type whole struct {
	*database
	kind             string
	server, toBroker *testservers.Server // nil if there is none
	b                broker              // nil if the relay posts to consumers
	addr             string              // of the broker
	ahead            int                 // how many messages the producers are ahead of the effects, so that all have work until the end
	patience         time.Duration       // without a further effect
	settle           func()              // ends the transaction in doubt, with a commit
}

func newWhole(t *testing.T, d dialect.Dialect, kind string) *whole {
	t.Helper()
	w := &whole{kind: kind, ahead: min(max(wholeMessages/10, 100), wholeAhead), patience: 3 * time.Minute}
	source := ""
	switch d {
	case dialect.PostgreSQL: // whose vacuum has work to do
		w.server = testservers.Postgres(t, "-c", "max_prepared_transactions=4", "-c", "autovacuum=on")
		source = testservers.PostgresURL(w.server.Addr)
	case dialect.MySQL:
		w.server = testservers.MariaDB(t)
		config := testservers.MariaDBConfig(w.server.Addr)
		config.InterpolateParams = true
		source = config.FormatDSN()
	}
	w.database = newDatabaseAt(t, d, source)
	w.makeTables(t)
	if kind == webhooks {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		w.addr = listener.Addr().String()
		listener.Close() //nolint:errcheck // for the consumer
	} else {
		w.toBroker = brokers[kind].own(t, brokers[kind].durable...)
		w.addr = w.toBroker.Addr
		var err error
		if w.b, err = brokers[kind].connect(w.addr, w.name); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.b.close)
		if r, ok := w.b.(*rabbitBroker); ok {
			r.server = w.toBroker
		}
	}
	w.settle = w.doubt(t)
	return w
}

// makeTables makes the outbox, and the rows of the keys.
func (w *whole) makeTables(t *testing.T) {
	t.Helper()
	table, err := w.table()
	if err == nil {
		err = table.Migrate(t.Context(), w.db)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.do(t, "CREATE TABLE counts_"+w.name+" (k bigint PRIMARY KEY, n bigint NOT NULL)")
	for key := range wholeKeys {
		w.do(t, fmt.Sprintf("INSERT INTO counts_%s VALUES (%d, 0)", w.name, key))
	}
	w.do(t, fmt.Sprintf("INSERT INTO counts_%s VALUES (%d, 0)", w.name, doubtful))
}

// do runs a statement, also beside a database that was just started.
func (w *whole) do(t *testing.T, query string) {
	t.Helper()
	var err error
	until(t, query, func() bool {
		_, err = w.db.ExecContext(t.Context(), query)
		return err == nil || !passing(err)
	})
	if err != nil {
		t.Fatal(query, ": ", err)
	}
}

// doubt leaves a transaction with messages in doubt. SQLite has one writer, and a transaction that stays open would stop it: there
// the transaction begins at the end.
func (w *whole) doubt(t *testing.T) (settle func()) {
	t.Helper()
	id := "'" + strings.TrimPrefix(w.name, "inbox_") + "'"
	begin, ends, commit := "BEGIN", []string{"PREPARE TRANSACTION " + id}, "COMMIT PREPARED "+id
	switch w.database.kind {
	case dialect.MySQL:
		begin, ends, commit = "XA START "+id, []string{"XA END " + id, "XA PREPARE " + id}, "XA COMMIT "+id
	case dialect.SQLite:
		return func() {
			if err := w.produceOne(t.Context(), doubtful, true); err != nil {
				t.Error(err)
			}
		}
	}
	conn, err := w.db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.ExecContext(t.Context(), begin)
	if err == nil {
		err = w.enqueue(t.Context(), conn, doubtful)
	}
	for _, query := range ends {
		if err == nil {
			_, err = conn.ExecContext(t.Context(), query)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	conn.Raw(func(any) error { return driver.ErrBadConn }) //nolint:errcheck // the session ends, as that of a dead coordinator
	return func() {
		var err error
		until(t, commit, func() bool { // MariaDB does so when it has noticed the end of the session
			_, err = w.db.ExecContext(t.Context(), commit)
			return err == nil
		})
	}
}

// start starts workers of a kind, and kills one of them again and again, from the first messages to the last. The function that
// start returns waits for their end.
func (w *whole) start(t *testing.T, role string, n, kills int) (wait func() int) {
	t.Helper()
	all := killtest.Start(t, n, workerEnv+"="+role, "PAWL_INBOX_KIND="+w.kind, "PAWL_INBOX_BROKER="+w.addr, "PAWL_INBOX_DIALECT="+strconv.Itoa(int(w.database.kind)), "PAWL_INBOX_SOURCE="+w.dsn,
		"PAWL_INBOX_TABLE="+w.name, "PAWL_INBOX_MESSAGES="+strconv.Itoa(wholeMessages), "PAWL_INBOX_AHEAD="+strconv.Itoa(w.ahead), "PAWL_INBOX_STORE=redis://"+testservers.SharedRedis(t).Addr)
	done := make(chan int, 1)
	go func() {
		done <- all.KillOver(wholeMessages, kills, func() (int, error) { return w.reached(t.Context()) })
	}()
	return func() int { return <-done }
}

// killServer kills the database or the broker, in turn, and starts that server again.
func (w *whole) killServer(t *testing.T, n int) {
	t.Helper()
	server := []*testservers.Server{w.toBroker, w.server}[n%2]
	if server == nil {
		return
	}
	server.Kill()
	server.Restart()
	if r, ok := w.b.(*rabbitBroker); ok && server == w.toBroker {
		r.elect(t)
	}
}

// wait waits until a condition holds. Wait gives up when no further message took effect for long.
func (w *whole) wait(t *testing.T, holds func() (bool, error)) bool {
	t.Helper()
	last, since := -1, time.Now()
	for time.Since(since) < w.patience {
		ok, err := holds()
		if err == nil && ok {
			return true
		}
		if err != nil && !passing(err) {
			t.Fatal(err)
		}
		if n, err := w.reached(t.Context()); err == nil && n > last {
			last, since = n, time.Now()
		}
		time.Sleep(100 * time.Millisecond)
	}
	return false
}

// run runs all processes with a relay of a kind, until all messages took effect, or none is left anywhere.
func (w *whole) run(t *testing.T, relay string, relays int) (f faults, all int) {
	t.Helper()
	ctx := t.Context()
	kills := max(4, wholeMessages/5_000)
	consumers := 2
	if w.kind == webhooks { // which have one address
		consumers = 1
	}
	waits := map[string]func() int{"producers": w.start(t, "producer", 2, kills), "relays": w.start(t, relay, relays, kills), "consumers": w.start(t, "consumer", consumers, kills)}
	for i := range 2 * wholeKills {
		w.wait(t, func() (bool, error) { n, err := w.reached(ctx); return n > wholeMessages*(i+1)/(2*wholeKills+2), err })
		w.killServer(t, i)
	}
	w.wait(t, func() (bool, error) { n, err := w.produced(ctx); return n >= wholeMessages, err })
	w.settle()
	if relay == "relay" {
		w.wait(t, func() (bool, error) {
			want, err := w.produced(ctx)
			n, failed := w.number(ctx, "SELECT COUNT(*) FROM effects_"+w.name)
			left, unread := w.number(ctx, "SELECT COUNT(*) FROM out_"+w.name+" WHERE state = 0")
			return n == want && left == 0, errors.Join(err, failed, unread)
		})
	} else {
		w.empty(t)
	}
	w.do(t, "INSERT INTO counts_"+w.name+" VALUES (-1, 0)")
	killed := ""
	for name, wait := range waits {
		killed += fmt.Sprintf("%d %s, ", wait(), name)
	}
	f, all = w.books(t)
	t.Logf("%s: %d messages: killed %sthe broker and the database: %+v", relay, all, killed, f)
	return f, all
}

// empty waits until neither the outbox nor the broker has a message. A message that was not delivered by then is lost.
func (w *whole) empty(t *testing.T) {
	t.Helper()
	quiet := 0
	w.wait(t, func() (bool, error) {
		left, err := w.number(t.Context(), "SELECT COUNT(*) FROM out_"+w.name+" WHERE state = 0")
		if err != nil {
			return false, err
		}
		held, err := w.b.unsettled(t.Context())
		if quiet++; err != nil || left+held > 0 {
			quiet = 0
		}
		return quiet >= 20, nil
	})
}

// books compares the effects with the messages that were committed.
func (w *whole) books(t *testing.T) (f faults, all int) {
	t.Helper()
	effects, err := w.effects(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if all, err = w.produced(t.Context()); err != nil {
		t.Fatal(err)
	}
	f = check(effects, 1, all)
	counts := make(map[int]int)
	rows, err := w.db.QueryContext(t.Context(), "SELECT k, n FROM counts_"+w.name)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var k, n int
		if err := rows.Scan(&k, &n); err != nil {
			t.Fatal(err)
		}
		counts[k] = n
	}
	for _, id := range effects {
		var k, n int
		if _, err := fmt.Sscanf(id, "%d-%d", &k, &n); err != nil || n > counts[k] {
			t.Fatalf("message %s took effect, and was never committed", id)
		}
	}
	return f, all
}

// wholeRows are the pairs of a database and a broker. Each is once in a short run, and all pairs are in a soak.
func wholeRows(all bool) (rows [][2]any) {
	kinds := []string{quorum, "nats", "redis", webhooks, "rabbitmq classic"}
	for i, d := range []dialect.Dialect{dialect.PostgreSQL, dialect.MySQL, dialect.SQLite} {
		for j, kind := range kinds {
			if i == j%3 || all {
				rows = append(rows, [2]any{d, kind})
			}
		}
	}
	return rows
}

// TestWholePairsOfCI: CI sends more messages in each of these pairs, each on a machine of its own.
func TestWholePairsOfCI(t *testing.T) {
	text, err := os.ReadFile("../../.github/workflows/ci.yml")
	if err != nil {
		t.Fatal(err)
	}
	pairs := regexp.MustCompile(`(?m)^ +- ((?:PostgreSQL|MySQL|SQLite)/\S+)$`).FindAllStringSubmatch(string(text), -1)
	var named, rows []string
	for _, pair := range pairs {
		named = append(named, pair[1])
	}
	for _, row := range wholeRows(false) {
		rows = append(rows, strings.ReplaceAll(fmt.Sprintf("%v/%s", row[0], row[1]), " ", "_"))
	}
	if slices.Sort(named); !slices.Equal(named, slices.Sorted(slices.Values(rows))) {
		t.Errorf("CI names %q, and the pairs are %q", named, rows)
	}
}

// TestWhole: producers, relays, consumers, the broker and the database are killed again and again, while a transaction with
// messages is in doubt. Each committed message takes effect once, and those of a key in their order. No message is dead.
func TestWhole(t *testing.T) {
	for _, row := range wholeRows(os.Getenv("PAWL_TEST_SOAK") != "") {
		d, kind := row[0].(dialect.Dialect), row[1].(string)
		t.Run(d.String()+"/"+kind, func(t *testing.T) {
			t.Parallel()
			w := newWhole(t, d, kind)
			if f, all := w.run(t, "relay", 2); f != (faults{}) || all < wholeMessages+wholeBatch {
				t.Errorf("%d messages: %+v", all, f)
			}
			if n, err := w.number(t.Context(), "SELECT COUNT(*) FROM out_"+w.name+" WHERE state <> 2"); err != nil || n > 0 {
				t.Errorf("%d messages are not confirmed, %v", n, err)
			}
		})
	}
}

// TestWholeUnconfirmed: the same checker sees that a relay loses messages if it deletes them without a confirm.
func TestWholeUnconfirmed(t *testing.T) {
	t.Parallel()
	for range 3 { // a kill may find nothing under way
		w := newWhole(t, dialect.PostgreSQL, "nats")
		w.ahead, w.patience = max(500, w.ahead), 30*time.Second // a lost message is never an effect
		if f, _ := w.run(t, "unconfirmed", 1); f.lost > 0 {
			return
		}
	}
	t.Error("the naive relay is not found to lose messages")
}
