package sqliteengine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl/internal/sessiontest"
)

// TestManyProcessesAtOnce: processes that start together and want the same lock queue
// for the file. None of them fails, and none loses its session meanwhile.
func TestManyProcessesAtOnce(t *testing.T) {
	n := 40
	if os.Getenv("PAWL_TEST_SOAK") == "1" {
		n = 200
	}
	path, counter := file(t), filepath.Join(t.TempDir(), "counter")
	if err := os.WriteFile(counter, []byte("0 0"), 0o600); err != nil {
		t.Fatal(err)
	}
	var tasks sync.WaitGroup
	for range n {
		tasks.Go(func() {
			p := start(t, path, 5*time.Second)
			p.do("count gate %s 3", counter)
			if got := p.expect("counted "); got != "<nil>" {
				t.Error(got)
			}
			p.end()
		})
	}
	tasks.Wait()
	if left := rows(t, newEngine(t, path)); left != 0 {
		t.Errorf("%d rows or inboxes are left", left)
	}
}

// TestReadersWaitForNobody: while another process writes, or is stopped in the midst of
// it, an operator still reads.
func TestReadersWaitForNobody(t *testing.T) {
	path := file(t)
	writer := newEngine(t, path)
	sessiontest.Hold(t, open(t, writer, time.Hour), mutex("job", "held"))
	other := newEngine(t, path)
	update(t, other, `BEGIN IMMEDIATE`)
	defer update(t, other, `ROLLBACK`)
	end, err := other.turn.take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	ctx, cancel := contextFor(t, 10*time.Second)
	defer cancel()
	e, err := New(ctx, path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	r, err := e.Show(ctx, "job")
	if err != nil || len(r.Claims) != 1 || r.Claims[0].Held < 0 || r.Claims[0].Left <= 0 {
		t.Errorf("%+v, %v", r, err)
	}
	for name, err := range e.List(ctx, "") {
		if name != "job" || err != nil {
			t.Error(name, err)
		}
	}
	if v, err := e.Get(ctx, "none"); err != nil || v.Version != 0 {
		t.Error(v, err)
	}
}

// TestRenewalsPassOtherRequests: however many requests of a client are under way, its
// heartbeat waits for one or two of them.
func TestRenewalsPassOtherRequests(t *testing.T) {
	const requests = 300
	path := file(t)
	e, other := newEngine(t, path), newEngine(t, path)
	s := open(t, e, time.Hour)
	sessiontest.Hold(t, s, mutex("job", "held"))
	update(t, other, `BEGIN IMMEDIATE`)
	var entered atomic.Int64
	var tasks sync.WaitGroup
	for i := range requests {
		tasks.Go(func() {
			if _, err := s.Enter(t.Context(), mutex("job", fmt.Sprint("waits", i)), true); err != nil {
				t.Error(err)
			}
			entered.Add(1)
		})
	}
	renewed := make(chan int64)
	go func() {
		_, err := s.Renew(t.Context(), nil)
		if err != nil {
			t.Error(err)
		}
		renewed <- entered.Load()
	}()
	<-time.After(50 * time.Millisecond) // all ask by now, or come after the renewal
	update(t, other, `ROLLBACK`)
	if n := <-renewed; n > requests/3 {
		t.Errorf("%d requests came before the renewal", n)
	}
	tasks.Wait()
}

// TestTurnsThatAreGivenUp: a caller that gives up waiting leaves nothing behind but one goroutine.
// The turn goes to callers that still want it.
func TestTurnsThatAreGivenUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "turn")
	a, b, c := newTurn(path, 0o600), newTurn(path, 0o600), newTurn(path, 0o600)
	defer func() {
		for _, turn := range []*turn{a, b, c} {
			if err := turn.close(); err != nil {
				t.Error(err)
			}
		}
	}()
	end, err := a.take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		if _, err := b.take(ctx); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	got := make(chan func(), 1)
	go func() {
		end, err := c.take(t.Context())
		if err != nil {
			t.Error(err)
		}
		got <- end
	}()
	end()
	(<-got)()
	if end, err = b.take(t.Context()); err != nil {
		t.Fatal(err)
	}
	end()
}

// TestDeafWaitersAreAllTold: where nothing wakes a session, one of its waiters looks, and finds the
// grant of any of them.
func TestDeafWaitersAreAllTold(t *testing.T) {
	const waiters = 20
	path := file(t)
	e, other := newEngine(t, path), newEngine(t, path)
	if err := os.WriteFile(path+"-wake", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, holder := open(t, e, time.Hour), open(t, other, time.Hour)
	held := mutex("job", "held")
	sessiontest.Hold(t, holder, held)
	var results []<-chan sessiontest.Answer
	for i := range waiters {
		c := mutex("job", fmt.Sprint("waits", i))
		sessiontest.Wait(t, s, c)
		results = append(results, sessiontest.Awaiting(t, s, c))
	}
	sessiontest.Leave(t, holder, held)
	for i, got := range results {
		sessiontest.Granted(t, got)
		if err := holder.Leave(t.Context(), "job", fmt.Sprint("waits", i)); err != nil { // by another process
			t.Fatal(err)
		}
	}
}

// TestLogShrinks: a reader that keeps a transaction open makes the log grow. When it has
// gone the log is cut again.
func TestLogShrinks(t *testing.T) {
	path := file(t)
	e, reader := newEngine(t, path), newEngine(t, path)
	size := func() int64 {
		info, err := os.Stat(path + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	update(t, reader, `BEGIN; SELECT count(*) FROM pawl_meta`)
	const most = 4 << 20
	for i := 0; size() <= 2*most; i++ {
		if _, err := e.Put(t.Context(), fmt.Sprint(i), make([]byte, 60<<10), 0); err != nil {
			t.Fatal(err)
		}
	}
	update(t, reader, `ROLLBACK`)
	s := open(t, e, time.Hour)
	for i := 0; size() > most && i < 1000; i++ {
		c := mutex("job", fmt.Sprint(i))
		sessiontest.Hold(t, s, c)
		sessiontest.Leave(t, s, c)
	}
	if is := size(); is > most {
		t.Errorf("the log has %d bytes", is)
	}
}
