// Payment shows how often a customer pays who sends one payment again, after a crash of the server and after
// a slow answer. The program does so for five ways of idempotency, each written as usual and by pawl.
//
//	go run ./examples/payment
//
// The server is a process of its own. In the first test it is killed in the middle of the payment, and the client
// repeats the request at its next start. In the second test the server is slow, and the client sends the
// request a second time meanwhile. The program needs no server but itself: all tables and locks are in
// files of SQLite. Tables and locks can be in any database and in any store of pawl.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"text/tabwriter"
	"time"
)

// serverArg is the argument with which the program is the server.
const serverArg = "server"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := error(nil)
	if len(os.Args) == 2 && os.Args[1] == serverArg {
		err = serve(ctx, os.Stdin, os.Stdout)
	} else {
		err = run(ctx, os.Args[1:], os.Stdout)
	}
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "payment:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("payment", flag.ContinueOnError)
	ttl := flags.Duration("ttl", 2*time.Second, "how long a lock outlives its holder")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute+10**ttl)
	defer cancel()
	killed, err := test(ctx, *ttl, (*trial).killedServer)
	if err != nil {
		return fmt.Errorf("a killed server: %w", err)
	}
	slow, err := test(ctx, *ttl, (*trial).slowServer)
	if err != nil {
		return fmt.Errorf("a slow server: %w", err)
	}
	return tell(out, killed, slow)
}

// tell prints how often each form has paid. tell fails if that is not what this program is to show.
func tell(out io.Writer, killed, slow []int) error {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "way\twritten as\tserver killed\tslow, sent again")
	var wrong []error
	way := ""
	for i, f := range forms {
		shown := f.way
		if shown == way {
			shown = ""
		}
		way = f.way
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", shown, f.text, times(killed[i]), times(slow[i]))
		if killed[i] != f.killed || slow[i] != f.slow {
			wrong = append(wrong, fmt.Errorf("%s, %s: paid %d and %d times, not %d and %d", f.way, f.text, killed[i], slow[i], f.killed, f.slow))
		}
	}
	return errors.Join(append(wrong, table.Flush())...)
}

func times(n int) string {
	switch n {
	case 0:
		return "not paid"
	case 1:
		return "paid once"
	case 2:
		return "PAID TWICE"
	}
	return fmt.Sprintf("PAID %d TIMES", n)
}
