package inbox

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/idem/sqlidem"
)

// memory is a source in memory.
type memory struct {
	mu   sync.Mutex
	all  []*held
	dead []string
	bell chan struct{}
}

// held is a message of memory.
type held struct {
	*memory
	m       Message
	stale   bool         // its feed has ended
	refuses func() error // a dead letter, or nil
}

// put puts messages behind all others.
func (s *memory) put(all ...*held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, all...)
	select {
	case s.bell <- struct{}{}:
	default:
	}
}

func (s *memory) Open(context.Context, bool) (Feed, error) { return s, nil }
func (s *memory) Hold() time.Duration                      { return 0 }
func (s *memory) Extend(context.Context) error             { return nil }
func (s *memory) Close(context.Context) error              { return nil }

func (s *memory) Receive(ctx context.Context, most int) (got []Delivery, _ error) {
	for {
		s.mu.Lock()
		n := min(most, len(s.all))
		for _, h := range s.all[:n] {
			got = append(got, h)
		}
		s.all = slices.Delete(s.all, 0, n)
		s.mu.Unlock()
		if len(got) > 0 {
			return got, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.bell:
		}
	}
}

func (h *held) Message() Message                      { return h.m }
func (h *held) Count() int                            { return 1 }
func (h *held) Unload()                               {}
func (h *held) Load(context.Context) (Message, error) { return h.m, nil }
func (h *held) Ack(context.Context) error             { return nil }

func (h *held) Dead(context.Context, string) error {
	if h.refuses != nil {
		return h.refuses()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stale {
		return ErrTaken
	}
	h.dead = append(h.dead, h.m.ID)
	return nil
}

func (h *held) Nack(context.Context) error {
	h.put(h)
	return nil
}

// consume runs a consumer of a source in memory until the test calls stop. The database is at a path.
func consume(t *testing.T, path string, opts ConsumerOptions, handler Handler) (s *memory, stop func()) {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.ToSlash(path)+"?_txlock=immediate&_pragma=journal_mode(wal)")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	store, err := sqlidem.New(dialect.SQLite, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	box, err := New("test", nil)
	if err != nil {
		t.Fatal(err)
	}
	s = &memory{bell: make(chan struct{}, 1)}
	c, err := box.Consumer(db, store, s, handler, &opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	return s, func() {
		cancel()
		if err := errors.Join(<-ended, db.Close()); err != nil {
			t.Error(err)
		}
	}
}

// send makes messages.
func (s *memory) send(ids ...string) {
	var all []*held
	for _, id := range ids {
		all = append(all, &held{memory: s, m: Message{ID: id, Key: id[:1], Time: time.Now()}})
	}
	s.put(all...)
}

// book is what took effect.
type book struct {
	mu  sync.Mutex
	ids []string
}

func (b *book) note(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ids = append(b.ids, id)
}

// key returns the IDs of a key.
func (b *book) key(key string) (ids []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range b.ids {
		if id[:1] == key {
			ids = append(ids, id)
		}
	}
	return ids
}

// TestFullWindow: a key keeps its order, however long the window is full.
func TestFullWindow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	synctest.Test(t, func(t *testing.T) {
		var b book
		open := make(chan struct{})
		s, stop := consume(t, path, ConsumerOptions{Workers: 6, Window: 8, Timeout: time.Hour}, func(_ context.Context, _ *sql.Tx, m Message) error {
			select {
			case <-open:
			default:
				if m.Key == "a" {
					return errors.New("bad luck")
				}
				<-open
			}
			b.note(m.ID)
			return nil
		})
		defer stop()
		s.send("a1", "a2", "a3", "a4", "a5")
		<-time.After(300 * time.Millisecond) // a1 has failed, and a3 is parked
		s.send("b1", "c1", "d1", "e1", "f1", "g1")
		<-time.After(2 * time.Minute) // the window is full
		s.send("a6", "a7")
		close(open)
		<-time.After(2 * time.Minute)
		if got := b.key("a"); !slices.Equal(got, []string{"a1", "a2", "a3", "a4", "a5", "a6", "a7"}) {
			t.Error(got)
		}
	})
}

// TestFullOfFailures: messages of other keys run though very many keys fail, and all of those become dead letters at last.
func TestFullOfFailures(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	synctest.Test(t, func(t *testing.T) {
		var b book
		s, stop := consume(t, path, ConsumerOptions{MaxAttempts: 10}, func(_ context.Context, _ *sql.Tx, m Message) error {
			if m.Key != "z" && m.ID[1:] == "1" {
				b.note("!" + m.ID)
				return errors.New("bad luck")
			}
			b.note(m.ID)
			return nil
		})
		defer stop()
		const keys = 64
		for i := range keys {
			key := string(rune('0' + i))
			s.send(key+"1", key+"2")
		}
		<-time.After(5 * time.Second)
		for n := range 9 {
			s.send("z" + string(rune('1'+n)))
			<-time.After(time.Second)
		}
		if got := b.key("z"); len(got) != 9 || !slices.IsSorted(got) {
			t.Error(got)
		}
		<-time.After(10 * time.Minute)
		runs := len(b.key("!"))
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.dead) != keys || runs != 10*keys || len(b.ids) != runs+keys+9 || len(s.all) > 0 {
			t.Errorf("%d dead letters after %d runs, %d have run, and %d are left", len(s.dead), runs, len(b.ids), len(s.all))
		}
	})
}

// TestReusedID: of two messages with one ID and other content that come at once, one takes effect. The other is a dead letter.
func TestReusedID(t *testing.T) {
	for name, keys := range map[string][2]string{"one key": {"k", "k"}, "two keys": {"k", "l"}, "no key": {}} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "test.db")
			synctest.Test(t, func(t *testing.T) {
				var b book
				open := make(chan struct{})
				s, stop := consume(t, path, ConsumerOptions{}, func(_ context.Context, _ *sql.Tx, m Message) error {
					<-open
					b.note(m.ID)
					return nil
				})
				defer stop()
				for i, key := range keys {
					s.put(&held{memory: s, m: Message{ID: "m", Key: key, Time: time.Now(), Payload: []byte{byte(i)}}})
				}
				synctest.Wait() // the first runs
				close(open)
				<-time.After(time.Minute)
				s.mu.Lock()
				defer s.mu.Unlock()
				if runs := b.key("m"); len(runs) != 1 || len(s.dead) != 1 {
					t.Errorf("%d ran, and %d are dead letters", len(runs), len(s.dead))
				}
			})
		})
	}
}

// TestDeadOfLastDelivery: a message that came again during its last run is a dead letter. The feed of its first delivery may have ended.
func TestDeadOfLastDelivery(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		s, stop := consume(t, path, ConsumerOptions{MaxAttempts: 1}, func(context.Context, *sql.Tx, Message) error {
			<-open
			return errors.New("bad luck")
		})
		defer stop()
		m := Message{ID: "a1", Key: "a", Time: time.Now()}
		s.put(&held{memory: s, m: m, stale: true})
		synctest.Wait()
		s.put(&held{memory: s, m: m})
		synctest.Wait()
		close(open)
		<-time.After(time.Minute)
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.dead) != 1 {
			t.Errorf("%d dead letters", len(s.dead))
		}
	})
}

// TestDeadOfLostDelivery: a message that is with another reader is called no dead letter. This process is done with that delivery, and gives earlier ones back.
func TestDeadOfLostDelivery(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	synctest.Test(t, func(t *testing.T) {
		var errs []string
		tell := func(err error) { errs = append(errs, err.Error()) }
		runs := 0
		open := make(chan struct{})
		s, stop := consume(t, path, ConsumerOptions{MaxAttempts: 1, OnError: tell, Workers: 1}, func(context.Context, *sql.Tx, Message) error {
			runs++
			<-open
			return errors.New("bad luck")
		})
		m := Message{ID: "a1", Key: "a", Time: time.Now()}
		s.put(&held{memory: s, m: m, stale: true})
		synctest.Wait()
		s.put(&held{memory: s, m: m, stale: true})
		synctest.Wait()
		open <- struct{}{}
		synctest.Wait() // the first delivery was given back, and runs again
		open <- struct{}{}
		<-time.After(time.Minute)
		stop()
		if all := strings.Join(errs, "\n"); runs != 2 || strings.Contains(all, "is a dead letter") || strings.Count(all, "another reader") != 2 {
			t.Errorf("%d runs: %s", runs, all)
		}
	})
}

// TestOrderOfALostDelivery: where one process reads, a message that is no dead letter because it comes again runs before the next of its key. The
// key does not wait for ever.
func TestOrderOfALostDelivery(t *testing.T) {
	for name, comes := range map[string]bool{"the message comes again": true, "the broker has dropped the message": false} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "test.db")
			synctest.Test(t, func(t *testing.T) {
				client, err := pawl.New(t.Context(), memengine.New(), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer client.Close(context.Background()) //nolint:errcheck // the test is over
				var effects []string
				well := false
				opts := ConsumerOptions{MaxAttempts: 1, Backoff: time.Millisecond, MaxBackoff: time.Second, Single: client.Mutex("single"), OnError: func(error) {}}
				s, stop := consume(t, path, opts, func(_ context.Context, _ *sql.Tx, m Message) error {
					if m.ID == "a1" && !well {
						return errors.New("bad luck")
					}
					effects = append(effects, m.ID)
					return nil
				})
				first := Message{ID: "a1", Key: "a", Time: time.Now()}
				s.put(&held{memory: s, m: first, stale: true}, &held{memory: s, m: Message{ID: "a2", Key: "a", Time: time.Now()}})
				<-time.After(time.Minute) // the broker is away
				synctest.Wait()
				want := []string{"a2"}
				if comes {
					well, want = true, []string{"a1", "a2"}
					s.put(&held{memory: s, m: first})
				}
				<-time.After(time.Hour)
				stop()
				if !slices.Equal(effects, want) {
					t.Errorf("%q took effect, want %q", effects, want)
				}
			})
		})
	}
}

// TestStopped: the end of the consumer is no failure of a message whose handler ends with its context.
func TestStopped(t *testing.T) {
	for name, end := range map[string]func(ctx context.Context, tx *sql.Tx) error{
		"with the context":     func(ctx context.Context, _ *sql.Tx) error { return ctx.Err() },
		"with the transaction": func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() },
		"well":                 func(context.Context, *sql.Tx) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "test.db")
			synctest.Test(t, func(t *testing.T) {
				runs := make(chan struct{})
				s, stop := consume(t, path, ConsumerOptions{MaxAttempts: 1, Grace: time.Millisecond}, func(ctx context.Context, tx *sql.Tx, _ Message) error {
					close(runs)
					<-ctx.Done()
					synctest.Wait() // the transaction has ended as well
					return end(ctx, tx)
				})
				s.send("a1")
				<-runs
				stop()
				if len(s.dead) > 0 || len(s.all) != 1 {
					t.Errorf("%q are dead letters, and %d are left", s.dead, len(s.all))
				}
			})
		})
	}
}

// TestFullDisk: a database whose disk is full makes no dead letter, and takes the message when there is room again.
func TestFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	synctest.Test(t, func(t *testing.T) {
		var pages, took atomic.Int64
		pages.Store(1) // SQLite raises that to the pages in use
		s, stop := consume(t, path, ConsumerOptions{MaxAttempts: 3}, func(ctx context.Context, tx *sql.Tx, _ Message) error {
			if _, err := tx.ExecContext(ctx, "PRAGMA max_page_count = "+strconv.FormatInt(pages.Load(), 10)); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, "CREATE TABLE effect AS SELECT randomblob(100000) AS large")
			if err == nil {
				took.Add(1)
			}
			return err
		})
		defer stop()
		s.send("a1")
		<-time.After(time.Hour)
		s.mu.Lock()
		if len(s.dead) > 0 || took.Load() > 0 {
			t.Errorf("%q are dead letters, and %d took effect", s.dead, took.Load())
		}
		s.mu.Unlock()
		pages.Store(1_000_000)
		<-time.After(2 * time.Minute)
		if took.Load() != 1 {
			t.Errorf("%d took effect when there was room", took.Load())
		}
	})
}
