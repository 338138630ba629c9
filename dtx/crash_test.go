//go:build unix

package dtx_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
	_ "github.com/pawl-go/pawl/internal/killtest" // ends a worker with its test
)

// task is what a worker does: one transaction, in which it kills or stops itself at a step.
type task struct {
	Table   string
	Ledger  string // table of the log; empty: as Table
	Places  [2]place
	Account int
	Step    string        // such as "prepared 1"
	Stop    bool          // the worker is frozen, not killed
	Naive   bool          // the worker commits the branches one after another
	Endless bool          // the worker does transactions until it is killed
	Lease   time.Duration // 0: that of options
}

// moves is how much each task moves.
const moves = 7

// work is the process of a task.
func work(ctx context.Context) error {
	var todo task
	if err := json.Unmarshal([]byte(os.Getenv("PAWL_DTX_WORKER")), &todo); err != nil {
		return err
	}
	b := &bank{table: todo.Table, ledger: todo.Ledger, places: todo.Places}
	if err := b.open(); err != nil {
		return err
	}
	defer b.close()
	at := func(name string, branch int) {
		switch {
		case fmt.Sprint(name, " ", branch) != todo.Step:
		case todo.Stop:
			woken := make(chan os.Signal, 1)
			signal.Notify(woken, syscall.SIGCONT)
			fmt.Println("frozen")
			syscall.Kill(os.Getpid(), syscall.SIGSTOP) //nolint:errcheck // the test waits for it
			<-woken                                    // this thread may run on for a moment
		default:
			syscall.Kill(os.Getpid(), syscall.SIGKILL) //nolint:errcheck // as above
			select {}                                  // as above
		}
	}
	if todo.Endless {
		return b.moveEndlessly(ctx, todo.Naive)
	}
	if todo.Naive {
		return b.moveNaively(ctx, todo.Account, at)
	}
	dtx.SetStep(at)
	c, err := dtx.New(ctx, b.log, b.parts, &dtx.Options{Lease: cmp.Or(todo.Lease, options.Lease)})
	if err != nil {
		return err
	}
	err = c.Run(ctx, b.move(todo.Account, todo.Account, moves))
	switch {
	case err == nil:
		fmt.Println("committed")
	case errors.Is(err, dtx.ErrAborted):
		fmt.Println("aborted")
	default:
		fmt.Println(err)
	}
	return c.Close(ctx)
}

// moveNaively commits two local transactions, one after the other.
func (b *bank) moveNaively(ctx context.Context, account int, at func(string, int)) error {
	for i, sign := range []string{"-", "+"} {
		if _, err := b.dbs[i].ExecContext(ctx, fmt.Sprintf("UPDATE %s_%d SET n = n %s %d WHERE id = %d", b.table, i, sign, moves, account)); err != nil {
			return err
		}
		at("finished", i)
	}
	return nil
}

// start starts a worker. Said are its lines.
func (b *bank) start(t *testing.T, todo task) (cmd *exec.Cmd, said *bufio.Scanner) {
	t.Helper()
	todo.Table, todo.Places = b.table, b.places
	text, err := json.Marshal(todo)
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PAWL_DTX_WORKER="+string(text), "PAWL_KILLTEST_WORKER=1")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a stopped process of a group without a parent gets SIGHUP and SIGCONT
	out, err := cmd.StdoutPipe()
	if err == nil {
		_, err = cmd.StdinPipe()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() }) //nolint:errcheck // it may have ended
	return cmd, bufio.NewScanner(out)
}

// crash is a step at which a coordinator is killed or frozen, and whether the transaction commits.
type crash struct {
	step    string
	stop    bool
	commits bool
}

// crashSteps are the steps of a transaction that outlive a crash.
func (b *bank) crashSteps() (all []crash) {
	for _, step := range []string{"prepare 0", "prepare 1", "prepared 0", "prepared 1", "decide 0"} {
		all = append(all, crash{step, false, false})
	}
	prepared := []int{0, 1}
	if b.places[0].Log {
		all = append(all, crash{"record 0", false, false})
		prepared = []int{1}
	}
	all = append(all, crash{"decided 0", false, true})
	for _, i := range prepared {
		all = append(all, crash{fmt.Sprint("finish ", i), false, true}, crash{fmt.Sprint("finished ", i), false, true})
	}
	if b.places[0].Dialect == dialect.SQLite {
		return all // a frozen writer keeps the lock of the file, whatever the program does
	}
	all = append(all, crash{"prepared 1", true, false}, crash{"decide 0", true, false}, crash{"decided 0", true, true})
	if b.places[0].Log {
		all = append(all, crash{"record 0", true, false})
	}
	return all
}

// crashes kills and freezes coordinators at every step, each in a process of its own and with an account of its own. Recovery
// finishes all branches, and both places have moved the money, or neither. A frozen coordinator that wakes says the same. Or the outcome
// is in doubt, because the record may be deleted already, or because a busy machine gave no answer in time.
func (b *bank) crashes(t *testing.T) {
	c := b.coordinator(t)
	before := b.accounts(t)
	var group sync.WaitGroup
	slots := make(chan bool, 4)
	frozen := make(map[int]func() string)
	var mu sync.Mutex
	steps := b.crashSteps()
	for i, crash := range steps {
		group.Go(func() {
			slots <- true
			defer func() { <-slots }()
			cmd, said := b.start(t, task{Account: i, Step: crash.step, Stop: crash.stop})
			if !crash.stop {
				out := said.Scan()
				if err := cmd.Wait(); out || err == nil {
					t.Errorf("%v: the worker came to its end: %s", crash, said.Text())
				}
				return
			}
			if !said.Scan() || said.Text() != "frozen" {
				t.Errorf("%v: %s", crash, said.Text())
			}
			mu.Lock()
			defer mu.Unlock()
			frozen[i] = func() string {
				cmd.Process.Signal(syscall.SIGCONT) //nolint:errcheck // the answer tells
				said.Scan()
				answer := said.Text()
				if err := cmd.Wait(); err != nil {
					t.Errorf("%v: %v", crash, err)
				}
				return answer
			}
		})
	}
	group.Wait()
	until(t, "all branches are finished", func() bool { return b.prepared(t) == 0 && b.records(t) == 0 && b.live(t) == 0 })
	for i, crash := range steps {
		if frozen[i] != nil {
			want := map[bool]string{false: "aborted", true: "committed"}[crash.commits]
			if said := frozen[i](); said != want && !strings.Contains(said, dtx.ErrInDoubt.Error()) {
				t.Errorf("%v: the frozen coordinator says %q, not %q", crash, said, want)
			}
		}
	}
	after := b.accounts(t)
	for i, crash := range steps {
		moved := [2]int{before[i][0] - after[i][0], after[i][1] - before[i][1]}
		if want := map[bool]int{true: moves}[crash.commits]; moved != [2]int{want, want} {
			t.Errorf("%v: %v were moved, not %d", crash, moved, want)
		}
	}
	until(t, "the log is as small as before", func() bool { _, err := c.Recover(t.Context()); return err == nil && b.records(t) == 0 })
	b.tidy(t)
	b.naive(t)
}

// naive: a program that commits one place after the other is found wrong by the same books.
func (b *bank) naive(t *testing.T) {
	before := b.sums(t)
	cmd, _ := b.start(t, task{Step: "finished 0", Naive: true})
	if err := cmd.Wait(); err == nil {
		t.Error("the naive worker was not killed")
	}
	if after := b.sums(t); after[0]+after[1] == before[0]+before[1] {
		t.Error("the naive worker is not found wrong")
	}
}

// accounts returns the money of each account in both places.
func (b *bank) accounts(t *testing.T) (all [accounts][2]int) {
	t.Helper()
	for i, db := range b.dbs {
		rows, err := db.QueryContext(t.Context(), fmt.Sprintf("SELECT id, n FROM %s_%d", b.table, i))
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var id, n int
			if err := rows.Scan(&id, &n); err != nil {
				t.Fatal(err)
			}
			all[id][i] = n
		}
	}
	return all
}

// records is how many decisions are in the log.
func (b *bank) records(t *testing.T) int { return b.count(t, b.logTable()+"_decided") }

// live is how many coordinators of other processes are not fenced.
func (b *bank) live(t *testing.T) int {
	return b.count(t, fmt.Sprintf("%s WHERE id > 0 AND fenced = 0 AND name NOT LIKE '%% %d'", b.logTable(), os.Getpid()))
}

func (b *bank) count(t *testing.T, from string) (n int) {
	t.Helper()
	if err := b.dbs[0].QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+from).Scan(&n); err != nil && !strings.Contains(err.Error(), "locked") {
		t.Fatal(err)
	}
	return n
}
