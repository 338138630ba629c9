// Fleet balances requests over five servers, and draws while it runs how each policy spreads them. Two servers join meanwhile, one is slow, and one
// is killed.
//
//	go run ./examples/fleet                                 // all policies, five seconds each
//	go run ./examples/fleet -policy peak-ewma -time 20s
//	go run ./examples/fleet -naive                          // a list that stays, without repeats: requests fail
//
// The servers are processes of this program, and join a group of pawl. The group is in a file of SQLite, or in the store of -store. The
// program needs no server but itself.
//
// The exit code is 1 if a request failed. All requests may be repeated.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/pawl-go/pawl/lb"
)

// serverArg is the argument with which the program is one of its servers.
const serverArg = "server"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := error(nil)
	if len(os.Args) == 2 && os.Args[1] == serverArg {
		err = serve(ctx, os.Stdin, os.Stdout)
	} else {
		err = run(ctx, os.Args[1:], os.Stdout)
	}
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

// errFailed says that requests failed, all of which may be repeated.
var errFailed = errors.New("requests failed")

// plan is what the user of the program wants.
type plan struct {
	store string
	ttl   time.Duration
	time  time.Duration // for each policy
	naive bool
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("fleet", flag.ContinueOnError)
	names := flags.String("policy", "all", "the policies, separated by commas: "+strings.Join(policies(), ", "))
	var p plan
	flags.StringVar(&p.store, "store", "", "the URL of the store (default: a file of SQLite)")
	flags.DurationVar(&p.ttl, "ttl", 2*time.Second, "how long a dead server stays in the list")
	flags.DurationVar(&p.time, "time", 5*time.Second, "how long each policy runs, 300ms to 1h")
	flags.BoolVar(&p.naive, "naive", false, "keep the first list of servers, and repeat no request")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if p.time < 300*time.Millisecond || p.time > time.Hour {
		return fmt.Errorf("-time is %v: 300ms to 1h are allowed", p.time)
	}
	chosen, err := parse(*names)
	if err != nil {
		return err
	}
	if p.store == "" {
		dir, err := os.MkdirTemp("", "pawl-fleet-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		p.store = "sqlite:" + filepath.Join(dir, "pawl.db")
	}
	return show(ctx, p, chosen, out)
}

// show runs one policy after another, and prints a summary.
func show(ctx context.Context, p plan, chosen []lb.Policy, out io.Writer) error {
	fmt.Fprintf(out, "Five servers, of which %s has weight %d, and %s takes ten times as long. Then %s is killed, and %s join.\n", heavy, heavyWeight, slow, doomed, strings.Join(late, " and "))
	var all []tally
	for _, policy := range chosen {
		t, err := try(ctx, p, policy, out)
		if err != nil {
			return fmt.Errorf("%v: %w", policy, err)
		}
		all = append(all, t)
	}
	failed := summarise(out, all)
	if failed > 0 {
		return fmt.Errorf("%w: %d", errFailed, failed)
	}
	fmt.Fprintln(out, "\nNo request failed.")
	return nil
}

func policies() (names []string) {
	for p := lb.RoundRobin; p <= lb.PeakEWMA; p++ {
		names = append(names, p.String())
	}
	return names
}

func parse(names string) (all []lb.Policy, err error) {
	if names == "all" {
		names = strings.Join(policies(), ",")
	}
	for _, name := range strings.Split(names, ",") {
		p, err := lb.ParsePolicy(strings.TrimSpace(name))
		if err != nil {
			return nil, fmt.Errorf("-policy: %w", err)
		}
		all = append(all, p)
	}
	return all, nil
}
