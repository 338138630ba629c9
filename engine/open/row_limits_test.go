package open_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/internal/testservers"
)

// The store does not remember every name for ever.
func TestRowNamesAreBounded(t *testing.T) {
	onRows(t, func(t *testing.T, d rowDatabase) {
		server := d.private(t)
		eng := d.open(t, server.Addr, 10)
		c := clientOf(t, eng, 30*time.Second)
		kept := mustLock(t, c.Mutex("kept"))
		for i := range 2000 {
			mustUnlock(t, mustLock(t, c.Mutex(fmt.Sprintf("bounded/%d", i))))
		}
		if n := d.ask(t, server.Addr, d.names); n > 1024+64+1 || n < 1000 {
			t.Errorf("%d names are kept", n)
		}
		if l, err := clientOf(t, eng, 30*time.Second).Mutex("kept").TryLock(t.Context()); !errors.Is(err, pawl.ErrNotAcquired) {
			t.Errorf("a held name was forgotten: %v, %v", l, err)
		}
		mustUnlock(t, kept)
	})
}

// A pool without a free connection stops newcomers, but no holders.
func TestRowPoolExhausted(t *testing.T) {
	onRows(t, func(t *testing.T, d rowDatabase) {
		const ttl = 2 * time.Second
		c := clientOf(t, d.open(t, d.shared(t).Addr, 2), ttl)
		a, b := mustLock(t, c.Mutex("exhausted/a")), mustLock(t, c.Mutex("exhausted/b"))
		asked := time.Now()
		if l, err := c.Mutex("exhausted/c").TryLock(t.Context()); !errors.Is(err, pawl.ErrUnavailable) || !strings.Contains(err.Error(), "all 2 of the pool are taken") {
			t.Errorf("a try above the pool: %v, %v", l, err)
		}
		if took := time.Since(asked); took > ttl {
			t.Errorf("it is refused after %v", took)
		}
		until := a.ValidUntil().Add(ttl)
		ctx, cancel := context.WithDeadline(t.Context(), until)
		defer cancel()
		if l, err := c.Mutex("exhausted/c").Lock(ctx); err == nil || !strings.Contains(err.Error(), "connection") {
			t.Errorf("%v, %v: it does not tell of connections", l, err)
		}
		if a.Err() != nil || b.Err() != nil {
			t.Errorf("who held lost it: %v, %v", a.Err(), b.Err())
		}
		got := lockSoon(t, c.Mutex("exhausted/c"))
		mustUnlock(t, a)
		next := <-got
		if next.err != nil {
			t.Fatal(next.err)
		}
		mustUnlock(t, next.Lease)
		mustUnlock(t, b)
	})
}

// Behind a pooler the connection of a lock would be that of another client.
func TestRowBehindPooler(t *testing.T) {
	pooler := testservers.PgBouncer(t, testservers.SharedPostgres(t).Addr)
	eng, err := open.Open(t.Context(), postgresURL("mode=row")(pooler.Addr))
	if eng != nil || !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "pooler") {
		t.Errorf("%v, %v", eng, err)
	}
}

// The rights in the documentation are enough, once the tables exist.
func TestRowLeastRights(t *testing.T) {
	for name, d := range map[string]struct{ page, create, url string }{
		"Postgres": {"postgresql.md", "CREATE ROLE app LOGIN", "postgres://app@%s/postgres?mode=row"},
		"MariaDB":  {"mariadb.md", "CREATE USER app", "mysql://app@%s/pawl?mode=row"},
	} {
		t.Run(name, func(t *testing.T) {
			addr := rowDatabases[name].private(t).Addr
			rowDatabases[name].open(t, addr, 3) // makes the tables
			db := rowDatabases[name].admin(t, addr)
			defer db.Close()
			for _, grant := range append([]string{d.create}, rowRights(t, d.page)...) {
				if _, err := db.ExecContext(t.Context(), grant); err != nil {
					t.Fatal(grant, err)
				}
			}
			eng := connect(t, fmt.Sprintf(d.url, addr))
			a, b := clientOf(t, eng, 10*time.Second), clientOf(t, eng, 10*time.Second)
			l := mustLock(t, a.Mutex("rights"))
			got := lockSoon(t, b.Mutex("rights"))
			claims(t, eng, "rights", 2)
			r, err := eng.Show(t.Context(), "rights")
			if err != nil {
				t.Fatal(err)
			}
			if err := eng.Evict(t.Context(), "rights", r.Claims[0].ID); err != nil {
				t.Fatal(err)
			}
			next := <-got
			if next.err != nil {
				t.Fatal(next.err)
			}
			mustUnlock(t, next.Lease)
			<-l.Context().Done()
			if err := l.Unlock(t.Context()); !errors.Is(err, pawl.ErrLost) {
				t.Error(err)
			}
		})
	}
}

// rowRights returns the statements that the page of a store has for a user of row mode.
func rowRights(t *testing.T, page string) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/stores/" + page)
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := bytes.Cut(text, []byte("A user of locks in row mode gets these rights:\n\n```sql\n"))
	block, _, ended := bytes.Cut(text, []byte(";\n```\n"))
	if !found || !ended {
		t.Fatal(page, "has no rights of row mode")
	}
	return strings.Split(string(block), ";\n")
}
