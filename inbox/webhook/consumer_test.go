package webhook

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem/sqlidem"
	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/internal/runtest"
	"github.com/pawl-go/pawl/outbox"
	sender "github.com/pawl-go/pawl/outbox/webhook"
)

// gate lets the consumer learn late that the first message is settled.
type gate struct {
	inbox.Source
	once sync.Once
	shut chan struct{} // closed when the source has settled the message
	open chan struct{} // closed by the test
}

func (g *gate) Open(ctx context.Context, single bool) (inbox.Feed, error) {
	f, err := g.Source.Open(ctx, single)
	return gatedFeed{f, g}, err
}

func (g *gate) pass() { g.once.Do(func() { close(g.shut); <-g.open }) }

type gatedFeed struct {
	inbox.Feed
	gate *gate
}

func (f gatedFeed) Receive(ctx context.Context, most int) ([]inbox.Delivery, error) {
	all, err := f.Feed.Receive(ctx, most)
	for i, d := range all {
		all[i] = gated{d, f.gate}
	}
	return all, err
}

type gated struct {
	inbox.Delivery
	gate *gate
}

func (d gated) Ack(ctx context.Context) error {
	defer d.gate.pass()
	return d.Delivery.Ack(ctx)
}

func (d gated) Dead(ctx context.Context, reason string) error {
	defer d.gate.pass()
	return d.Delivery.Dead(ctx, reason)
}

// consume runs a consumer. A message of the key "poison" is refused, and one of the key "wait" runs until the consumer ends.
func consume(t *testing.T, source inbox.Source, began, ended chan<- struct{}) (stop func()) {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.ToSlash(filepath.Join(t.TempDir(), "test.db"))+"?_pragma=busy_timeout(20000)&_pragma=journal_mode(wal)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() }) //nolint:errcheck // nothing is lost
	store, err := sqlidem.New(dialect.SQLite, nil)
	if err == nil {
		err = store.Migrate(t.Context(), db)
	}
	box, err2 := inbox.New("test", nil)
	if err = errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	c, err := box.Consumer(db, store, source, func(ctx context.Context, _ *sql.Tx, m inbox.Message) error {
		switch m.Key {
		case "poison":
			return inbox.ErrRefused
		case "wait":
			close(began)
			<-ctx.Done()
			close(ended)
			return ctx.Err()
		}
		return nil
	}, &inbox.ConsumerOptions{Grace: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return runtest.Start(t, c.Run)
}

// TestLate: a repeat of a message comes while the consumer settles that message. The sender is told to come again, because the fate of the
// repeat is not known, and nothing of it stays. So it is when the consumer ends meanwhile.
func TestLate(t *testing.T) {
	for name, c := range map[string]struct {
		key  string
		want error // of the first message
		ends bool
	}{"took": {"k", nil, false}, "refused": {"poison", outbox.ErrRefused, false}, "took, and the end": {"k", nil, true}, "refused, and the end": {"poison", outbox.ErrRefused, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHook(t, Options{})
			if err := h.feed.Close(t.Context()); err != nil { // the consumer has the only one
				t.Fatal(err)
			}
			g := &gate{Source: h.Source, shut: make(chan struct{}), open: make(chan struct{})}
			began, ended := make(chan struct{}), make(chan struct{})
			stop := consume(t, g, began, ended)
			h.until(t, "the consumer reads", func() bool { return h.feeds == 1 })
			first, late, third := event("1"), event("1"), event("2")
			first.Key, late.Key, third.Key = c.key, c.key, "wait"
			late.Time = late.Time.Add(-time.Second) // so that the source does not know it
			if err := <-h.send(t, first, nil); !errors.Is(err, c.want) {
				t.Fatal(err)
			}
			<-g.shut
			result := h.send(t, late, nil)
			handed := func(id string) func() bool { return func() bool { return h.held[id] != nil && h.held[id].handed } }
			h.until(t, "the consumer has the late message", handed("1"))
			wait := h.send(t, third, nil)
			<-began // so the consumer has asked for more
			if c.ends {
				go stop()
				<-ended
			}
			close(g.open)
			if err := <-result; !errors.Is(err, outbox.ErrBlocked) {
				t.Errorf("the late message: %v", err)
			}
			stop()
			<-wait
			h.until(t, "nothing stays", func() bool { return len(h.held)+len(h.queue) == 0 })
		})
	}
}

// TestBadIDs: an ID that no inbox takes makes a dead letter.
func TestBadIDs(t *testing.T) {
	h := newHook(t, Options{})
	consume(t, h.Source, nil, nil)
	if err := h.feed.Close(t.Context()); err != nil { // the consumer has the only one
		t.Fatal(err)
	}
	h.until(t, "the consumer reads", func() bool { return h.feeds == 1 })
	for id, want := range map[string]int{strings.Repeat("n", 255): 204, strings.Repeat("n", 256): 422, "a\tb": 422, "a\xffb": 422} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = http.Header{"Ce-Id": {id}, "Ce-Time": {time.Now().Format(time.RFC3339)}, sender.HeaderID: {id}}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close() //nolint:errcheck // it is not read
		if answer.StatusCode != want {
			t.Errorf("%q: %d, want %d", id, answer.StatusCode, want)
		}
	}
}
