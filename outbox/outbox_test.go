package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/outbox"
)

// A rolled back message is never sent, and a committed one comes with all that was put in.
func TestMessagesAreThoseOfCommittedTransactions(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		tx, err := d.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		gone, err := d.table.Enqueue(t.Context(), tx, outbox.Message{Topic: "orders"})
		if err != nil {
			t.Fatal(err)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		want := outbox.Message{ID: "m 1", Topic: "orders", Key: "ключ", Headers: map[string]string{"a": "b"}, Payload: []byte{0, 1, 255}}
		d.enqueue(t, want)
		got := make(chan outbox.Message, 10)
		d.run(t, newClient(t), publish(func(_ context.Context, m outbox.Message) error { got <- m; return nil }), outbox.RelayOptions{})
		m := next(t, "a message is sent", got)
		if m.ID != want.ID || m.Topic != want.Topic || m.Key != want.Key || m.Headers["a"] != "b" || string(m.Payload) != string(want.Payload) || m.Attempt != 1 ||
			time.Since(m.Time).Abs() > time.Hour {
			t.Errorf("%+v", m)
		}
		until(t, "confirmed", func() bool { return d.is(t, outbox.Confirmed, "m 1") })
		if _, err := d.table.Status(t.Context(), d.db, gone[0]); !errors.Is(err, outbox.ErrUnknown) {
			t.Error(err)
		}
		if _, err := d.table.Enqueue(t.Context(), d.db, want); err == nil {
			t.Error("a second message of one ID is taken")
		}
		if len(got) > 0 {
			t.Errorf("%+v", <-got)
		}
	})
}

// order records the messages that a broker got.
type order struct {
	mu  sync.Mutex
	got []string
}

func (o *order) add(id string) { o.mu.Lock(); o.got = append(o.got, id); o.mu.Unlock() }

func (o *order) all() []string { o.mu.Lock(); defer o.mu.Unlock(); return slices.Clone(o.got) }

// A dead message halts its key and no other, until an operator requeues the message. With ContinueKeys the key goes on.
func TestADeadMessageHaltsItsKey(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		var sent order
		refuses := make(chan struct{})
		p := publish(func(_ context.Context, m outbox.Message) error {
			select {
			case <-refuses:
			default:
				if m.ID == "a1" {
					return fmt.Errorf("%w: too large \x00 %s", outbox.ErrRefused, strings.Repeat("é", 400))
				}
			}
			sent.add(m.ID)
			return nil
		})
		message := func(id, key string) outbox.Message { return outbox.Message{ID: id, Topic: "t", Key: key} }
		d.enqueue(t, message("a1", "a"), message("a2", "a"), message("b1", "b"), message("x", ""), message("a3", "a"))
		d.run(t, newClient(t), p, outbox.RelayOptions{MaxAttempts: 3, Rescan: 50 * time.Millisecond})
		until(t, "the others are confirmed", func() bool { return d.is(t, outbox.Confirmed, "b1", "x") })
		until(t, "dead", func() bool { return d.is(t, outbox.Dead, "a1") })
		d.enqueue(t, message("a4", "a"), message("b2", "b"))
		until(t, "b goes on", func() bool { return d.is(t, outbox.Confirmed, "b2") })
		if !d.is(t, outbox.Pending, "a2", "a3", "a4") {
			t.Error("the key is not halted: ", sent.all())
		}
		dead, err := d.table.DeadMessages(t.Context(), d.db, 10)
		if err != nil || len(dead) != 1 || dead[0].ID != "a1" || dead[0].Attempt != 3 || len(dead[0].Reason) > 500 || !strings.Contains(dead[0].Reason, "too large") {
			t.Errorf("%+v, %v", dead, err)
		}
		halted, err := d.table.HaltedKeys(t.Context(), d.db, 10)
		if want := []outbox.HaltedKey{{Key: "a", Dead: 1, Waiting: 3, ID: "a1", Reason: dead[0].Reason}}; err != nil || !slices.Equal(halted, want) {
			t.Errorf("%+v, %v", halted, err)
		}
		if err := d.table.Requeue(t.Context(), d.db, "a2"); !errors.Is(err, outbox.ErrNotDead) {
			t.Error(err)
		}
		if err := d.table.Requeue(t.Context(), d.db, "none"); !errors.Is(err, outbox.ErrUnknown) {
			t.Error(err)
		}
		close(refuses)
		if err := d.table.Requeue(t.Context(), d.db, "a1"); err != nil {
			t.Error(err)
		}
		until(t, "the key goes on", func() bool { return d.is(t, outbox.Confirmed, "a1", "a2", "a3", "a4") })
		of := slices.DeleteFunc(sent.all(), func(id string) bool { return id[0] != 'a' })
		if want := []string{"a1", "a2", "a3", "a4"}; !slices.Equal(of, want) {
			t.Error(of)
		}
	})
}

func TestContinueKeys(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		p := publish(func(_ context.Context, m outbox.Message) error {
			if m.ID == "a1" {
				return outbox.ErrRefused
			}
			return nil
		})
		d.enqueue(t, outbox.Message{ID: "a1", Topic: "t", Key: "a"}, outbox.Message{ID: "a2", Topic: "t", Key: "a"})
		d.run(t, newClient(t), p, outbox.RelayOptions{MaxAttempts: 2, ContinueKeys: true})
		until(t, "the key goes on", func() bool { return d.is(t, outbox.Confirmed, "a2") })
		if !d.is(t, outbox.Dead, "a1") {
			t.Error("not dead")
		}
	})
}

// A blocked broker costs no attempts. A failure of unknown outcome costs an attempt while the broker confirms other messages, and
// the message is sent again.
func TestAttempts(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		var mu sync.Mutex
		calls := 0
		p := publish(func(_ context.Context, m outbox.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if m.Key != "a" {
				return nil
			}
			switch calls++; {
			case calls <= 5:
				if m.Attempt != 1 {
					t.Error(m.Attempt)
				}
				return outbox.ErrBlocked
			case calls == 6:
				return errors.New("connection lost")
			}
			if m.Attempt == 1 {
				return errors.New("connection lost")
			}
			return nil
		})
		id := d.enqueue(t, outbox.Message{Topic: "t", Key: "a"})[0]
		d.run(t, newClient(t), p, outbox.RelayOptions{MaxAttempts: 3})
		until(t, "confirmed", func() bool {
			d.enqueue(t, outbox.Message{Topic: "t", Key: "b"})
			return d.is(t, outbox.Confirmed, id)
		})
	})
}

// A transaction that was open for longer than Lag is found by the rescan. An open transaction stops no other message.
func TestALateCommitIsFound(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		if d.dialect == dialect.SQLite {
			return // whose file has one writer, so that no transaction overtakes another
		}
		tx, err := d.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		late, err := d.table.Enqueue(t.Context(), tx, outbox.Message{Topic: "t", Key: "late"})
		if err != nil {
			t.Fatal(err)
		}
		d.run(t, newClient(t), publish(func(context.Context, outbox.Message) error { return nil }), outbox.RelayOptions{Lag: time.Nanosecond, Rescan: 300 * time.Millisecond})
		for range 50 {
			ids := d.enqueue(t, outbox.Message{Topic: "t", Key: "late"}, outbox.Message{Topic: "t"})
			until(t, "confirmed", func() bool { return d.is(t, outbox.Confirmed, ids...) })
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		until(t, "the late one is confirmed", func() bool { return d.is(t, outbox.Confirmed, late...) })
	})
}

// A key with more messages than fit into memory stops no other key, and keeps its order.
func TestAHotKey(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		var hot []outbox.Message
		for i := range 100 {
			hot = append(hot, outbox.Message{ID: fmt.Sprintf("hot %03d", i), Topic: "t", Key: "hot"})
		}
		ids := d.enqueue(t, hot...)
		for i := range 40 {
			d.enqueue(t, outbox.Message{ID: fmt.Sprint("cold ", i), Topic: "t", Key: fmt.Sprint(i)})
		}
		var sent order
		held := make(chan struct{})
		p := publish(func(ctx context.Context, m outbox.Message) error {
			if m.Key == "hot" {
				select {
				case <-held:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			sent.add(m.ID)
			return nil
		})
		d.run(t, newClient(t), p, outbox.RelayOptions{Window: 8})
		for i := range 40 {
			until(t, "the others are confirmed", func() bool { return d.is(t, outbox.Confirmed, fmt.Sprint("cold ", i)) })
		}
		close(held)
		until(t, "confirmed", func() bool { return d.is(t, outbox.Confirmed, ids[len(ids)-1]) })
		of := slices.DeleteFunc(sent.all(), func(id string) bool { return !strings.HasPrefix(id, "hot") })
		if !slices.IsSorted(of) || len(of) != 100 {
			t.Error(len(of), of)
		}
	})
}

// Confirmed messages are deleted after the retention, and dead ones are not.
func TestRetention(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		p := publish(func(_ context.Context, m outbox.Message) error {
			if m.ID == "dead" {
				return outbox.ErrRefused
			}
			return nil
		})
		d.enqueue(t, outbox.Message{ID: "old", Topic: "t", Key: "a"}, outbox.Message{ID: "dead", Topic: "t", Key: "a"})
		client := newClient(t)
		_, stop := d.run(t, client, p, outbox.RelayOptions{MaxAttempts: 1})
		until(t, "confirmed", func() bool { return d.is(t, outbox.Confirmed, "old") && d.is(t, outbox.Dead, "dead") })
		stop()
		if err := d.exec(t.Context(), d.db, "UPDATE "+d.name+" SET changed = changed - 8 * 86400"); err != nil {
			t.Fatal(err)
		}
		d.run(t, client, p, outbox.RelayOptions{})
		until(t, "deleted", func() bool {
			_, err := d.table.Status(t.Context(), d.db, "old")
			return errors.Is(err, outbox.ErrUnknown)
		})
		if !d.is(t, outbox.Dead, "dead") {
			t.Error("the dead message is gone")
		}
	})
}

func TestMigrate(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		fresh, err := outbox.New(d.dialect, &outbox.Options{Table: d.name + "_x"})
		if err != nil {
			t.Fatal(err)
		}
		if err := fresh.Check(t.Context(), d.db); !errors.Is(err, dialect.ErrMissing) {
			t.Error(err)
		}
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				if err := fresh.Migrate(t.Context(), d.db); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if err := d.exec(t.Context(), d.db, "UPDATE "+d.name+"_parts SET token = 9 WHERE part = -1"); err != nil {
			t.Fatal(err)
		}
		for name, err := range map[string]error{"Migrate": d.table.Migrate(t.Context(), d.db), "Check": d.table.Check(t.Context(), d.db)} {
			if !errors.Is(err, pawl.ErrMismatch) || !strings.Contains(err.Error(), "format 9") {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// A table of another program has the name of the messages. Migrate refuses that table, and makes no index of it. The error tells an operator
// which column differs.
func TestMigrateBesideAnotherTable(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		for name, columns := range map[string]string{"strange": "n bigint", "alike": "part bigint, state bigint, seq bigint"} {
			table := d.name + "_" + name
			other, err := outbox.New(d.dialect, &outbox.Options{Table: table})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := d.db.Exec("CREATE TABLE " + table + " (" + columns + ")"); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second call finds what the first one has made
				if err := other.Migrate(t.Context(), d.db); !errors.Is(err, pawl.ErrMismatch) || !strings.Contains(err.Error(), "table "+table+" has another shape") {
					t.Errorf("%s: %v", name, err)
				}
			}
			if _, err := d.db.Exec("SELECT * FROM " + table + "_parts"); err == nil {
				t.Errorf("%s: a table was made", name)
			}
			if n := d.indexes(t, table); n != 0 {
				t.Errorf("%s: %d indexes were made", name, n)
			}
		}
	})
}

// indexes returns how many indexes a table has.
func (d *database) indexes(t *testing.T, table string) (n int) {
	t.Helper()
	query := map[dialect.Dialect]string{dialect.PostgreSQL: "pg_indexes WHERE tablename = '", dialect.SQLite: "sqlite_master WHERE type = 'index' AND tbl_name = '",
		dialect.MySQL: "information_schema.statistics WHERE table_schema = DATABASE() AND table_name = '"}[d.dialect]
	if err := d.db.QueryRow("SELECT COUNT(*) FROM " + query + table + "'").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, dialect.SQLite)
	long := strings.Repeat("x", 256)
	many := make(map[string]string)
	for i := range 65 {
		many[fmt.Sprint(i)] = ""
	}
	for field, m := range map[string]outbox.Message{
		"ID": {ID: long, Topic: "t"}, "Topic": {}, "Key": {Topic: "t", Key: "\x00"}, "Payload": {Topic: "t", Payload: make([]byte, 101)}, "Headers": {Topic: "t", Headers: many},
	} {
		if _, err := d.table.Enqueue(t.Context(), d.db, outbox.Message{Topic: "t"}, m); !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), "Message."+field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, bad := range []string{"a\nb", "\x7f", " a", "a\t", "a\u00a0", "a\u0085b", "\xff"} { // which brokers refuse, or trim, or no consumer can note
		for field, m := range map[string]outbox.Message{"ID": {ID: bad, Topic: "t"}, "Topic": {Topic: bad}, "Key": {Topic: "t", Key: bad}} {
			if _, err := d.table.Enqueue(t.Context(), d.db, m); !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), "Message."+field) {
				t.Errorf("%s %q: %v", field, bad, err)
			}
		}
	}
	for _, n := range []int{0, 1001} {
		if _, err := d.table.Enqueue(t.Context(), d.db, make([]outbox.Message, n)...); !errors.Is(err, pawl.ErrInvalid) {
			t.Error(err)
		}
	}
	for _, opts := range []outbox.Options{{Table: "a b"}, {Table: strings.Repeat("x", 49)}, {MaxPayload: -1}, {MaxPayload: 1 << 24}} {
		if _, err := outbox.New(dialect.SQLite, &opts); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("%+v: %v", opts, err)
		}
	}
	p := publish(func(context.Context, outbox.Message) error { return nil })
	for field, opts := range map[string]outbox.RelayOptions{
		"Window": {Window: 1001}, "WindowBytes": {WindowBytes: 1}, "Balance": {Balance: 1}, "Hold": {Hold: 17}, "Timeout": {Timeout: 1}, "Poll": {Poll: -1}, "Lag": {Lag: -1}, "Rescan": {Rescan: 1}, "Backoff": {Backoff: 1},
		"MaxBackoff": {MaxBackoff: 1}, "MaxAttempts": {MaxAttempts: -1}, "Retention": {Retention: 1},
	} {
		if _, err := d.table.Relay(newClient(t), d.db, p, &opts); !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), "RelayOptions."+field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
