package outbox_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/killtest"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
)

const killedKeys = 20

// killedMessages is how many messages the producers commit.
var killedMessages = 1500

func init() {
	if n, err := strconv.Atoi(os.Getenv("PAWL_OUTBOX_MESSAGES")); err == nil {
		killedMessages = n
	}
}

// work is a process that the test kills: a producer, a relay or a naive relay. Each ends when its work is done.
func work(ctx context.Context) error {
	kind, err := strconv.Atoi(os.Getenv("PAWL_OUTBOX_DIALECT"))
	if err != nil {
		return err
	}
	d := &database{dialect: dialect.Dialect(kind), source: os.Getenv("PAWL_OUTBOX_SOURCE"), name: os.Getenv("PAWL_OUTBOX_TABLE")}
	if err := d.open(); err != nil {
		return err
	}
	defer d.db.Close()
	file, err := os.OpenFile(os.Getenv("PAWL_OUTBOX_FILE"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	switch os.Getenv("PAWL_OUTBOX_WORKER") {
	case "producer":
		return d.produce(ctx)
	case "consumer":
		return d.consume(ctx, os.Getenv("PAWL_OUTBOX_FILE"))
	case "naive":
		return d.naive(ctx, file)
	}
	return d.relay(ctx, file)
}

// produced is how many messages were committed.
func (d *database) produced(ctx context.Context) (n int, err error) {
	err = d.db.QueryRowContext(ctx, "SELECT SUM(n) FROM counts_"+d.name).Scan(&n)
	return n, err
}

// produce commits messages until there are enough. Now and then a producer changes its mind.
func (d *database) produce(ctx context.Context) error {
	began, err := strconv.ParseInt(os.Getenv("PAWL_OUTBOX_BEGAN"), 10, 64)
	if err != nil {
		return err
	}
	for {
		n, err := d.produced(ctx)
		if err == nil && n >= killedMessages {
			return nil
		}
		if int64(n) > (time.Now().UnixMilli()-began)/3 { // the kills need some time
			time.Sleep(3 * time.Millisecond)
			continue
		}
		if err == nil {
			err = d.produceOne(ctx, rand.IntN(killedKeys))
		}
		if err != nil && !dialect.Again(err) {
			return err
		}
	}
}

// produceOne serialises on the row of the key, as a business object would.
func (d *database) produceOne(ctx context.Context, key int) error {
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()                                                                                //nolint:errcheck // after the commit
	if err := d.exec(ctx, tx, "UPDATE counts_"+d.name+" SET n = n + 3 WHERE k = ?", key); err != nil { //nolint:govet // the outer one is used below
		return err
	}
	var n int
	if err := dialect.New(d.dialect).Add("SELECT n FROM counts_"+d.name+" WHERE k = ").Value(key).Scan(ctx, tx, &n); err != nil {
		return err
	}
	var batch []outbox.Message
	for i := n - 2; i <= n; i++ {
		batch = append(batch, outbox.Message{ID: fmt.Sprintf("%d-%d", key, i), Topic: "t", Key: strconv.Itoa(key), Payload: fmt.Appendf(nil, "%d %d\n", key, i)})
	}
	if _, err := d.table.Enqueue(ctx, tx, batch...); err != nil || rand.IntN(20) == 0 {
		return err
	}
	return tx.Commit()
}

// pending is how many messages are not confirmed, or not done if the test is about that.
func (d *database) pending(ctx context.Context) (n int, err error) {
	states := map[bool]string{false: "(2, 3)", true: "(3)"}[completion]
	err = d.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+d.name+" WHERE state NOT IN "+states).Scan(&n)
	return n, err
}

// finished reports whether all is produced and nothing is pending.
func (d *database) finished(ctx context.Context) bool {
	n, err := d.produced(ctx)
	if err != nil || n < killedMessages {
		return false
	}
	n, err = d.pending(ctx)
	return err == nil && n == 0
}

// relay appends messages to the file, which fails now and then, before or after the write.
func (d *database) relay(ctx context.Context, file *os.File) error {
	client, end, err := connect(ctx, os.Getenv("PAWL_OUTBOX_STORE"), &pawl.Options{TTL: time.Second, Label: strconv.Itoa(os.Getpid())})
	if err != nil {
		return err
	}
	defer end()
	p := publish(func(_ context.Context, m outbox.Message) error {
		lot := rand.IntN(100)
		if lot == 0 {
			return errors.New("the message did not arrive")
		}
		if _, err := file.Write(m.Payload); err != nil {
			return err
		}
		if lot == 1 {
			return errors.New("the confirm did not arrive")
		}
		return nil
	})
	opts := outbox.RelayOptions{Hold: 8, Window: 8, Poll: 50 * time.Millisecond, Rescan: time.Second, Backoff: time.Millisecond, MaxAttempts: 1000}
	if completion {
		opts.Resend = time.Second
	}
	relay, err := d.table.Relay(client, d.db, p, &opts)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		for !d.finished(ctx) && ctx.Err() == nil {
			time.Sleep(50 * time.Millisecond)
		}
		stop()
	}()
	return relay.Run(ctx)
}

// naive hands messages to the buffer of a client, and deletes them without waiting for a confirm.
func (d *database) naive(ctx context.Context, file *os.File) error {
	var broker bytes.Buffer
	for !d.finished(ctx) {
		var seq int64
		var payload []byte
		err := d.db.QueryRowContext(ctx, "SELECT seq, payload FROM "+d.name+" WHERE state = 0 ORDER BY seq LIMIT 1").Scan(&seq, &payload)
		if errors.Is(err, sql.ErrNoRows) || dialect.Again(err) {
			time.Sleep(time.Millisecond)
			continue
		}
		if err != nil {
			return err
		}
		broker.Write(payload)
		if bytes.Count(broker.Bytes(), []byte("\n")) >= 20 {
			if _, err := broker.WriteTo(file); err != nil {
				return err
			}
		}
		if err := d.exec(ctx, d.db, "DELETE FROM "+d.name+" WHERE seq = ?", seq); err != nil && !dialect.Again(err) {
			return err
		}
	}
	_, err := broker.WriteTo(file)
	return err
}

// check reads the broker's file. Check returns how many messages are lost, how many first effects are out of order, and
// how many repeats there are.
func (d *database) check(t *testing.T, file string) (lost, disordered, repeats int) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]bool)
	last := make(map[int]int)
	for line := range bytes.Lines(text) {
		var key, n int
		if _, err := fmt.Sscanf(string(line), "%d %d\n", &key, &n); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if got[string(line)] {
			repeats++
			continue
		}
		got[string(line)] = true
		if n != last[key]+1 {
			disordered++
		}
		last[key] = max(last[key], n)
	}
	all := 0
	for key := range killedKeys {
		var n int
		if err := d.db.QueryRow(fmt.Sprintf("SELECT n FROM counts_%s WHERE k = %d", d.name, key)).Scan(&n); err != nil {
			t.Fatal(err)
		}
		all += n
		for i := 1; i <= n; i++ {
			if !got[fmt.Sprintf("%d %d\n", key, i)] {
				lost++
			}
		}
	}
	if len(got)+lost != all {
		t.Errorf("%d messages of %d, and %d lost: some were never committed", len(got), all, lost)
	}
	return lost, disordered, repeats
}

// prepare empties the tables, and returns the file that is the broker and the environment of the processes.
func (d *database) prepare(t *testing.T) (file string, env []string) {
	t.Helper()
	ctx := t.Context()
	for _, query := range []string{"DELETE FROM " + d.name, "DELETE FROM counts_" + d.name} {
		if err := d.exec(ctx, d.db, query); err != nil {
			t.Fatal(err)
		}
	}
	for key := range killedKeys {
		if err := d.exec(ctx, d.db, "INSERT INTO counts_"+d.name+" VALUES (?, 0)", key); err != nil {
			t.Fatal(err)
		}
	}
	file = filepath.Join(t.TempDir(), "broker")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return file, []string{"PAWL_OUTBOX_DIALECT=" + strconv.Itoa(int(d.dialect)), "PAWL_OUTBOX_SOURCE=" + d.source, "PAWL_OUTBOX_TABLE=" + d.name,
		"PAWL_OUTBOX_FILE=" + file, "PAWL_OUTBOX_BEGAN=" + strconv.FormatInt(time.Now().UnixMilli(), 10), "PAWL_OUTBOX_STORE=redis://" + testservers.SharedRedis(t).Addr}
}

// killed runs producers of so many messages and relays of a kind, all in processes of their own. killed kills a relay about
// every pause, or from the first message to the last where there is no pause. Then killed checks what the broker got.
func (d *database) killed(t *testing.T, relay string, n, messages int, pause time.Duration) (lost, disordered, repeats int) {
	t.Helper()
	file, env := d.prepare(t)
	env = append(slices.Clip(env), "PAWL_OUTBOX_MESSAGES="+strconv.Itoa(messages))
	relays := killtest.Start(t, n, append(slices.Clip(env), "PAWL_OUTBOX_WORKER="+relay)...)
	producers := killtest.Start(t, 2, append(slices.Clip(env), "PAWL_OUTBOX_WORKER=producer")...)
	produced := func() (int, error) { return d.produced(t.Context()) }
	done := make(chan int)
	go func() { done <- producers.KillOver(messages, max(3, messages/1000), produced) }()
	var kills int
	if pause > 0 {
		kills = relays.KillUntilDone(8, pause)
	} else {
		kills = relays.KillOver(messages, max(8, messages/500), produced)
	}
	t.Logf("%s: killed %d relays and %d producers", relay, kills, <-done)
	lost, disordered, repeats = d.check(t, file)
	t.Logf("%s: %d lost, %d out of order, %d repeats", relay, lost, disordered, repeats)
	return lost, disordered, repeats
}

// TestKilled: producers and relays are killed again and again, while a transaction stays open. The broker gets every
// committed message, and the first of each in the order of its key. A naive relay loses messages.
func TestKilled(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		if d.dialect == dialect.PostgreSQL { // as shipped it prepares no transaction
			server := testservers.Postgres(t, "-c", "max_prepared_transactions=4")
			d = newDatabaseAt(t, d.dialect, testservers.PostgresURL(server.Addr))
		}
		for _, table := range []string{"counts_", "old_"} {
			if err := d.exec(t.Context(), d.db, "CREATE TABLE "+table+d.name+" (k bigint PRIMARY KEY, n bigint NOT NULL)"); err != nil {
				t.Fatal(err)
			}
		}
		messages := killedMessages
		if os.Getenv("PAWL_TEST_SOAK") != "" {
			messages = 1_000_000
		}
		lost := 0
		for pause := 600 * time.Millisecond; lost == 0; pause *= 2 { // on a busy machine a process needs some time to begin its work
			if lost, _, _ = d.killed(t, "naive", 1, killedMessages, pause); lost == 0 && pause > 4*time.Second {
				t.Fatal("the naive relay is not found to lose messages")
			}
		}
		end := d.oldTransaction(t)
		if lost, disordered, _ := d.killed(t, "relay", 3, messages, 0); lost+disordered > 0 {
			t.Errorf("%d messages are lost, %d are out of order", lost, disordered)
		}
		end()
	})
}

// oldTransaction opens a transaction that stays open until the test calls end. On PostgreSQL and
// MariaDB the transaction is prepared, in doubt.
func (d *database) oldTransaction(t *testing.T) (end func()) {
	var rollBack func()
	t.Helper()
	conn, err := d.db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	do := func(queries ...string) {
		t.Helper()
		for _, query := range queries {
			if _, err := conn.ExecContext(context.Background(), query); err != nil {
				t.Fatalf("%s: %v", query, err)
			}
		}
	}
	insert := "INSERT INTO old_" + d.name + " VALUES (999, 0)"
	switch d.dialect {
	case dialect.PostgreSQL:
		do("BEGIN", insert, "PREPARE TRANSACTION 'old'")
		rollBack = func() { do("ROLLBACK PREPARED 'old'") }
	case dialect.MySQL:
		xid := "'" + strings.TrimPrefix(d.name, "box_") + "'"
		do("XA START "+xid, insert, "XA END "+xid, "XA PREPARE "+xid)
		rollBack = func() { do("XA ROLLBACK " + xid) }
	default: // whose file has one writer
		var n int
		do("BEGIN DEFERRED")
		if err := conn.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+d.name).Scan(&n); err != nil {
			t.Fatal(err)
		}
		rollBack = func() { do("ROLLBACK") }
	}
	return func() { rollBack(); conn.Close() } //nolint:errcheck // nothing is lost
}
