// Order keeps orders, payments and stock consistent, which are in three databases. An order is committed together with its payment by
// dtx. Orders go to the stock by an outbox, a broker and an inbox, and the stock confirms each of them.
//
//	go run ./examples/order                 // processes are killed at random; ends with the books
//	go run ./examples/order -naive          // the same without dtx, outbox and inbox: the books do not balance
//	go run ./examples/order -cut all        // each arrow is cut once, without and with the cure
//	go run ./examples/order -tx all         // each problem of two-phase commit, by hand and with the cure
//
// The program starts the servers and ends them: PostgreSQL for orders and payments, MariaDB for the stock, NATS JetStream as
// the broker. If a server is not installed, SQLite or a webhook takes its place, and the program says so. SQLite prepares no
// transactions, so without PostgreSQL and MariaDB nothing is paid. The flags -orders, -payments, -stock and -broker choose. The producer, the relays and the consumers are processes of this program.
//
// The exit code is 1 if the books do not balance.
package main

import (
	"cmp"
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
	signal.Ignore(syscall.SIGPIPE) // which would end the program before its servers have ended
	out := &output{os.Stdout, stop}
	err := error(nil)
	if len(os.Args) == 2 && os.Args[1] == childArg {
		err = beChild(ctx, os.Stdin, out)
	} else {
		err = run(ctx, os.Args[1:], out)
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

// output stops the program when nobody reads what it prints.
type output struct {
	io.Writer
	stop context.CancelFunc
}

func (o *output) Write(text []byte) (int, error) {
	n, err := o.Writer.Write(text)
	if err != nil {
		o.stop()
	}
	return n, err
}

// errBooks says that the books do not balance.
var errBooks = errors.New("the books do not balance")

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("order", flag.ContinueOnError)
	w := wanted{}
	flags.StringVar(&w.orders, "orders", "", "the database of orders: postgres, mariadb, sqlite or auto")
	flags.StringVar(&w.payments, "payments", "", "the database of payments: postgres, mariadb, none or auto")
	flags.StringVar(&w.stock, "stock", "", "the database of the stock: postgres, mariadb, sqlite or auto")
	flags.StringVar(&w.broker, "broker", "", "the broker: nats, redis, webhook or auto")
	n := flags.Int("n", 250, "how many customers order; every fifth of their cards is declined")
	naive := flags.Bool("naive", false, "leave out dtx, the outbox and the inbox")
	cut := flags.String("cut", "", "cut an arrow: "+cutNames()+" or all")
	tx := flags.String("tx", "", "show a problem of two-phase commit, on PostgreSQL: "+faultNames()+" or all")
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
	problems, partitioned, err := faultsOf(*tx)
	if err != nil {
		return err
	}
	w, err = w.complete(*cut, *tx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute+time.Duration(*n)*200*time.Millisecond)
	defer cancel()
	p, err := openPlaces(ctx, w, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if len(chosen) > 0 {
		return showCuts(ctx, p, chosen, out)
	}
	if *tx != "" {
		return showFaults(ctx, p, problems, partitioned, out)
	}
	return keepBooks(ctx, p, settings{N: *n, Naive: *naive, Odds: 60}, out)
}

// complete chooses kinds for the flags that were left out. Cuts are about messages, so nothing is paid there.
func (w wanted) complete(cut, tx string) (wanted, error) {
	usual := wanted{auto, auto, auto, auto}
	switch {
	case cut != "" && tx != "":
		return w, errors.New("-tx and -cut are not allowed together")
	case cut != "":
		usual.payments = nowhere.name
	case tx != "" && w != wanted{}:
		return w, errors.New("-tx runs on PostgreSQL and a webhook: -orders, -payments, -stock and -broker are not allowed beside it")
	case tx != "":
		usual = wanted{postgres.name, postgres.name, postgres.name, hook.name}
	}
	return wanted{cmp.Or(w.orders, usual.orders), cmp.Or(w.payments, usual.payments), cmp.Or(w.stock, usual.stock), cmp.Or(w.broker, usual.broker)}, nil
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
	fmt.Fprintf(out, "\n%d customers ordered. Killed meanwhile: the producer %d times, relays %d times, consumers %d times.\n",
		s.N, t.kills[producer], t.kills[relay], t.kills[consumer])
	if b.haveAccounts && !s.Naive {
		fmt.Fprintf(out, "The producer was killed %d times between the phases. Recovery committed %d payments, and rolled back %d.\n",
			t.between, t.committed, t.rolledBack)
	}
	fmt.Fprintln(out)
	b.print(out)
	if !b.balance() {
		return errBooks
	}
	return nil
}
