//go:build unix

package dtx_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestServersDie kills each server at every step of a transaction, and starts it again. At each step the process of a coordinator stands still
// while the server dies, and goes on without it. The money is in both places or in neither, as the caller was told. Each coordinator has
// a log of its own, so none recovers another one.
func TestServersDie(t *testing.T) {
	t.Parallel()
	const slots = "max_prepared_transactions=100"
	pg := [2]*testservers.Server{testservers.Postgres(t, "-c", slots), testservers.Postgres(t, "-c", slots)}
	maria := [2]*testservers.Server{testservers.MariaDB(t), testservers.MariaDB(t)}
	heard, points := make(map[string]int), 0
	for _, shape := range []struct {
		name    string
		servers [2]*testservers.Server
		last    bool // agent
	}{
		{"PostgreSQL and PostgreSQL", pg, false},
		{"PostgreSQL and MariaDB", [2]*testservers.Server{pg[0], maria[0]}, false},
		{"MariaDB and MariaDB", maria, false},
		{"last agent PostgreSQL", pg, true},
	} {
		t.Run(shape.name, func(t *testing.T) {
			var places [2]place
			for i, server := range shape.servers {
				places[i] = place{dialect.PostgreSQL, testservers.PostgresURL(server.Addr), shape.last && i == 0}
				if server == maria[0] || server == maria[1] {
					places[i] = place{dialect.MySQL, testservers.MariaDBConfig(server.Addr).FormatDSN(), false}
				}
			}
			b := newBank(t, places)
			steps := slices.DeleteFunc(b.crashSteps(), func(c crash) bool { return c.stop })
			for i := range steps {
				if err := b.withLog(t, i).log.Migrate(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			for i, server := range shape.servers {
				b.serverDies(t, fmt.Sprint("server ", i), server, steps, heard)
				points += len(steps)
			}
		})
	}
	t.Log(points, "points: ", heard)
	if heard["committed"] == 0 || heard["aborted"] == 0 {
		t.Error("some outcome never came")
	}
}

func (b *bank) ledgerOf(i int) string { return fmt.Sprint(b.table, "_log", i) }

// withLog returns a bank with the same accounts, another log and new connections.
func (b *bank) withLog(t *testing.T, i int) *bank {
	t.Helper()
	other := &bank{table: b.table, ledger: b.ledgerOf(i), places: b.places}
	if err := other.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.close)
	return other
}

// serverDies kills a server while coordinators stand still, each at one of the steps. Afterwards recovery finishes all.
func (b *bank) serverDies(t *testing.T, name string, server *testservers.Server, steps []crash, heard map[string]int) {
	before := b.withLog(t, 0).accounts(t)
	answers := b.surviveServer(t, server, steps)
	var banks []*bank
	var closes []func(context.Context) error
	for i := range steps {
		other := b.withLog(t, i)
		closes = append(closes, other.coordinator(t).Close)
		banks = append(banks, other)
	}
	until(t, "all branches are finished", func() bool {
		return !slices.ContainsFunc(banks, func(b *bank) bool { return b.prepared(t) != 0 || b.records(t) != 0 || b.live(t) != 0 })
	})
	for _, end := range closes { // before another server dies
		if err := end(t.Context()); err != nil {
			t.Error(err)
		}
	}
	after := banks[0].accounts(t)
	for i, step := range steps {
		moved := [2]int{before[i][0] - after[i][0], after[i][1] - before[i][1]}
		wrong := moved[0] != moved[1]
		for _, is := range []struct {
			said  string
			moved int
		}{{"committed", moves}, {"aborted", 0}, {dtx.ErrPending.Error(), moves}, {dtx.ErrInDoubt.Error(), moved[0]}} {
			if strings.Contains(answers[i], is.said) {
				heard[is.said]++
				wrong = wrong || moved[0] != is.moved
			}
		}
		if wrong || answers[i] == "" {
			t.Errorf("%s dies at %q: %v were moved, and the caller heard %q", name, step.step, moved, answers[i])
		}
	}
}

// surviveServer kills a server while coordinators stand still, starts it again, and returns what the coordinators say. The leases of coordinators
// are long, because a coordinator must not be late when it goes on.
func (b *bank) surviveServer(t *testing.T, server *testservers.Server, steps []crash) []string {
	t.Helper()
	cmds, lines, answers := make([]*exec.Cmd, len(steps)), make([]*bufio.Scanner, len(steps)), make([]string, len(steps))
	for i, step := range steps {
		cmds[i], lines[i] = b.start(t, task{Ledger: b.ledgerOf(i), Account: i, Step: step.step, Stop: true, Lease: time.Minute})
	}
	for i, step := range steps {
		if !lines[i].Scan() || lines[i].Text() != "frozen" {
			t.Fatalf("%s: %q", step.step, lines[i].Text())
		}
	}
	server.Kill()
	for _, cmd := range cmds {
		cmd.Process.Signal(syscall.SIGCONT) //nolint:errcheck // the answer tells
	}
	server.Restart()
	for i, cmd := range cmds {
		lines[i].Scan()
		answers[i] = lines[i].Text()
		cmd.Wait() //nolint:errcheck // Close may fail, because the server has been away
	}
	return answers
}

// TestOwned: MariaDB says that there is no such branch while the connection that prepared it lives. Recovery must not take
// that for finished, as this naive reading would.
func TestOwned(t *testing.T) {
	t.Parallel()
	b := newBank(t, [2]place{mariadb(t), mariadb(t)})
	c := b.coordinator(t)
	id := aborted(t, c)
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
	if err := b.log.Resolve(t.Context(), b.parts, id, true, "test"); !errors.Is(err, dtx.ErrLeft) {
		t.Errorf("the branch is left, and Resolve says %v", err)
	}
	if b.prepared(t) == 0 {
		t.Error("the branch was finished while its connection lives")
	}
	c = b.coordinator(t)
	if r, err := c.Recover(t.Context()); err != nil || r.Committed > 0 || r.Waiting == 0 {
		t.Errorf("%+v, %v", r, err)
	}
	discard(conn)
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
