package inboxtest_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/internal/runtest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// killSelf ends the connection of the transaction in which it is executed.
var killSelf = map[dialect.Dialect]string{dialect.PostgreSQL: "SELECT pg_terminate_backend(pg_backend_pid())", dialect.MySQL: "KILL CONNECTION_ID()"}

// TestOwnTrouble: an error of a handler that looks like that of a lost database counts, unless the transaction is lost.
func TestOwnTrouble(t *testing.T) {
	databases(t, func(t *testing.T, d *database) {
		w := newWorld(t, "redis", testservers.SharedRedis(t))
		w.database = d
		handler := func(ctx context.Context, tx *sql.Tx, m inbox.Message) error {
			w.mu.Lock()
			w.ran[m.ID]++
			run := w.ran[m.ID]
			w.mu.Unlock()
			switch kill := killSelf[d.kind]; {
			case m.ID == "a-1":
				return fmt.Errorf("decode: %w", io.ErrUnexpectedEOF)
			case m.ID == "b-1":
				answer, err := http.Get("http://127.0.0.1:1/")
				if err == nil {
					err = answer.Body.Close()
				}
				return err
			case m.ID == "c-1" && kill != "" && run <= 2*w.opts.MaxAttempts:
				if _, err := tx.ExecContext(ctx, kill); err != nil {
					return err
				}
			}
			return d.effect(ctx, tx, m)
		}
		box, err := inbox.New("test", nil)
		if err != nil {
			t.Fatal(err)
		}
		source, err := w.source()
		if err != nil {
			t.Fatal(err)
		}
		c, err := box.Consumer(d.db, d.store, source, handler, &w.opts)
		if err != nil {
			t.Fatal(err)
		}
		runtest.Start(t, c.Run)
		for _, key := range []string{"a", "b", "c"} {
			w.send(t, message(key, 1), message(key, 2))
		}
		all := w.took(t, 4)
		w.idle(t)
		dead, err := w.dead(t.Context())
		if err != nil || len(dead) != 2 || !strings.Contains(dead["a-1"], "unexpected EOF") || !strings.Contains(dead["b-1"], "refused") {
			t.Error(dead, err)
		}
		if f := check(all, 3, 2); f.lost != 2 || f.twice+f.disordered > 0 {
			t.Error(f, all)
		}
	})
}
