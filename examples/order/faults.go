package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
)

// fault is a problem of two-phase commit. The fault is shown in one order, by hand and with the cure.
type fault struct {
	name, text  string
	byHand, dtx func(context.Context, *stage) (string, error) // what came of it
	bad, good   string                                        // should come of it
}

var faults = []fault{
	{"blocked", "the coordinator hangs between the phases, and another customer wants the same item",
		blocked(true), blocked(false),
		"ANOTHER CUSTOMER STILL WAITS", "another customer orders"},
	{"coordinator", "the coordinator is killed between the phases",
		killed(true), killed(false),
		"THE ROWS STAY LOCKED", "another process rolls it back"},
	{"half", "the network to the payments fails when the commit is sent",
		half(true), half(false),
		"ORDERED AND NOT PAID", "ordered and paid"},
	{"conservative", "the database of the stock is away",
		allOrNothing, voteOfTwo,
		noOrder, "ordered and paid, delivered later"},
}

// stage is where faults are shown.
type stage struct {
	*places
	messaged func() (side, error) // is called once, because two faults show it
}

const partition = "partition" // the same network fault for both, see showPartition

func faultNames() string {
	var names []string
	for _, f := range faults {
		names = append(names, f.name)
	}
	return strings.Join(append(names, partition), ", ")
}

func faultsOf(name string) (chosen []fault, withPartition bool, err error) {
	for _, f := range faults {
		if name == f.name || name == "all" {
			chosen = append(chosen, f)
		}
	}
	withPartition = name == partition || name == "all"
	if name != "" && len(chosen) == 0 && !withPartition {
		return nil, false, fmt.Errorf("-tx is %q: %s or all are allowed", name, faultNames())
	}
	return chosen, withPartition, nil
}

// showFaults shows each of the faults, and fails if a fault does not come out as it should.
func showFaults(ctx context.Context, p *places, chosen []fault, withPartition bool, out io.Writer) error {
	all, ctx := errgroup.WithContext(ctx)
	found := make([][2]string, len(chosen))
	st := &stage{p, sync.OnceValues(func() (side, error) { return messaged(ctx, p) })}
	for i, f := range chosen {
		for j, show := range []func(context.Context, *stage) (string, error){f.byHand, f.dtx} {
			all.Go(func() (err error) {
				if found[i][j], err = show(ctx, st); err != nil {
					err = fmt.Errorf("%s: %w", f.name, err)
				}
				return err
			})
		}
	}
	var sides [2]side
	if withPartition {
		all.Go(func() (err error) { sides[0], err = across(ctx, p, settings{N: severalCustomers}); return err })
		all.Go(func() (err error) { sides[1], err = st.messaged(); return err })
	}
	if err := all.Wait(); err != nil {
		return err
	}
	wrong := printFaults(out, chosen, found)
	if withPartition && !printSides(out, sides) {
		wrong = append(wrong, partition)
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%w as they should: %s", errBooks, strings.Join(wrong, ", "))
	}
	return nil
}

func printFaults(out io.Writer, chosen []fault, found [][2]string) (wrong []string) {
	if len(chosen) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "\nFAULT\ttwo-phase commit by hand\twith the cure")
	for i, f := range chosen {
		fmt.Fprintf(table, "%s\t%s\t%s\n", f.name, found[i][0], found[i][1])
		if found[i] != [2]string{f.bad, f.good} {
			wrong = append(wrong, f.name)
		}
	}
	table.Flush()
	fmt.Fprintln(out)
	for _, f := range chosen {
		fmt.Fprintf(out, "%s: %s.\n", f.name, f.text)
	}
	return wrong
}

// between returns a clerk whose transaction is between its phases, and goes no further: the first request of the second phase is on its
// way. By hand that is a commit, and with dtx the decision.
func (sc *scene) between(ctx context.Context) (*hired, error) {
	second := `INSERT INTO "pawl_dtx_decided"`
	if sc.ByHand {
		second = commitPrepared
	}
	reached := sc.toOrders.hold(second)
	h, err := sc.hire(sc.settings, true)
	if err != nil {
		return nil, err
	}
	select {
	case <-reached:
		return h, nil
	case line := <-h.lines:
		return nil, fmt.Errorf("the clerk says %q", line)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// show makes a scene in which one customer orders, and ends it.
func show(byHand bool, in func(context.Context, *scene) (string, error)) func(context.Context, *stage) (string, error) {
	return func(ctx context.Context, st *stage) (text string, err error) {
		sc, err := st.scene(ctx, settings{N: 1, ByHand: byHand, Stock: unused})
		if err != nil {
			return "", err
		}
		defer func() { err = errors.Join(err, sc.end()) }()
		return in(ctx, sc)
	}
}

// sameItem is the number of a customer who wants the item of the first.
const sameItem = 2 * items

// patience is how long an end of a transaction is waited for. By hand there is none.
func (sc *scene) patience() time.Duration {
	if sc.ByHand {
		return stuck
	}
	return takes
}

func blocked(byHand bool) func(context.Context, *stage) (string, error) {
	return show(byHand, func(ctx context.Context, sc *scene) (string, error) {
		if _, err := sc.between(ctx); err != nil {
			return "", err
		}
		s := sc.settings
		s.First = sameItem
		other, err := sc.hire(s, false)
		if err != nil {
			return "", err
		}
		switch line, err := other.hear(ctx, sc.patience()); line {
		case ordered:
			return "another customer orders", err
		case "":
			return "ANOTHER CUSTOMER STILL WAITS", err
		default:
			return line, err
		}
	})
}

func killed(byHand bool) func(context.Context, *stage) (string, error) {
	return show(byHand, func(ctx context.Context, sc *scene) (string, error) {
		h, err := sc.between(ctx)
		if err != nil {
			return "", err
		}
		h.fire()
		sc.toOrders.sever()
		s := sc.settings
		s.N = 0
		if _, err := sc.hire(s, false); err != nil {
			return "", err
		}
		finished, err := sc.finished(ctx, sc.patience())
		if err != nil || !finished {
			return "THE ROWS STAY LOCKED", err
		}
		b, err := sc.readBooks(ctx)
		text := b.account()
		if text == noOrder {
			text = "another process rolls it back"
		}
		return text, err
	})
}

func half(byHand bool) func(context.Context, *stage) (string, error) {
	return show(byHand, func(ctx context.Context, sc *scene) (string, error) {
		severed := sc.toPayments.severAt(commitPrepared)
		h, err := sc.hire(sc.settings, true)
		if err != nil {
			return "", err
		}
		if err := h.meets(ctx, severed); err != nil {
			return "", err
		}
		sc.toPayments.heal()
		if _, err := sc.finished(ctx, sc.patience()); err != nil {
			return "", err
		}
		b, err := sc.readBooks(ctx)
		return b.account(), err
	})
}

const (
	noOrder        = "NO ORDER"
	commitPrepared = "COMMIT PREPARED"
)

// account says what became of orders and payments.
func (b books) account() string {
	switch {
	case b.orders+b.payments == 0:
		return noOrder
	case b.unpaid > 0:
		return "ORDERED AND NOT PAID"
	case b.paidForNil > 0:
		return "PAID AND NOT ORDERED"
	case b.prepared > 0:
		return "ordered and paid, AND STILL PREPARED"
	}
	return "ordered and paid"
}
