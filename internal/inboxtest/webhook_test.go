package inboxtest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/inbox"
	inboxhook "github.com/pawl-go/pawl/inbox/webhook"
	"github.com/pawl-go/pawl/internal/runtest"
	"github.com/pawl-go/pawl/outbox"
	"github.com/pawl-go/pawl/outbox/webhook"
)

// post is an outbox, and a consumer to which its relay posts.
type post struct {
	*database
	outbox *outbox.Table
	locks  engine.Engine // one store for all relays: another has tokens of its own
	url    string
	mu     sync.Mutex
	said   []string // by both OnError of the receiver
	ran    map[string]int
}

var goodSecret, wrongSecret = []byte("the secret of both sides"), []byte("the secret of another one")

func newPost(t *testing.T, d *database, opts inbox.ConsumerOptions) *post {
	t.Helper()
	p := &post{database: d, locks: memengine.New(), ran: make(map[string]int)}
	var err error
	if p.outbox, err = d.table(); err != nil {
		t.Fatal(err)
	}
	if err := p.outbox.Migrate(t.Context(), d.db); err != nil {
		t.Fatal(err)
	}
	said := func(err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.said = append(p.said, err.Error())
	}
	source, err := inboxhook.New(&inboxhook.Options{Secrets: [][]byte{goodSecret}, MaxBody: 1024, Wait: 100 * time.Millisecond, OnError: said})
	if err != nil {
		t.Fatal(err)
	}
	box, err := inbox.New("test", nil)
	if err != nil {
		t.Fatal(err)
	}
	opts.Backoff, opts.OnError = 50*time.Millisecond, said
	c, err := box.Consumer(d.db, d.store, source, p.handle, &opts)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(source)
	p.url = server.URL
	runtest.Start(t, c.Run)
	t.Cleanup(server.Close)
	return p
}

// handle takes effect, unless the key says what goes wrong.
func (p *post) handle(ctx context.Context, tx *sql.Tx, m inbox.Message) error {
	p.mu.Lock()
	p.ran[m.ID]++
	p.mu.Unlock()
	if err := p.effect(ctx, tx, m); err != nil {
		return err
	}
	switch m.Key {
	case "poison":
		return fmt.Errorf("%w: no such item", inbox.ErrRefused)
	case "fails":
		return errors.New("the item is locked by hand")
	}
	return nil
}

func (p *post) publisher(t *testing.T, secret []byte) *webhook.Publisher {
	t.Helper()
	to, err := webhook.New(p.url, webhook.Options{Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// relay runs a relay until a condition holds.
func (p *post) relay(t *testing.T, secret []byte, what string, holds func() bool) {
	t.Helper()
	client, err := pawl.New(t.Context(), p.locks, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(context.Background()) //nolint:errcheck // nothing is lost
	r, err := p.outbox.Relay(client, p.db, p.publisher(t, secret), &outbox.RelayOptions{Poll: 20 * time.Millisecond, MaxAttempts: 5, Backoff: time.Millisecond, MaxBackoff: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	stop := runtest.Start(t, r.Run)
	until(t, what, holds)
	stop()
}

func (p *post) status(t *testing.T, id string) outbox.Entry {
	t.Helper()
	e, err := p.outbox.Status(t.Context(), p.db, id)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// A message that will never take effect is dead at the producer, with the reason, and all other keys go on. A wrong secret makes no
// message dead.
func TestWebhookDeadLetters(t *testing.T) {
	databases(t, func(t *testing.T, d *database) {
		t.Parallel()
		p := newPost(t, d, inbox.ConsumerOptions{MaxAttempts: 4})
		tx, err := p.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback() //nolint:errcheck // after the commit there is nothing to undo
		var all []outbox.Message
		for _, key := range []string{"fails", "large", "old", "poison", "good"} {
			for n := range 3 {
				m := outbox.Message{ID: fmt.Sprint(key, "-", n), Topic: "t", Key: key, Payload: []byte("content")}
				if key == "large" {
					m.Payload = make([]byte, 1025)
				}
				all = append(all, m)
			}
		}
		if _, err := p.outbox.Enqueue(t.Context(), tx, all...); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.ExecContext(t.Context(), "UPDATE out_"+p.name+" SET created = created - 691200 WHERE id = 'old-0'"); err != nil { // 8 days
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		p.relay(t, wrongSecret, "requests are answered with 401", func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return strings.Count(strings.Join(p.said, "\n"), "401") >= 40 // more than attempts
		})
		for _, m := range all {
			if e := p.status(t, m.ID); m.Key != "large" && (e.State != outbox.Pending || e.Attempt > 0) { // a large one is not read to its end
				t.Errorf("%s is %v after a wrong secret", m.ID, e.State)
			}
		}
		bad := map[string]string{"fails": "failed 4 times", "large": "413", "old": inbox.ErrTooOld.Error(), "poison": "no such item"}
		p.relay(t, goodSecret, "all keys are through or halted", func() bool {
			for key := range bad {
				if p.status(t, key+"-0").State != outbox.Dead {
					return false
				}
			}
			return p.status(t, "good-2").State == outbox.Confirmed
		})
		p.checkHalted(t, bad)
	})
}

// checkHalted compares the halted keys with the reasons that they should have. Nothing but the good messages took effect.
func (p *post) checkHalted(t *testing.T, bad map[string]string) {
	t.Helper()
	halted, err := p.outbox.HaltedKeys(t.Context(), p.db, 10)
	if err != nil || len(halted) != len(bad) {
		t.Errorf("%d keys are halted, %v", len(halted), err)
	}
	for _, k := range halted {
		if k.ID != k.Key+"-0" || k.Waiting != 2 || !strings.Contains(k.Reason, bad[k.Key]) {
			t.Errorf("%+v, want the reason %q", k, bad[k.Key])
		}
	}
	effects, err := p.effects(t.Context())
	if err != nil || !slices.Equal(effects, []string{"good-0", "good-1", "good-2"}) {
		t.Errorf("these took effect: %v, %v", effects, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ran["old-0"] > 0 || p.ran["large-0"] > 0 || p.ran["poison-0"] != 1 || p.ran["fails-0"] != 4 {
		t.Errorf("these ran: %v", p.ran)
	}
}

// A repeat is confirmed, takes no effect again, and replies again. Another message with the ID is refused.
func TestWebhookRepeat(t *testing.T) {
	databases(t, func(t *testing.T, d *database) {
		t.Parallel()
		var replies atomic.Int64
		p := newPost(t, d, inbox.ConsumerOptions{Reply: func(context.Context, inbox.Message) error { replies.Add(1); return nil }})
		to := p.publisher(t, goodSecret)
		m := outbox.Message{ID: "1", Topic: "t", Key: "good", Payload: []byte("content"), Time: time.Now()}
		for range 3 {
			until(t, "it is confirmed", func() bool {
				err := to.Publish(t.Context(), m)
				if err != nil && !errors.Is(err, outbox.ErrBlocked) { // the consumer may not run yet
					t.Fatal(err)
				}
				return err == nil
			})
		}
		m.Payload = []byte("changed")
		until(t, "it has an answer", func() bool { return !errors.Is(to.Publish(t.Context(), m), outbox.ErrBlocked) })
		if err := to.Publish(t.Context(), m); !errors.Is(err, outbox.ErrRefused) {
			t.Error(err)
		}
		effects, err := p.effects(t.Context())
		if err != nil || len(effects) != 1 || replies.Load() < 3 {
			t.Errorf("effects: %v, %v; %d replies", effects, err, replies.Load())
		}
	})
}
