package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/sync/errgroup"
)

// cut is an arrow of the way of a message. The arrow is cut once, in the way of a single order.
type cut struct {
	name, text    string
	naive, cured  settings
	without, with string // what the books have to say
}

var cuts = []cut{
	{"rollback", "the message is sent, and the transaction is rolled back",
		settings{Form: sendFirst, Declined: true}, settings{Declined: true},
		"DELIVERED WITHOUT AN ORDER", "no order, no delivery"},
	{"unsent", "the order is committed, and the producer is killed before it sends",
		settings{Form: commitFirst, Die: afterCommit}, settings{Die: afterCommit},
		"NEVER DELIVERED", "delivered once, confirmed"},
	{"sent-twice", "the broker has the message, and the sender is killed before it notes that",
		settings{Form: sendFirst, Die: afterSend}, settings{Die: afterConfirm},
		"DELIVERED TWICE", "delivered once, confirmed"},
	{"consumed-twice", "the delivery is committed, and the consumer is killed before it acknowledges",
		settings{Form: commitFirst, Die: beforeAck}, settings{Die: beforeAck},
		"DELIVERED TWICE", "delivered once, confirmed"},
	{"completion", "the confirmation is lost on its way back",
		settings{Form: commitFirst, Die: reply}, settings{Die: reply},
		"delivered once, NEVER CONFIRMED", "delivered once, confirmed"},
}

func cutNames() string {
	var names []string
	for _, c := range cuts {
		names = append(names, c.name)
	}
	return strings.Join(names, ", ")
}

func cutsOf(name string) (chosen []cut, err error) {
	for _, c := range cuts {
		if name == c.name || name == "all" {
			chosen = append(chosen, c)
		}
	}
	if name != "" && len(chosen) == 0 {
		return nil, fmt.Errorf("-cut is %q: %s or all are allowed", name, cutNames())
	}
	return chosen, nil
}

// showCuts cuts each of the arrows, and fails if a cut does not come out as it should.
func showCuts(ctx context.Context, p *places, chosen []cut, out io.Writer) error {
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(2 * len(cuts))
	found := make([]string, 2*len(chosen))
	for i, c := range chosen {
		for j, s := range []settings{c.naive, c.cured} {
			s.N, s.Naive = 1, j == 0
			all.Go(func() error {
				t, err := p.trial(ctx, s)
				if err != nil {
					return err
				}
				slices.Sort(t.roles)
				t.roles = slices.Compact(t.roles) // one process of each is enough
				t.expected = []string{c.without, c.with}[j]
				b, err := t.run(ctx, false)
				found[2*i+j] = b.words()
				return err
			})
		}
	}
	if err := all.Wait(); err != nil {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "\nCUT\twithout outbox and inbox\twith them")
	var wrong []string
	for i, c := range chosen {
		fmt.Fprintf(table, "%s\t%s\t%s\n", c.name, found[2*i], found[2*i+1])
		if found[2*i] != c.without || found[2*i+1] != c.with {
			wrong = append(wrong, c.name)
		}
	}
	table.Flush()
	fmt.Fprintln(out)
	for _, c := range chosen {
		fmt.Fprintf(out, "%s: %s.\n", c.name, c.text)
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%w as they should: %s", errBooks, strings.Join(wrong, ", "))
	}
	return nil
}

// words say what became of one order.
func (b books) words() string {
	text := map[bool]string{true: "delivered once", false: "NEVER DELIVERED"}[b.lost == 0]
	switch {
	case b.withoutRow > 0:
		return "DELIVERED WITHOUT AN ORDER"
	case b.orders+b.deliveries == 0:
		return "no order, no delivery"
	case b.twice > 0:
		return "DELIVERED TWICE"
	case b.lost > 0:
		return text
	case b.unconfirmed > 0:
		return text + ", NEVER CONFIRMED"
	case !b.balance():
		return text + ", and the books do not balance"
	}
	return text + ", confirmed"
}
