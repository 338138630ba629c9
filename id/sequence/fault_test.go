package sequence_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/id/sequence"
	"github.com/pawl-go/pawl/internal/idtest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// load is clients that take numbers until they are ended.
type load struct {
	t       testing.TB
	check   idtest.Checker[int64]
	clients []*client
	ctx     context.Context
	end     context.CancelFunc
	group   sync.WaitGroup
}

// client is one process of a load.
type client struct {
	sequence *sequence.Sequence
	given    atomic.Int64
	slow     atomic.Int64 // calls that took longer than half of the bound
	failed   atomic.Int64
	frozen   atomic.Bool // so calls are timed
}

func newLoad(t testing.TB) *load {
	l := &load{t: t}
	l.check.Unordered = true
	l.ctx, l.end = context.WithCancel(t.Context())
	t.Cleanup(l.group.Wait)
	t.Cleanup(l.end)
	return l
}

func (l *load) client(s *sequence.Sequence) {
	c := &client{sequence: s}
	l.clients = append(l.clients, c)
	for g := range 4 {
		log := l.check.Log()
		l.group.Go(func() {
			dst := make([]int64, 1+g)
			for l.ctx.Err() == nil {
				started := time.Now()
				n, err := s.NextN(l.ctx, dst)
				log.Add(dst[:n]...)
				if l.ctx.Err() != nil {
					return
				}
				if c.frozen.Load() && time.Since(started) > patience/2 {
					c.slow.Add(1)
				}
				c.given.Add(int64(n))
				if err != nil {
					c.failed.Add(1)
					l.t.Error(err)
					return
				}
			}
		})
	}
}

// goOn waits until each client got some more numbers.
func (l *load) goOn() {
	l.t.Helper()
	for _, c := range l.clients {
		want := c.given.Load() + 50
		until(l.t, "more numbers", func() bool { return c.given.Load() >= want || c.failed.Load() > 0 })
	}
}

// are waits until all clients find a database good, or not.
func (l *load) are(i int, good bool) {
	l.t.Helper()
	for _, c := range l.clients {
		until(l.t, "the state is found out", func() bool { return c.sequence.States()[i].Good == good })
	}
}

func (l *load) time(on bool) {
	for _, c := range l.clients {
		c.frozen.Store(on)
	}
}

// TestFrozen: databases hang, one at a time. Four clients take numbers meanwhile: none fails, each waits
// long at most once for each freeze, and no number comes twice.
func TestFrozen(t *testing.T) {
	pg, my, file := testservers.Postgres(t), testservers.MariaDB(t), filepath.Join(t.TempDir(), "ids.db")
	l, opts := newLoad(t), sequence.Options{Step: 3, Table: "seq"}
	for range 4 {
		l.client(open(t, []sequence.Database{postgres(t, pg.Addr), mariadb(t, my.Addr), sqlite(t, file)}, opts))
	}
	for i, server := range []*testservers.Server{pg, my} {
		l.goOn()
		l.time(true)
		server.Pause()
		l.goOn()
		l.are(i, false)
		l.goOn()
		l.time(false)
		server.Resume()
		l.are(i, true)
		l.goOn()
	}
	l.end()
	l.group.Wait()
	n, err := l.check.Check()
	if err != nil {
		t.Error(err)
	}
	for i, c := range l.clients {
		if slow := c.slow.Load(); slow > 2 { // two freezes
			t.Errorf("client %d had %d slow calls", i, slow)
		}
	}
	t.Logf("%d numbers", n)
}

// locks has a transaction lock all numbers.
func locks(t *testing.T, d sequence.Database) *sql.Tx {
	t.Helper()
	tx, err := d.DB.BeginTx(t.Context(), nil)
	if err == nil {
		_, err = tx.Exec("UPDATE seq_n SET version = version")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() }) //nolint:errcheck // it may have ended
	return tx
}

// TestNaiveSequenceRepeats: PostgreSQL gives an answered number of a sequence again after a
// crash, because another transaction had it logged and was not committed. A number of this
// package in the same place does not repeat.
func TestNaiveSequenceRepeats(t *testing.T) {
	server := testservers.Postgres(t, "-c", "wal_writer_delay=10s")
	d := postgres(t, server.Addr)
	exec(t, d, "CREATE SEQUENCE naive")
	s := open(t, []sequence.Database{d}, sequence.Options{Table: "seq"})
	var naive, ours idtest.Checker[int64]
	naiveLog, log := naive.Log(), ours.Log()
	nextval := func(on interface {
		QueryRowContext(context.Context, string, ...any) *sql.Row
	}) (n int64) {
		t.Helper()
		until(t, "the server answers", func() bool { return on.QueryRowContext(t.Context(), "SELECT nextval('naive')").Scan(&n) == nil })
		return n
	}
	for range 3 {
		log.Add(next(t, s)) // flushes all that was written before
		tx, err := d.DB.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 32 { // so many are logged at once
			nextval(tx)
		}
		log.Add(next(t, s))
		for range 32 {
			nextval(tx)
		}
		naiveLog.Add(nextval(d.DB))
		server.Kill()
		tx.Rollback() //nolint:errcheck // it was ended with its server
		server.Restart()
		naiveLog.Add(nextval(d.DB))
		until(t, "it goes on", func() bool {
			n, err := s.Next(t.Context())
			if err == nil {
				log.Add(n)
			}
			return err == nil
		})
	}
	if n, err := ours.Check(); err != nil {
		t.Error(n, err)
	}
	if n, err := naive.Check(); err == nil || !strings.Contains(err.Error(), "twice") && !strings.Contains(err.Error(), "after") {
		t.Errorf("%d numbers of a naive sequence are found well: %v", n, err)
	}
}

// TestNewSetNeedsAll: a set makes no number before each of its databases was reached, and any
// time after.
func TestNewSetNeedsAll(t *testing.T) {
	server := testservers.MariaDB(t)
	opts := sequence.Options{Step: 2, Table: "seq"}
	file := filepath.Join(t.TempDir(), "ids.db")
	both := func() []sequence.Database { return []sequence.Database{sqlite(t, file), mariadb(t, server.Addr)} }
	server.Kill()
	if _, err := try(t, both(), opts); !unavailable(err) || !strings.Contains(err.Error(), "database 2") || strings.Contains(err.Error(), "database 1") {
		t.Error(err)
	}
	server.Restart()
	first := open(t, both(), opts)
	next(t, first)
	server.Kill()
	one := open(t, both(), opts)
	if n := next(t, one); n%2 != 1 {
		t.Errorf("%d of a database that is away", n)
	}
	if _, err := try(t, both()[1:], sequence.Options{Step: 2, Table: "seq"}); !unavailable(err) {
		t.Errorf("with none: %v", err)
	}
	server.Restart()
	until(t, "it comes back", func() bool { return next(t, one)%2 == 0 })
}

// TestAllAreAway: a call fails when each database has failed since it began, whatever bound
// its ctx has, and says why. Calls succeed when a database is back.
func TestAllAreAway(t *testing.T) {
	server := testservers.Postgres(t)
	s := open(t, []sequence.Database{postgres(t, server.Addr)}, sequence.Options{Table: "seq"})
	before := next(t, s)
	server.Kill()
	for range 3 {
		if n, err := s.Next(t.Context()); n != 0 || !unavailable(err) || !strings.Contains(err.Error(), "database 1") {
			t.Error(n, err)
		}
	}
	server.Restart()
	var after int64
	until(t, "it comes back", func() (back bool) {
		var err error
		after, err = s.Next(t.Context())
		return err == nil
	})
	if after <= before {
		t.Errorf("%d after %d", after, before)
	}
	server.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if n, err := s.Next(ctx); n != 0 || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, pawl.ErrUnavailable) {
		t.Error(n, err)
	}
	server.Resume()
	until(t, "it goes on", func() bool { _, err := s.Next(t.Context()); return err == nil })
}

// TestDemoted: a server that takes no writes is skipped, also by a user who may write there.
func TestDemoted(t *testing.T) {
	server := testservers.MariaDB(t)
	my := mariadb(t, server.Addr)
	s := open(t, []sequence.Database{my, sqlite(t, filepath.Join(t.TempDir(), "ids.db"))}, sequence.Options{Step: 2, Table: "seq"})
	is := func(place int64) func() bool { return func() bool { return next(t, s)%2 == place } }
	until(t, "the first", is(1))
	exec(t, my, "SET GLOBAL read_only = 1")
	for range 20 {
		if is(1)() {
			t.Fatal("a number of a replica")
		}
	}
	if err := s.States()[0].Err; !errors.Is(err, pawl.ErrUnavailable) || !strings.Contains(err.Error(), "read_only") {
		t.Error(err)
	}
	exec(t, my, "SET GLOBAL read_only = 0")
	until(t, "the first again", is(1))
}

// TestSilentConnection: requests or answers are lost in the network, and connections stay open.
func TestSilentConnection(t *testing.T) {
	for name, freeze := range map[string]func(*proxy.Proxy){"both": (*proxy.Proxy).Freeze, "answers": (*proxy.Proxy).FreezeReplies} {
		t.Run(name, func(t *testing.T) {
			proxy := proxy.New(t, testservers.SharedPostgres(t).Addr)
			s := open(t, []sequence.Database{postgres(t, proxy.Addr), sqlite(t, filepath.Join(t.TempDir(), "ids.db"))},
				sequence.Options{Step: 2, Table: newTable(), Timeout: time.Second})
			var check idtest.Checker[int64]
			check.Unordered = true
			log := check.Log()
			for range 10 {
				log.Add(next(t, s))
			}
			freeze(proxy)
			for range 10 {
				log.Add(next(t, s))
			}
			until(t, "it is noticed", func() bool { log.Add(next(t, s)); return !s.States()[0].Good })
			proxy.Thaw()
			until(t, "it is back", func() bool { return s.States()[0].Good })
			for range 10 {
				log.Add(next(t, s))
			}
			if n, err := check.Check(); err != nil {
				t.Error(n, err)
			}
		})
	}
}

// TestLockedRow: where a transaction of another program has locked the numbers, each look finds
// the database well. The callers wait for it again after longer and longer pauses.
func TestLockedRow(t *testing.T) {
	server := testservers.Postgres(t)
	s := open(t, []sequence.Database{postgres(t, server.Addr), sqlite(t, filepath.Join(t.TempDir(), "ids.db"))},
		sequence.Options{Step: 2, Table: "seq", Timeout: 200 * time.Millisecond})
	until(t, "the first", func() bool { n, err := s.Next(t.Context()); return err == nil && n%2 == 1 })
	tx := locks(t, postgres(t, server.Addr))
	tries, good := 0, false
	for started := time.Now(); time.Since(started) < 3*time.Second; {
		s.Next(t.Context()) //nolint:errcheck // the machine may be busy for so short a bound
		if is := s.States()[0].Good; is != good {
			good = is
			tries++
		}
	}
	if tries > 12 { // pauses of 0.1, 0.2, 0.4, 0.8, 1.6 s, and each try is two changes
		t.Errorf("%d changes of its state", tries)
	}
	if err := tx.Rollback(); err != nil {
		t.Error(err)
	}
	until(t, "the first again", func() bool { n, err := s.Next(t.Context()); return err == nil && n%2 == 1 })
}

// TestLateAnswer: a number that comes late is not for a call that began meanwhile, because
// another process may have given a larger one before.
func TestLateAnswer(t *testing.T) {
	addr, opts := testservers.SharedPostgres(t).Addr, sequence.Options{Table: newTable(), Timeout: 30 * time.Second}
	link, direct := proxy.New(t, addr), postgres(t, addr)
	slow, other := open(t, []sequence.Database{postgres(t, link.Addr)}, opts), open(t, []sequence.Database{direct}, opts)
	before := next(t, slow)
	link.Delay(500 * time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { _, err := slow.Next(ctx); gone <- err }()
	until(t, "it is counted", func() bool {
		var n int64
		return direct.DB.QueryRow("SELECT n FROM "+opts.Table+"_n").Scan(&n) == nil && n == before+1
	})
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	seen := next(t, other)
	if n := next(t, slow); n <= seen {
		t.Errorf("%d after %d", n, seen)
	}
}

// TestCallerGivesUp: numbers that come for a caller who left are a gap, or for others who waited.
func TestCallerGivesUp(t *testing.T) {
	server := testservers.Postgres(t)
	s := open(t, []sequence.Database{postgres(t, server.Addr)}, sequence.Options{Table: "seq"})
	next(t, s)
	tx := locks(t, postgres(t, server.Addr))
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan error, 8)
	for range cap(results) {
		go func() { _, err := s.Next(ctx); results <- err }()
	}
	stays := make(chan int64)
	go func() {
		n, err := s.Next(t.Context())
		if err != nil {
			t.Error(err)
		}
		stays <- n
	}()
	cancel()
	for range cap(results) {
		if err := <-results; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if err := tx.Rollback(); err != nil {
		t.Error(err)
	}
	if n, after := <-stays, next(t, s); n < 2 || after <= n {
		t.Error(n, after)
	}
}
