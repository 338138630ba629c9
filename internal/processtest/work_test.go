package processtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	_ "github.com/ncruces/go-sqlite3/driver" // the protected resource

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/work"
)

// ledger opens the resource that the work changes. The resource has the largest token of each item, and how
// often the item was done.
func ledger(path string) (*sql.DB, error) {
	db, err := sql.Open("sqlite3", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(60000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)")
	if err == nil {
		db.SetMaxOpenConns(1)
		_, err = db.Exec(`CREATE TABLE IF NOT EXISTS work (item TEXT PRIMARY KEY, token INTEGER, claims INTEGER, done INTEGER)`)
	}
	return db, err
}

func init() { roles["drain"] = drain }

// drain is a worker of a queue.
func drain(ctx context.Context, c *pawl.Client, args ...string) error {
	db, err := ledger(args[1])
	if err != nil {
		return err
	}
	defer db.Close()
	p := work.New(c, args[0], &work.Options{Random: args[2] == "random"})
	say("works")
	for {
		item, err := p.Claim(ctx)
		if err != nil {
			return err
		}
		if err := begin(db, item); err != nil {
			return err
		}
		time.Sleep(rand.N(5 * time.Millisecond)) // stands for work
		if err := finish(db, item); err != nil {
			return err
		}
		for item.Err() == nil {
			if err := item.Done(ctx); err != nil && !errors.Is(err, pawl.ErrUnavailable) && !errors.Is(err, pawl.ErrLost) {
				return err
			}
		}
	}
}

// begin tells the ledger of the claim. No two claims of an item have the same token.
func begin(db *sql.DB, item *work.Item) error {
	name, token := string(item.Data), int64(item.Token())
	n, err := change(db, `UPDATE work SET token = ?, claims = claims + 1 WHERE item = ? AND token < ?`, token, name, token)
	if err == nil && n == 0 {
		err = fmt.Errorf("%q is claimed with token %d after another one as large", name, token)
	}
	return err
}

// finish does an item, unless a worker that was killed before its report has done that item.
func finish(db *sql.DB, item *work.Item) error {
	name, token := string(item.Data), int64(item.Token())
	n, err := change(db, `UPDATE work SET done = done + 1 WHERE item = ? AND token = ? AND done = 0`, name, token)
	if err != nil || n == 1 {
		return err
	}
	var done int
	if err = db.QueryRow(`SELECT done FROM work WHERE item = ?`, name).Scan(&done); err == nil && done == 0 && item.Err() == nil {
		err = fmt.Errorf("%q was claimed by another one meanwhile", name)
	}
	return err
}

func change(db *sql.DB, query string, args ...any) (int64, error) {
	result, err := db.Exec(query, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// TestQueue: eight workers, of which one is killed again and again, do each item once.
func TestQueue(t *testing.T) {
	items := scaled(10_000, 2000, 400)
	overStores(t, 2*time.Second, func(f *fleet) {
		path := filepath.Join(f.TempDir(), "ledger.db")
		db, err := ledger(path)
		if err != nil {
			f.Fatal(err)
		}
		defer db.Close()
		var all [][]byte
		for i := range items {
			all = append(all, fmt.Appendf(nil, "item %d", i))
		}
		if _, err := change(db, `INSERT INTO work WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
			SELECT 'item ' || i, 0, 0, 0 FROM n`, items-1); err != nil {
			f.Fatal(err)
		}
		p := work.New(f.client, "queue", nil)
		if err := p.Put(f.Context(), all...); err != nil {
			f.Fatal(err)
		}
		workers := make([]*worker, 8)
		restart := func(i int) { workers[i] = f.start("drain", "queue", path, []string{"fifo", "random"}[i%2]) }
		for i := range workers {
			restart(i)
		}
		for range workers {
			f.next()
		}
		began := time.Now()
		kills := f.killUntilDone(db, func() {
			i := rand.N(len(workers))
			f.kill(workers[i])
			restart(i)
		})
		took := time.Since(began)
		for n := 1; n > 0; { // an item that was done without a report is claimed once more
			if n, err = p.Len(f.Context()); err != nil {
				f.Fatal(err)
			}
		}
		for _, w := range workers {
			f.end(w)
		}
		var rows, done, once, claims int
		if err := db.QueryRow(`SELECT count(*), sum(done), sum(done = 1), sum(claims) FROM work`).Scan(&rows, &done, &once, &claims); err != nil {
			f.Fatal(err)
		}
		if rows != items || done != items || once != items {
			f.Errorf("of %d items %d were done once, and %d in all", items, once, done)
		}
		f.Logf("%d items in %v, %.0f a second; %d workers were killed, %d items were claimed again",
			items, took.Round(time.Millisecond), float64(items)/took.Seconds(), kills, claims-items)
	})
}

// killUntilDone kills a worker once a second, or more often where there is less to do.
func (f *fleet) killUntilDone(db *sql.DB, kill func()) (kills int) {
	f.Helper()
	deadline := time.Now().Add(10 * time.Minute)
	look := time.NewTicker(20 * time.Millisecond)
	tick := time.NewTicker(time.Duration(scaled(1000, 250, 500)) * time.Millisecond)
	defer look.Stop()
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			kill()
			kills++
		case l := <-f.lines:
			if l.what != "works" {
				f.Fatalf("%s: %s %s", l.from.name, l.what, l.more)
			}
		case <-look.C:
			var left int
			if err := db.QueryRow(`SELECT count(*) FROM work WHERE done = 0`).Scan(&left); err != nil {
				f.Fatal(err)
			}
			if left == 0 {
				return kills
			}
			if time.Now().After(deadline) {
				f.Fatalf("%d items are left", left)
			}
		}
	}
}
