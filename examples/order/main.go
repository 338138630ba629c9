// Order keeps orders and stock consistent, which are in two databases. Orders go to the stock by an outbox, a broker and
// an inbox, and the stock confirms each of them.
//
//	go run ./examples/order                 // processes are killed at random; ends with the books
//	go run ./examples/order -naive          // the same without outbox and inbox: the books do not balance
//	go run ./examples/order -cut all        // each arrow is cut once, without and with the cure
//
// The program starts the servers and ends them: PostgreSQL for orders, MariaDB for the stock, NATS JetStream as the broker.
// If a server is not installed, SQLite or a webhook takes its place, and the program says so. The flags -orders, -stock and
// -broker choose. The producer, the relays and the consumers are processes of this program.
//
// The exit code is 1 if the books do not balance.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// childArg is the argument with which the program is one of its own processes.
const childArg = "child"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := error(nil)
	if len(os.Args) == 2 && os.Args[1] == childArg {
		err = beChild(ctx, os.Stdin, os.Stdout)
	} else {
		err = run(ctx, os.Args[1:], os.Stdout)
	}
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "order:", err)
		if len(os.Args) == 2 && os.Args[1] == childArg {
			os.Exit(childFailed)
		}
		os.Exit(1)
	}
}

// errBooks says that the books do not balance.
var errBooks = errors.New("the books do not balance")

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("order", flag.ContinueOnError)
	orders := flags.String("orders", auto, "the database of orders: postgres, mariadb, sqlite or auto")
	stock := flags.String("stock", auto, "the database of the stock: postgres, mariadb, sqlite or auto")
	broker := flags.String("broker", auto, "the broker: nats, redis, webhook or auto")
	n := flags.Int("n", 250, "how many customers order; every fifth of their cards is declined")
	naive := flags.Bool("naive", false, "leave out the outbox and the inbox")
	cut := flags.String("cut", "", "cut an arrow: "+cutNames()+" or all")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *n < 1 || *n > 100_000 {
		return fmt.Errorf("-n is %d: 1 to 100000 are allowed", *n)
	}
	chosen, err := cutsOf(*cut)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute+time.Duration(*n)*100*time.Millisecond)
	defer cancel()
	p, err := openPlaces(ctx, *orders, *stock, *broker, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if len(chosen) > 0 {
		return showCuts(ctx, p, chosen, out)
	}
	return keepBooks(ctx, p, settings{N: *n, Naive: *naive, Odds: 60}, out)
}

// keepBooks lets customers order while processes are killed, and prints the books.
func keepBooks(ctx context.Context, p *places, s settings, out io.Writer) error {
	t, err := p.trial(ctx, s)
	if err != nil {
		return err
	}
	b, err := t.run(ctx, true)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%d customers ordered. Killed meanwhile: the producer %d times, relays %d times, consumers %d times.\n\n",
		s.N, t.kills[producer], t.kills[relay], t.kills[consumer])
	b.print(out)
	if !b.balance() {
		return errBooks
	}
	return nil
}
