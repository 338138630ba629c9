//go:build unix

package dtx_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestServersDie kills each server at every step of a transaction, and starts it again. The coordinator's process stands still at
// the step while the server dies, and goes on without it. In a short test that is the server of the step. The money is in both places or in neither, as the caller was told.
func TestServersDie(t *testing.T) {
	t.Parallel()
	pg, maria := testservers.Postgres(t, "-c", "max_prepared_transactions=100"), testservers.MariaDB(t)
	places := [2]place{{dialect.PostgreSQL, testservers.PostgresURL(pg.Addr), false}, {dialect.MySQL, testservers.MariaDBConfig(maria.Addr).FormatDSN(), false}}
	first := newBank(t, places)
	heard := make(map[string]int)
	for _, crash := range first.crashSteps() {
		if crash.stop {
			continue
		}
		for i, server := range []*testservers.Server{pg, maria} {
			name := []string{"PostgreSQL", "MariaDB"}[i]
			if !strings.HasSuffix(crash.step, fmt.Sprint(" ", i)) && !strings.HasPrefix(crash.step, "deci") && os.Getenv("PAWL_TEST_SOAK") == "" {
				continue // the server has no part in the step
			}
			b := &bank{table: first.table, places: places} // its connections are new
			if err := b.open(); err != nil {
				t.Fatal(err)
			}
			before := b.accounts(t)
			b.close()
			answer := first.surviveServer(t, crash.step, server)
			b = &bank{table: first.table, places: places}
			if err := b.open(); err != nil {
				t.Fatal(err)
			}
			c := b.coordinator(t)
			until(t, "all branches are finished", func() bool { return b.prepared(t) == 0 && b.records(t) == 0 && b.live(t) == 1 })
			if err := c.Close(t.Context()); err != nil {
				t.Error(err)
			}
			after := b.accounts(t)
			b.close()
			moved := [2]int{before[0][0] - after[0][0], after[0][1] - before[0][1]}
			wrong := moved[0] != moved[1]
			for _, is := range []struct {
				said  string
				moved int
			}{{"committed", moves}, {"aborted", 0}, {dtx.ErrPending.Error(), moves}, {dtx.ErrInDoubt.Error(), moved[0]}} {
				if strings.Contains(answer, is.said) {
					heard[is.said]++
					wrong = wrong || moved[0] != is.moved
				}
			}
			if wrong {
				t.Errorf("%s dies at %q: %v were moved, and the caller heard %q", name, crash.step, moved, answer)
			}
		}
	}
	t.Log(heard)
	if heard["committed"] == 0 || heard["aborted"] == 0 {
		t.Error("some outcome never came")
	}
}

// surviveServer kills a server while a coordinator stands still at a step, and returns what the coordinator says.
func (b *bank) surviveServer(t *testing.T, step string, server *testservers.Server) string {
	t.Helper()
	cmd, said := b.start(t, task{Step: step, Stop: true})
	if !said.Scan() || said.Text() != "frozen" {
		t.Fatalf("%s: %q", step, said.Text())
	}
	server.Kill()
	cmd.Process.Signal(syscall.SIGCONT) //nolint:errcheck // the answer tells
	server.Restart()
	said.Scan()
	answer := said.Text()
	cmd.Wait() //nolint:errcheck // Close may fail, because the server has been away
	if answer == "" {
		t.Errorf("%s: no answer", step)
	}
	return answer
}

// TestOwned: MariaDB says that there is no such branch while the connection that prepared it lives. Recovery must not take
// that for finished, as this naive reading would.
func TestOwned(t *testing.T) {
	t.Parallel()
	b := newBank(t, [2]place{mariadb(t), mariadb(t)})
	c := b.coordinator(t)
	var id dtx.ID
	enough := errors.New("enough")
	if err := c.Run(t.Context(), func(_ context.Context, tx *dtx.Tx) error { id = tx.ID(); return enough }); !errors.Is(err, enough) {
		t.Fatal(err)
	}
	if err := c.Close(t.Context()); err != nil { // so nobody else finishes the branch
		t.Fatal(err)
	}
	conn, err := b.dbs[0].Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	xid := fmt.Sprintf("'%v','0',%d", id, 0x7061776c)
	for _, query := range []string{"XA START " + xid, "UPDATE " + b.table + "_0 SET n = 0 WHERE id = 0", "XA END " + xid, "XA PREPARE " + xid} {
		if _, err := conn.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.dbs[1].ExecContext(t.Context(), "XA COMMIT "+xid); !dialect.Unknown(err) {
		t.Errorf("the server says %v", err)
	}
	if err := b.log.Resolve(t.Context(), b.parts, id, true, "test"); err != nil {
		t.Error(err)
	}
	if b.prepared(t) == 0 {
		t.Error("the branch was finished while its connection lives")
	}
	c = b.coordinator(t)
	if r, err := c.Recover(t.Context()); err != nil || r.Committed > 0 || r.Waiting == 0 {
		t.Errorf("%+v, %v", r, err)
	}
	conn.Raw(func(any) error { return driver.ErrBadConn }) //nolint:errcheck // ends the connection
	until(t, "recovery commits the branch", func() bool {
		if _, err := c.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		return b.prepared(t) == 0
	})
	var n sql.NullInt64
	if err := b.dbs[0].QueryRowContext(t.Context(), "SELECT n FROM "+b.table+"_0 WHERE id = 0").Scan(&n); err != nil || n.Int64 != 0 {
		t.Errorf("not committed: %v, %v", n, err)
	}
}
