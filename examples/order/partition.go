package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// severalCustomers order while the network between the shop and the warehouse is cut.
const severalCustomers = 3

// hasty is how long a customer waits for an order.
const hasty = 500 * time.Millisecond

// side is what one way made of the partition: the books meanwhile, and after it.
type side struct{ during, after books }

// allOrNothing takes an order by hand, in one transaction of all databases, of which that of the stock is away.
func allOrNothing(ctx context.Context, st *stage) (text string, err error) {
	s, err := across(ctx, st.places, settings{N: 1, ByHand: true})
	return s.during.account(), err
}

// voteOfTwo lets only orders and payments agree. The stock hears by the outbox, when it can.
func voteOfTwo(_ context.Context, st *stage) (text string, err error) {
	s, err := st.messaged()
	text = s.during.account()
	if s.during.lost > 0 && s.after.balance() {
		text += ", delivered later"
	}
	return text, err
}

// across takes orders in one transaction of all databases while the stock cannot be reached, and again after that.
func across(ctx context.Context, p *places, s settings) (is side, err error) {
	s.WithStock, s.Patience, s.Late = true, hasty, true
	sc, err := p.scene(ctx, s)
	if err != nil {
		return is, err
	}
	defer func() { err = errors.Join(err, sc.end()) }()
	h, err := sc.hire(sc.settings, true)
	if err != nil {
		return is, err
	}
	if err := h.await(ctx); err != nil {
		return is, err
	}
	sc.toStock.sever()
	for _, b := range []*books{&is.during, &is.after} {
		if err := h.say(goOn); err != nil {
			return is, err
		}
		if err := h.await(ctx); err != nil {
			return is, err
		}
		if *b, err = sc.readBooks(ctx); err != nil {
			return is, err
		}
		sc.toStock.heal()
	}
	return is, nil
}

// messaged takes orders with their payments, and tells the stock by the outbox. The same network is cut, and heals when all
// customers have ordered.
func messaged(ctx context.Context, p *places) (is side, err error) {
	sc, err := p.scene(ctx, settings{N: severalCustomers})
	if err != nil {
		return is, err
	}
	defer func() { err = errors.Join(err, sc.end()) }()
	sc.toWarehouse.sever()
	sc.toShop.sever()
	sc.roles = []string{producer, relay, consumer}
	sc.route = func(s *settings) {
		switch s.Role {
		case relay:
			s.Broker = by(sc.toWarehouse, s.Broker)
		case consumer:
			s.Shop = by(sc.toShop, s.Shop)
		}
	}
	sc.meanwhile = func(ctx context.Context) (err error) {
		is.during, err = sc.readBooks(ctx)
		sc.toWarehouse.heal()
		sc.toShop.heal()
		return err
	}
	is.after, err = sc.run(ctx, false)
	return is, err
}

// printSides reports whether each way has kept what it promises.
func printSides(out io.Writer, sides [2]side) bool {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "\nPARTITION\ttwo-phase commit over all\toutbox")
	agree := func(b books) string { return map[bool]string{true: "yes", false: "NO"}[b.balance()] }
	for _, row := range []struct {
		text string
		of   func(side) any
	}{
		{"customers", func(side) any { return severalCustomers }},
		{"orders meanwhile", func(s side) any { return s.during.orders }},
		{"deliveries meanwhile", func(s side) any { return s.during.deliveries }},
		{"the books balance meanwhile", func(s side) any { return agree(s.during) }},
		{"orders after it", func(s side) any { return s.after.orders }},
		{"deliveries after it", func(s side) any { return s.after.deliveries }},
		{"the books balance after it", func(s side) any { return agree(s.after) }},
	} {
		fmt.Fprintf(table, "%s\t%v\t%v\n", row.text, row.of(sides[0]), row.of(sides[1]))
	}
	table.Flush()
	fmt.Fprintln(out, "\npartition: nothing passes between the shop and the warehouse, in both ways alike.")
	consistent, available := sides[0], sides[1]
	return consistent.during.orders == 0 && consistent.during.balance() && consistent.after.orders == severalCustomers && consistent.after.balance() &&
		available.during.orders == severalCustomers && available.during.lost == severalCustomers && available.after.orders == severalCustomers && available.after.balance()
}
