//go:build unix

package dtx_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/enginetest/proxy"
)

// hangs: a database that hangs delays neither the beats, nor other transactions, nor the recovery of other databases.
func hangs(t *testing.T) {
	t.Parallel()
	direct := [2]place{postgres(t, "postgres"), postgres(t, "second")}
	proxied, network := behind(t, direct[1])
	b := newBank(t, [2]place{direct[0], proxied})
	books := b.seenFrom(t, direct)
	before := books.accounts(t)
	c, err := dtx.New(t.Context(), b.log, b.parts, &dtx.Options{Lease: time.Second, Settle: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	cmd, _ := books.start(t, task{Account: 1, Step: "decided 0"})
	cmd.Wait() //nolint:errcheck // the worker killed itself
	network.Freeze()
	until(t, "the hang is noticed", func() bool { return c.Status().Err != nil })
	if !strings.Contains(c.Status().Err.Error(), "part1") {
		t.Error(c.Status().Err)
	}
	beats := func() int { return b.sum(t, "SELECT MAX(beat) FROM "+b.table+"_beats") }
	began := beats()
	until(t, "the coordinator beats", func() bool { return beats() >= began+4 })
	one := func(ctx context.Context, tx *dtx.Tx) error {
		_, err := tx.On(b.parts[0]).ExecContext(ctx, "UPDATE "+b.table+"_0 SET n = n - 1 WHERE id = 0")
		return err
	}
	until(t, "a transaction commits elsewhere", func() bool { return c.Run(t.Context(), one, b.parts[0]) == nil })
	until(t, "recovery finishes the branch of the other database", func() bool { return books.accounts(t)[1][0] == before[1][0]-moves })
	if books.records(t) != 1 || books.prepared(t) != 1 {
		t.Errorf("%d records, and %d branches are prepared", books.records(t), books.prepared(t))
	}
	network.Thaw()
	until(t, "recovery finishes the rest", func() bool { return books.prepared(t) == 0 && books.records(t) == 0 })
	if is := books.accounts(t); is[1] != [2]int{before[1][0] - moves, before[1][1] + moves} {
		t.Errorf("%v, and before %v", is[1], before[1])
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// busy: Recover does not wait for a pass in the background for longer than its ctx.
func busy(t *testing.T) {
	t.Parallel()
	proxied, network := behind(t, postgres(t, "second"))
	b := newBank(t, [2]place{postgres(t, "postgres"), proxied})
	c, err := dtx.New(t.Context(), b.log, b.parts, &dtx.Options{Lease: time.Second, Settle: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	network.Freeze()
	for began := time.Now(); time.Since(began) < 2*time.Second; { // within a third of the lease a pass begins in the background, and hangs
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		asked := time.Now()
		if _, err := c.Recover(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		cancel()
		if took := time.Since(asked); took > 10*time.Second {
			t.Errorf("Recover has taken %v", took)
		}
	}
	network.Thaw()
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// hangingLog: while the log hangs, nothing of a coordinator waits for long.
func hangingLog(t *testing.T) {
	t.Parallel()
	direct := [2]place{postgres(t, "postgres"), postgres(t, "second")}
	proxied, network := behind(t, direct[0])
	b := newBank(t, [2]place{proxied, direct[1]})
	books := b.seenFrom(t, direct)
	before := books.sums(t)
	c, err := dtx.New(t.Context(), b.log, b.parts, &dtx.Options{Lease: time.Second, Settle: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	frozen := sync.OnceFunc(network.Freeze)
	for i := range 4 { // the first transactions retire the row, and the next find no log to register another
		group.Go(func() {
			for range 2 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				err := c.Run(ctx, func(ctx context.Context, tx *dtx.Tx) error {
					err := b.move(i, i, moves)(ctx, tx)
					frozen()
					return err
				})
				if !errors.Is(err, dtx.ErrAborted) && !errors.Is(err, dtx.ErrInDoubt) {
					t.Errorf("the log hangs: %v", err)
				}
				cancel()
				c.Status()
			}
		})
	}
	group.Wait()
	network.Thaw()
	until(t, "all is finished", func() bool { return books.prepared(t) == 0 && books.records(t) == 0 })
	if is := books.sums(t); is != before {
		t.Errorf("%v, and before %v", is, before)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// smallPool: transactions whose branches use the log's pool leave a connection for their decisions.
func smallPool(t *testing.T) {
	t.Parallel()
	b := newBank(t, [2]place{postgres(t, "postgres"), postgres(t, "second")})
	for i, name := range []string{"part0", "part1"} {
		b.dbs[i].SetMaxOpenConns(1)
		if _, err := dtx.New(t.Context(), b.log, b.parts, options); !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("a pool of one: %v", err)
		}
		b.dbs[i].SetMaxOpenConns(0)
	}
	b.dbs[0].SetMaxOpenConns(2)
	c := b.patient(t)
	before := b.sums(t)
	const workers, each = 8, 5
	var group sync.WaitGroup
	for i := range workers {
		group.Go(func() {
			for range each {
				if err := c.Run(t.Context(), b.move(i, i, 1)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if is := b.sums(t); is[0] != before[0]-workers*each || is[1] != before[1]+workers*each {
		t.Errorf("%v, and before %v", is, before)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := c.Run(ctx, func(context.Context, *dtx.Tx) error {
		time.AfterFunc(200*time.Millisecond, cancel)
		return c.Run(ctx, func(context.Context, *dtx.Tx) error {
			t.Error("there is no room for two")
			return nil
		})
	})
	if !errors.Is(err, dtx.ErrAborted) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// exhausted: transactions that wait for the rows of a branch in doubt leave recovery a connection of their pool.
func exhausted(t *testing.T) {
	t.Parallel()
	b := newBank(t, [2]place{postgres(t, "postgres"), postgres(t, "second")})
	before := b.sums(t)
	cmd, _ := b.start(t, task{Account: 1, Step: "decided 0"})
	cmd.Wait() //nolint:errcheck // the worker killed itself
	const most = 3
	b.dbs[1].SetMaxOpenConns(most)
	c := b.coordinator(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	add := func(ctx context.Context, tx *dtx.Tx) error {
		_, err := tx.On(b.parts[1]).ExecContext(ctx, "UPDATE "+b.table+"_1 SET n = n + 1")
		return err
	}
	var group sync.WaitGroup
	for range 2 * most {
		group.Go(func() {
			if err := c.Run(ctx, add, b.parts[1]); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if is := b.sums(t); is != [2]int{before[0] - moves, before[1] + moves + 2*most*accounts} {
		t.Errorf("%v, and before %v", is, before)
	}
}

// hindered: a process that cannot reach a database leaves the turn to others.
func hindered(t *testing.T) {
	t.Parallel()
	direct := [2]place{postgres(t, "postgres"), postgres(t, "second")}
	proxied, network := behind(t, direct[1])
	b := newBank(t, [2]place{direct[0], proxied})
	books := b.seenFrom(t, direct)
	locks, err := open.Open(t.Context(), "memory:")
	if err != nil {
		t.Fatal(err)
	}
	coordinator := func(b *bank) *dtx.Coordinator {
		client, err := pawl.New(t.Context(), locks, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close(context.Background()) }) //nolint:errcheck // as the test ends
		c, err := dtx.New(t.Context(), b.log, b.parts, &dtx.Options{Lease: time.Second, Settle: time.Second, Client: client})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first := coordinator(b)
	cmd, _ := books.start(t, task{Account: 1, Step: "decided 0"})
	cmd.Wait() //nolint:errcheck // the worker killed itself
	network.Freeze()
	until(t, "the hang is noticed", func() bool { return first.Status().Err != nil })
	second := coordinator(books)
	until(t, "the other process recovers", func() bool { return books.prepared(t) == 0 && books.records(t) == 0 })
	network.Thaw()
	for _, c := range []*dtx.Coordinator{first, second} {
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// turns: processes take turns in recovery. While the store of the locks is away, every process recovers.
func turns(t *testing.T) {
	t.Parallel()
	b := newBank(t, [2]place{postgres(t, "postgres"), postgres(t, "second")})
	network := proxy.New(t, prepares)
	locks, err := open.Open(t.Context(), "postgres://postgres@"+network.Addr+"/postgres")
	if err != nil {
		t.Fatal(err)
	}
	clients := make([]*pawl.Client, 2)
	for i := range clients {
		client, err := pawl.New(t.Context(), locks, nil)
		if err != nil {
			t.Fatal(err)
		}
		clients[i] = client
	}
	cmd, _ := b.start(t, task{Step: "decide 0"})
	cmd.Wait() //nolint:errcheck // the worker killed itself
	if n := b.prepared(t); n != 2 {
		t.Fatalf("%d branches are prepared", n)
	}
	name := fmt.Sprintf("pawl/dtx/%x", b.sum(t, "SELECT began FROM "+b.table+" WHERE id = 0"))
	turn, err := clients[1].Mutex(name).TryLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := dtx.New(t.Context(), b.log, b.parts, &dtx.Options{Lease: time.Second, Settle: 500 * time.Millisecond, Client: clients[0]})
	if err != nil {
		t.Fatal(err)
	}
	beats := func() int { return b.sum(t, "SELECT MAX(beat) FROM "+b.table+"_beats") }
	until(t, "more than a lease is over", func() bool { return beats() > 5 })
	if r, err := c.Recover(t.Context()); err != nil || r.RolledBack > 0 || b.prepared(t) != 2 {
		t.Errorf("another process has the turn: %+v, %v", r, err)
	}
	until(t, "a transaction commits", func() bool { return c.Run(t.Context(), b.move(1, 1, 1)) == nil })
	network.Freeze()
	until(t, "recovery goes on without locks", func() bool { return b.prepared(t) == 0 })
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	network.Thaw()
	turn.Unlock(t.Context()) //nolint:errcheck // the lock may be lost meanwhile
	for _, client := range clients {
		client.Close(t.Context()) //nolint:errcheck // as above
	}
	if err := locks.Close(); err != nil {
		t.Error(err)
	}
}

// lostLogs: tables that were emptied, or made anew, are refused by New and by a coordinator that runs. Nothing is rolled back.
func lostLogs(t *testing.T) {
	t.Parallel()
	b := newBank(t, [2]place{postgres(t, "postgres"), postgres(t, "second")})
	c, err := dtx.New(t.Context(), b.log, b.parts, options)
	if err != nil {
		t.Fatal(err)
	}
	cmd, _ := b.start(t, task{Account: 1, Step: "decided 0"})
	cmd.Wait() //nolint:errcheck // the worker killed itself
	for _, table := range []string{"", "_beats", "_decided", "_resolved"} {
		if _, err := b.dbs[0].ExecContext(t.Context(), "DELETE FROM "+b.table+table); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := dtx.New(t.Context(), b.log, b.parts, options); !errors.Is(err, dialect.ErrMissing) {
		t.Errorf("an empty log: %v", err)
	}
	refused := func(what string) {
		until(t, what+" is refused", func() bool {
			err := c.Run(t.Context(), b.move(0, 0, 1))
			if !errors.Is(err, dtx.ErrAborted) {
				t.Errorf("%s: %v", what, err)
			}
			return errors.Is(err, pawl.ErrMismatch)
		})
		if r, err := c.Recover(t.Context()); err != nil || r.RolledBack > 0 || len(r.Unknown) != 1 {
			t.Errorf("recovery with %s: %+v, %v", what, r, err)
		}
	}
	refused("an empty log")
	if err := b.log.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused("a new log")
	id := c.Status().Unknown[0]
	for i, db := range b.dbs { // as an operator does without a log
		if _, err := db.ExecContext(t.Context(), fmt.Sprintf("COMMIT PREPARED '%v-%d'", id, i)); err != nil {
			t.Error(err)
		}
	}
	c.Close(t.Context()) //nolint:errcheck // the log is another
}

// sum returns the number that a query of the log's database returns.
func (b *bank) sum(t *testing.T, query string) (n int) {
	t.Helper()
	if err := b.dbs[0].QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
