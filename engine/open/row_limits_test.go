package open_test

import (
	"context"
	"errors"
	"fmt"
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
		if took := time.Since(asked); took > ttl/2 {
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
	for name, d := range map[string]struct {
		grants []string
		url    string
	}{
		"Postgres": {[]string{
			`CREATE ROLE row_app LOGIN`, `GRANT USAGE ON SCHEMA pawl TO row_app`,
			`GRANT SELECT, INSERT, UPDATE, DELETE ON pawl.row_names, pawl.row_claims, pawl.row_boot, pawl.row_meta TO row_app`,
			`GRANT USAGE, UPDATE ON SEQUENCE pawl.row_tokens TO row_app`,
		}, "postgres://row_app@%s/postgres?mode=row"},
		"MariaDB": {[]string{
			`CREATE USER row_app@'127.0.0.1'`, `GRANT SELECT, UPDATE ON pawl.pawl_row_meta TO row_app@'127.0.0.1'`,
			`GRANT SELECT ON pawl.pawl_row_claims TO row_app@'127.0.0.1'`,
			`GRANT SELECT ON pawl.pawl_row_boot TO row_app@'127.0.0.1'`, `GRANT EXECUTE ON pawl.* TO row_app@'127.0.0.1'`,
		}, "mysql://row_app@%s/pawl?mode=row"},
	} {
		t.Run(name, func(t *testing.T) {
			addr := rowDatabases[name].private(t).Addr
			rowDatabases[name].open(t, addr, 3) // makes the tables
			db := rowDatabases[name].admin(t, addr)
			defer db.Close()
			for _, grant := range d.grants {
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
