// Frozen-holder shows what a lock cannot do and a fencing token can. Process A takes a lock,
// looks whether it still has the lock, begins to write, and is frozen for longer than the lock
// lives. A debugger, a pause of its virtual machine, or a closed laptop freezes a process so.
// Process B gets the lock and writes. Then A wakes up and its write arrives, late. Where nobody
// compares tokens it lands on top of B's; where a guard does it is refused.
//
//	go run ./examples/frozen-holder
//	go run ./examples/frozen-holder -redis redis://127.0.0.1:6379
//
// The lock is in a SQLite file of its own. The targets of the writes: rows of a SQLite
// database, a web server, and Redis, if there is one to use.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/sqliteengine"
)

// holder is the argument with which the program is process A.
const holder = "holder"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := error(nil)
	if len(os.Args) == 2 && os.Args[1] == holder {
		err = hold(ctx, os.Stdin, os.Stdout)
	} else {
		err = demonstrate(ctx, os.Args[1:], os.Stdout)
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "frozen-holder:", err)
		os.Exit(1)
	}
}

// settings are what A has to know. The settings go through its standard input, because other users see
// arguments, and a URL may have a password.
type settings struct {
	Locks string // the file of the lock
	TTL   time.Duration
	Places
}

// demonstrate is the whole show: it is process B, and starts and freezes A.
func demonstrate(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("frozen-holder", flag.ContinueOnError)
	redis := flags.String("redis", os.Getenv("FROZEN_HOLDER_REDIS"), "`URL` of a Redis to write to as well; or FROZEN_HOLDER_REDIS")
	ttl := flags.Duration("ttl", time.Second, "how long the lock outlives its holder")
	if err := flags.Parse(args); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "frozen-holder-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	server := serve()
	defer server.Close()
	s := settings{Locks: filepath.Join(dir, "locks.db"), TTL: *ttl, Places: Places{
		SQL: filepath.Join(dir, "reports.db"), HTTP: server.URL, Redis: *redis, Prefix: "frozen-holder:" + filepath.Base(dir) + ":",
	}}
	all, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer all.close()
	for _, p := range all {
		if err := p.prepare(ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name(), err)
		}
	}
	late, err := freezeAndThaw(ctx, s, all, out)
	if err != nil {
		return err
	}
	if *redis == "" {
		defer fmt.Fprintln(out, "Redis was left out: give -redis URL to see it there as well.")
	}
	return tell(ctx, all, late, out)
}

// freezeAndThaw lets A hold and freezes it, writes as B, thaws A, and returns
// what came of its late writes.
func freezeAndThaw(ctx context.Context, s settings, all places, out io.Writer) (late []string, err error) {
	a, err := startHolder(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, a.end(err != nil)) }()
	if err := a.send(s); err != nil {
		return nil, err
	}
	var token string
	if err := a.read(&token); err != nil {
		return nil, fmt.Errorf("process A: %w", err)
	}
	fmt.Fprintf(out, "A holds the lock with token %s, wrote once, is about to write again, and is frozen.\n", token)
	if err := freeze(a.cmd.Process); err != nil {
		return nil, err
	}
	if err := writeAsB(ctx, s, all, out); err != nil {
		return nil, fmt.Errorf("process B: %w", err)
	}
	fmt.Fprintln(out, "A goes on where it was and writes.")
	if err := thaw(a.cmd.Process); err != nil {
		return nil, err
	}
	if err := a.send("go on"); err != nil {
		return nil, err
	}
	if err := a.read(&late); err != nil {
		return nil, fmt.Errorf("process A: %w", err)
	}
	return late, nil
}

// writeAsB waits for the lock, which comes free when A was not heard of for its
// TTL, and writes under it.
func writeAsB(ctx context.Context, s settings, all places, out io.Writer) error {
	client, closeAll, err := s.client(ctx)
	if err != nil {
		return err
	}
	defer closeAll()
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, s.TTL+20*time.Second) // A may be frozen in the midst of a transaction on the file
	defer cancel()
	lease, err := client.Mutex(lockName).Lock(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "B got the lock after %.1f s with token %d and writes.\n", time.Since(start).Seconds(), lease.Token())
	return errors.Join(errors.Join(all.write(ctx, "of B", lease.Token())...), lease.Unlock(ctx))
}

// client returns a client of the lock's store.
func (s settings) client(ctx context.Context) (*pawl.Client, func(), error) {
	store, err := sqliteengine.New(ctx, s.Locks, nil)
	if err != nil {
		return nil, nil, err
	}
	client, err := pawl.New(ctx, store, &pawl.Options{TTL: s.TTL})
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	return client, func() {
		client.Close(context.WithoutCancel(ctx)) //nolint:errcheck // its session ends anyway
		store.Close()
	}, nil
}

// tell prints the table, and fails if it is not what this program is to show.
func tell(ctx context.Context, all places, late []string, out io.Writer) error {
	fmt.Fprintln(out)
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "place\tguard\tit now has the text\tA's late write")
	var wrong []error
	for i, p := range all {
		for n, row := range []struct{ guard, want string }{{"no", "of A, late"}, {"yes", "of B"}} {
			is, err := p.read(ctx, n == 1)
			if err != nil {
				return fmt.Errorf("%s: %w", p.name(), err)
			}
			if is != row.want {
				wrong = append(wrong, fmt.Errorf("%s, guard %s: it has %q, not %q", p.name(), row.guard, is, row.want))
			}
			fmt.Fprintf(table, "%s\t%s\t%q\t%s\n", p.name(), row.guard, is, late[2*i+n])
		}
	}
	wrong = append(wrong, table.Flush())
	fmt.Fprintln(out)
	return errors.Join(wrong...)
}

// child is process A as B sees it.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

func startHolder(ctx context.Context) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, holder)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &child{cmd, in, json.NewDecoder(out)}, nil
}

func (a *child) send(v any) error { return json.NewEncoder(a.in).Encode(v) }

func (a *child) read(v any) error { return a.out.Decode(v) }

// end waits for the process, and kills it if something went wrong: it may be
// frozen still.
func (a *child) end(failed bool) error {
	a.in.Close()
	if failed {
		a.cmd.Process.Kill() //nolint:errcheck // it may have ended
		a.cmd.Wait()         //nolint:errcheck // as it was told
		return nil
	}
	return a.cmd.Wait()
}
