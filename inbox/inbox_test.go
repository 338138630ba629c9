package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/inbox"
)

// do runs a message in a transaction, which commits unless Do fails.
func (d *database) do(t *testing.T, box *inbox.Inbox, m inbox.Message, fails error) (ran, repeat bool, err error) {
	t.Helper()
	tx, err := d.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // after the commit
	repeat, err = box.Do(t.Context(), d.store.In(tx), m, func(ctx context.Context) error {
		ran = true
		return errors.Join(d.effect(ctx, tx, m.ID, m.Key), fails)
	})
	if err == nil {
		err = tx.Commit()
	}
	return ran, repeat, err
}

func newInbox(t *testing.T, name string) *inbox.Inbox {
	t.Helper()
	box, err := inbox.New(name, &inbox.Options{Retention: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return box
}

// Done tells of effects that are committed, each for its consumer, and waits for no transaction.
func TestDone(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		billing, mail := newInbox(t, "billing"), newInbox(t, "mail")
		done := func(box *inbox.Inbox) bool {
			t.Helper()
			is, err := box.Done(t.Context(), d.db, d.store, "m1")
			if err != nil {
				t.Fatal(err)
			}
			return is
		}
		m := inbox.Message{ID: "m1", Key: "k", Time: time.Now()}
		tx, err := d.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback() //nolint:errcheck // after the commit
		if _, err := billing.Do(t.Context(), d.store.In(tx), m, func(context.Context) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if done(billing) {
			t.Error("done before the commit")
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if !done(billing) || done(mail) {
			t.Errorf("billing %v, mail %v", done(billing), done(mail))
		}
		if _, err := d.db.ExecContext(t.Context(), "UPDATE "+d.name+" SET expires = 1"); err != nil {
			t.Fatal(err)
		}
		if done(billing) {
			t.Error("done, though the table has forgotten")
		}
		if _, err := billing.Done(t.Context(), d.db, d.store, ""); !errors.Is(err, pawl.ErrInvalid) {
			t.Error(err)
		}
	})
}

// A message runs once for each consumer, and again only if it had failed.
func TestDo(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		bad := errors.New("bad")
		billing, mail := newInbox(t, "billing"), newInbox(t, "mail")
		m := inbox.Message{ID: "m1", Key: "k", Payload: []byte("content"), Time: time.Now()}
		for i, c := range []struct {
			box         *inbox.Inbox
			fails       error
			ran, repeat bool
		}{{billing, bad, true, false}, {billing, nil, true, false}, {billing, nil, false, true}, {mail, nil, true, false}, {billing, bad, false, true}} {
			ran, repeat, err := d.do(t, c.box, m, c.fails)
			if c.repeat {
				c.fails = nil
			}
			if ran != c.ran || repeat != c.repeat || !errors.Is(err, c.fails) {
				t.Errorf("%d: ran %v, repeat %v, %v", i, ran, repeat, err)
			}
		}
		if got := d.effects(t); len(got) != 2 {
			t.Errorf("effects of %q", got)
		}
		m.Payload = []byte("another")
		if ran, _, err := d.do(t, billing, m, nil); ran || !errors.Is(err, idem.ErrReused) {
			t.Errorf("another message with the same ID: %v, %v", ran, err)
		}
	})
}

// An old message never runs, also not when the note of its first run was swept. An old repeat whose note is there is a repeat.
func TestDoTooOld(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		box := newInbox(t, "billing")
		old := inbox.Message{ID: "old", Time: time.Now().Add(-time.Hour - time.Second)}
		if ran, _, err := d.do(t, box, old, nil); ran || !errors.Is(err, inbox.ErrTooOld) {
			t.Errorf("old: %v, %v", ran, err)
		}
		ahead := inbox.Message{ID: "ahead", Time: time.Now().Add(time.Hour + time.Minute)}
		if ran, _, err := d.do(t, box, ahead, nil); ran || !errors.Is(err, inbox.ErrAhead) {
			t.Errorf("ahead: %v, %v", ran, err)
		}
		young := inbox.Message{ID: "young", Time: time.Now().Add(-time.Hour + time.Minute)}
		if ran, _, err := d.do(t, box, young, nil); !ran || err != nil {
			t.Errorf("young: %v, %v", ran, err)
		}
		young.Time = old.Time
		if ran, repeat, err := d.do(t, box, young, nil); ran || !repeat || err != nil {
			t.Errorf("a repeat that is old: %v, %v, %v", ran, repeat, err)
		}
		if _, err := d.db.ExecContext(t.Context(), "UPDATE "+d.name+" SET expires = 1 WHERE name LIKE '%young'"); err != nil {
			t.Fatal(err)
		}
		if n, err := d.store.Sweep(t.Context(), d.db, 10); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if ran, _, err := d.do(t, box, young, nil); ran || !errors.Is(err, inbox.ErrTooOld) {
			t.Errorf("a repeat whose note was swept: %v, %v", ran, err)
		}
		if got := strings.Join(d.effects(t), " "); got != "young" {
			t.Errorf("effects of %q", got)
		}
	})
}

// While a transaction works on a message, another waits for its end and then is a repeat.
func TestDoAtOnce(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		box := newInbox(t, "billing")
		m := inbox.Message{ID: "m", Time: time.Now()}
		runs := make(chan bool)
		for range 8 {
			go func() {
				tx, err := d.db.BeginTx(t.Context(), nil)
				if err != nil {
					t.Error(err)
					runs <- false
					return
				}
				defer tx.Rollback() //nolint:errcheck // after the commit
				repeat, err := box.Do(t.Context(), d.store.In(tx), m, func(ctx context.Context) error { return d.effect(ctx, tx, "m", "") })
				if err = errors.Join(err, tx.Commit()); err != nil {
					t.Error(err)
				}
				runs <- !repeat
			}()
		}
		n := 0
		for range 8 {
			if <-runs {
				n++
			}
		}
		if got := d.effects(t); n != 1 || len(got) != 1 {
			t.Errorf("%d ran, effects of %q", n, got)
		}
	})
}

// Values out of range are refused with their names.
func TestRanges(t *testing.T) {
	for _, c := range []struct {
		name string
		opts inbox.Options
		says string
	}{{"", inbox.Options{}, "name"}, {"a\nb", inbox.Options{}, "name"}, {strings.Repeat("n", 201), inbox.Options{}, "name"},
		{"a", inbox.Options{Retention: time.Millisecond}, "Options.Retention"}, {"a", inbox.Options{Retention: 1 << 62}, "Options.Retention"}} {
		if _, err := inbox.New(c.name, &c.opts); !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	box := newInbox(t, "a")
	for says, opts := range map[string]inbox.ConsumerOptions{
		"Workers": {Workers: 1001}, "Window": {Workers: 9, Window: 8}, "MaxAttempts": {MaxAttempts: -1}, "MaxDeliveries": {MaxDeliveries: -1},
		"Timeout": {Timeout: 1}, "Backoff": {Backoff: 1}, "MaxBackoff": {Backoff: time.Second, MaxBackoff: time.Millisecond}, "Grace": {Grace: -1}, "source": {},
	} {
		handler := func(context.Context, *sql.Tx, inbox.Message) error { return nil }
		if _, err := box.Consumer(nil, nil, nil, handler, &opts); !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
}
