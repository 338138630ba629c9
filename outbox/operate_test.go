package outbox_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/outbox"
)

// states puts two messages in each state: with the key of the state, and the IDs "STATE-0" and "STATE-1".
func (d *database) states(t *testing.T) {
	t.Helper()
	for state := outbox.Pending; state <= outbox.Dead; state++ {
		for i := range 2 {
			id := fmt.Sprintf("%v-%d", state, i)
			d.enqueue(t, outbox.Message{ID: id, Topic: "t", Key: state.String(), Headers: map[string]string{"h": "v"}, Payload: []byte("p")})
			kept, attempt := int(state), 0
			if state == outbox.Sent {
				kept, attempt = 0, 1
			}
			err := d.exec(t.Context(), d.db, "UPDATE "+d.name+" SET state = ?, attempt = ?, created = created - 100, changed = changed - ? WHERE id = ?", kept, attempt, 100*(1-i), id)
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

func ids(all []outbox.Entry) (ids []string) {
	for _, e := range all {
		ids = append(ids, e.ID)
	}
	return ids
}

func TestSummary(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		if s, err := d.table.Summary(t.Context(), d.db); err != nil || s != (outbox.Summary{}) {
			t.Fatalf("empty: %+v, %v", s, err)
		}
		d.states(t)
		s, err := d.table.Summary(t.Context(), d.db)
		if err != nil || s.Oldest.IsZero() || s.Lag < 100*time.Second || s.Lag > time.Hour {
			t.Fatalf("%+v, %v", s, err)
		}
		s.Oldest, s.Lag = time.Time{}, 0
		if want := (outbox.Summary{Pending: 2, Sent: 2, Confirmed: 2, Done: 2, Dead: 2, HaltedKeys: 1}); s != want {
			t.Errorf("%+v, want %+v", s, want)
		}
	})
}

func TestList(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		d.states(t)
		for _, c := range []struct {
			filter outbox.Filter
			want   string
		}{
			{outbox.Filter{States: []outbox.State{outbox.Pending}}, "[pending-0 pending-1]"},
			{outbox.Filter{States: []outbox.State{outbox.Sent, outbox.Dead}}, "[sent-0 sent-1 dead-0 dead-1]"},
			{outbox.Filter{Key: "done"}, "[done-0 done-1]"},
			{outbox.Filter{Key: "done", States: []outbox.State{outbox.Sent}}, "[]"},
			{outbox.Filter{Limit: 3}, "[pending-0 pending-1 sent-0]"},
		} {
			all, err := d.table.List(t.Context(), d.db, c.filter)
			if got := fmt.Sprint(ids(all)); err != nil || got != c.want {
				t.Errorf("%+v: %v, %v, want %v", c.filter, got, err, c.want)
			}
			for _, e := range all {
				if len(e.Payload) != 0 || e.Headers["h"] != "v" {
					t.Errorf("%s has payload %q and headers %v", e.ID, e.Payload, e.Headers)
				}
			}
		}
		for _, wrong := range []outbox.Filter{{Limit: -1}, {Limit: 1001}, {States: []outbox.State{9}}} {
			if _, err := d.table.List(t.Context(), d.db, wrong); !errors.Is(err, pawl.ErrInvalid) {
				t.Errorf("%+v: %v", wrong, err)
			}
		}
	})
}

func TestRequeueDead(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		d.states(t)
		for _, c := range []struct {
			key  string
			want int64
		}{{"done", 0}, {"dead", 2}, {"", 0}} {
			if n, err := d.table.RequeueDead(t.Context(), d.db, c.key); err != nil || n != c.want {
				t.Errorf("key %q: %d, %v, want %d", c.key, n, err, c.want)
			}
		}
		if !d.is(t, outbox.Pending, "dead-0", "dead-1") || !d.is(t, outbox.Done, "done-0") {
			t.Error("the wrong messages are pending")
		}
		for way, requeue := range map[string]func() error{
			"by its ID":  func() error { return d.table.Requeue(t.Context(), d.db, "dead-1") },
			"by its key": func() error { _, err := d.table.RequeueDead(t.Context(), d.db, "dead"); return err },
		} {
			if err := d.exec(t.Context(), d.db, "UPDATE "+d.name+" SET state = 4, attempt = 9, reason = 'no' WHERE id = 'dead-1'"); err != nil {
				t.Fatal(err)
			}
			if err := requeue(); err != nil {
				t.Error(way, err)
			}
			if e, err := d.table.Status(t.Context(), d.db, "dead-1"); err != nil || e.State != outbox.Pending || e.Attempt != 0 || e.Reason != "" {
				t.Errorf("%s: %+v, %v: the reason is of a sending that no longer counts", way, e, err)
			}
		}
	})
}

func TestPurge(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		d.states(t)
		every := []outbox.State{outbox.Confirmed, outbox.Done, outbox.Dead}
		for _, c := range []struct {
			older  time.Duration
			states []outbox.State
			want   int64
		}{{time.Hour, every, 0}, {50 * time.Second, every[1:2], 1}, {50 * time.Second, every[:2], 1}, {50 * time.Second, every, 1}, {0, every[:2], 2}, {0, every[2:], 1}, {0, every, 0}} {
			if n, err := d.table.Purge(t.Context(), d.db, c.older, c.states...); err != nil || n != c.want {
				t.Errorf("%+v: %d, %v", c, n, err)
			}
		}
		if all, err := d.table.List(t.Context(), d.db, outbox.Filter{}); err != nil || fmt.Sprint(ids(all)) != "[pending-0 pending-1 sent-0 sent-1]" {
			t.Errorf("left: %v, %v", ids(all), err)
		}
		for _, c := range []struct {
			older  time.Duration
			states []outbox.State
		}{{-1, every}, {0, nil}, {0, []outbox.State{outbox.Pending}}, {0, []outbox.State{outbox.Done, 5}}} {
			if _, err := d.table.Purge(t.Context(), d.db, c.older, c.states...); !errors.Is(err, pawl.ErrInvalid) {
				t.Errorf("%+v: %v", c, err)
			}
		}
	})
}
