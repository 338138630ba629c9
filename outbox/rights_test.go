package outbox_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
)

// as makes a user without rights, and returns the database as this user sees it. Grant gives the user a right.
func (d *database) as(t *testing.T, user string) (seen *database, grant func(right string)) {
	t.Helper()
	user = user + strings.TrimPrefix(d.name, "box")
	do := func(query string) {
		t.Helper()
		if _, err := d.db.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	seen = &database{dialect: d.dialect, name: d.name}
	if d.dialect == dialect.PostgreSQL {
		do("CREATE ROLE " + user + " LOGIN")
		seen.source = strings.Replace(d.source, "postgres@", user+"@", 1)
	} else {
		do("CREATE USER " + user)
		do("CREATE TABLE seen_" + user + " (n int)") // without any right the user cannot connect to the database
		do("GRANT SELECT ON seen_" + user + " TO " + user)
		config := testservers.MariaDBConfig(testservers.SharedMariaDB(t).Addr)
		config.User, config.InterpolateParams = user, true
		seen.source = config.FormatDSN()
	}
	if err := seen.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { seen.db.Close() }) //nolint:errcheck // nothing is lost
	return seen, func(right string) { t.Helper(); do("GRANT " + right + " TO " + user) }
}

// withRights runs a test on the databases that have users, beside other tests.
func withRights(t *testing.T, test func(t *testing.T, d *database)) {
	t.Parallel()
	for _, kind := range []dialect.Dialect{dialect.PostgreSQL, dialect.MySQL} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			test(t, newDatabase(t, kind))
		})
	}
}

// faults keeps the errors that a relay tells.
type faults struct {
	mu  sync.Mutex
	all []string
}

func (f *faults) add(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, err.Error())
}

// some returns the first error with all of these texts that came since the last call of some.
func (f *faults) some(texts ...string) (found string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, text := range f.all {
		has := true
		for _, part := range texts {
			has = has && strings.Contains(text, part)
		}
		if has {
			f.all = f.all[i+1:]
			return text
		}
	}
	return ""
}

// A relay whose user lacks a right says which one and for which table, and sends nothing. The relay goes on when the user has the right.
func TestARelayWithoutRights(t *testing.T) {
	withRights(t, func(t *testing.T, d *database) {
		var ids []string
		for i := range 64 {
			ids = append(ids, d.enqueue(t, outbox.Message{Topic: "t", Key: []string{"a", "b", "c", "d"}[i%4]})...)
		}
		var sent order
		var faults faults
		relay, grant := d.as(t, "relay")
		client := newClient(t)
		_, stop := relay.run(t, client, publish(func(_ context.Context, m outbox.Message) error { sent.add(m.ID); return nil }), outbox.RelayOptions{OnError: faults.add})
		denied := func(table string) []string {
			if d.dialect == dialect.MySQL {
				return []string{" command denied to user ", "`" + table + "`"}
			}
			return []string{"permission denied for table " + table + " "}
		}
		parts := d.name + "_parts"
		for _, right := range []struct{ name, table, doing string }{
			{"SELECT", parts, "check: "},
			{"SELECT", d.name, ""},
			{"UPDATE", d.name, "relay: change table "},
			{"DELETE", d.name, "relay: delete from table "},
			{"UPDATE", parts, "relay: change table "},
		} {
			until(t, "without "+right.name+" on "+right.table, func() bool {
				said := faults.some(append(denied(right.table), "outbox: "+right.doing)...)
				if said != "" {
					t.Log(said)
				}
				return said != ""
			})
			if n := len(sent.all()); n > 0 {
				t.Errorf("%d messages are sent without %s on %s", n, right.name, right.table)
			}
			grant(right.name + " ON " + right.table)
		}
		until(t, "all is confirmed", func() bool { return d.is(t, outbox.Confirmed, ids...) })
		stop()
		if n := len(sent.all()); n != len(ids) {
			t.Errorf("%d sendings of %d messages", n, len(ids))
		}
		if err := d.exec(t.Context(), d.db, "UPDATE "+d.name+" SET changed = changed - 8 * 86400"); err != nil {
			t.Fatal(err)
		}
		relay.run(t, client, publish(func(context.Context, outbox.Message) error { return nil }), outbox.RelayOptions{})
		until(t, "the next relay deletes them after the retention", func() bool {
			var n int
			err := d.db.QueryRow("SELECT COUNT(*) FROM " + d.name).Scan(&n)
			return err == nil && n == 0
		})
	})
}

// A relay that loses a right while it runs says what it could not do, and goes on when the right is back. Nothing is lost or sent twice.
func TestARelayThatLosesARight(t *testing.T) {
	withRights(t, func(t *testing.T, d *database) {
		var sent order
		var faults faults
		relay, grant := d.as(t, "relay")
		user := map[dialect.Dialect]string{dialect.PostgreSQL: "current_user", dialect.MySQL: "SUBSTRING_INDEX(CURRENT_USER(), '@', 1)"}[d.dialect]
		if err := relay.db.QueryRow("SELECT " + user).Scan(&user); err != nil {
			t.Fatal(err)
		}
		for _, right := range []string{"SELECT, UPDATE, DELETE ON " + d.name, "SELECT, UPDATE ON " + d.name + "_parts"} {
			grant(right)
		}
		relay.run(t, newClient(t), publish(func(_ context.Context, m outbox.Message) error { sent.add(m.ID); return nil }), outbox.RelayOptions{OnError: faults.add})
		denied := map[dialect.Dialect]string{dialect.PostgreSQL: "permission denied", dialect.MySQL: "command denied"}[d.dialect]
		for _, lost := range []struct{ right, doing string }{
			{"SELECT ON " + d.name, "read messages: "},
			{"UPDATE ON " + d.name, "write results: "},
		} {
			ids := d.enqueue(t, outbox.Message{Topic: "t", Key: "k"}, outbox.Message{Topic: "t", Key: "other"})
			until(t, "confirmed", func() bool { return d.is(t, outbox.Confirmed, ids...) })
			if _, err := d.db.ExecContext(t.Context(), "REVOKE "+lost.right+" FROM "+user); err != nil {
				t.Fatal(err)
			}
			ids = d.enqueue(t, outbox.Message{Topic: "t", Key: "k"}, outbox.Message{Topic: "t", Key: "k"}, outbox.Message{Topic: "t", Key: "other"})
			until(t, "without "+lost.right, func() bool {
				said := faults.some("outbox: ", lost.doing, denied)
				if said != "" {
					t.Log(said)
				}
				return said != ""
			})
			until(t, "again, and again", func() bool { return faults.some(denied) != "" && faults.some(denied) != "" })
			if d.is(t, outbox.Confirmed, ids...) {
				t.Errorf("confirmed without %s", lost.right)
			}
			grant(lost.right)
			until(t, "confirmed", func() bool { return d.is(t, outbox.Confirmed, ids...) })
		}
		if n := len(sent.all()); n != 10 {
			t.Errorf("%d sendings of 10 messages", n)
		}
	})
}

// A producer without a right gets one clear error, and its transaction has no message.
func TestAProducerWithoutRights(t *testing.T) {
	withRights(t, func(t *testing.T, d *database) {
		producer, grant := d.as(t, "producer")
		enqueue := func() error {
			_, err := producer.table.Enqueue(t.Context(), producer.db, outbox.Message{ID: "1", Topic: "t"})
			return err
		}
		rights := []struct{ right, says string }{{"INSERT ON " + d.name, "INSERT command denied to user "}}
		if d.dialect == dialect.PostgreSQL {
			rights = []struct{ right, says string }{{"INSERT ON " + d.name, "permission denied for table " + d.name}, {"USAGE ON SEQUENCE " + d.name + "_seq_seq", "permission denied for sequence " + d.name}}
		}
		for _, right := range rights {
			err := enqueue()
			if err == nil || !strings.HasPrefix(err.Error(), "outbox: enqueue: ") || !strings.Contains(err.Error(), right.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("without %s: %v", right.right, err)
			}
			t.Log(err)
			grant(right.right)
		}
		if err := enqueue(); err != nil {
			t.Error(err)
		}
		if !d.is(t, outbox.Pending, "1") {
			t.Error("the message is lost")
		}
	})
}
