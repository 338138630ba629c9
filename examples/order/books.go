package main

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// books compare both databases. No process reads both of them while customers order.
type books struct {
	orders, ordered       int // orders that are committed, and their units
	deliveries, delivered int // rows of deliveries, and their units
	taken                 int // units that are gone from the stock

	lost        int // orders without a delivery
	twice       int // orders with several deliveries
	withoutRow  int // deliveries of orders that were never committed
	unconfirmed int // orders that wait for the confirmation
	disordered  int // first deliveries before that of an earlier order of the same item
}

func (b books) balance() bool {
	return b.lost+b.twice+b.withoutRow+b.unconfirmed+b.disordered == 0 && b.ordered == b.delivered && b.delivered == b.taken
}

func (b books) print(out io.Writer) {
	fmt.Fprintf(out, "%-36s %6s %6s\n", "BOOKS", "rows", "units")
	fmt.Fprintf(out, "%-36s %6d %6d\n", "orders", b.orders, b.ordered)
	fmt.Fprintf(out, "%-36s %6d %6d\n", "deliveries", b.deliveries, b.delivered)
	fmt.Fprintf(out, "%-36s %6s %6d\n", "gone from the stock", "", b.taken)
	for _, line := range []struct {
		text string
		n    int
	}{
		{"orders that were never delivered", b.lost},
		{"orders that were delivered again", b.twice},
		{"deliveries without an order", b.withoutRow},
		{"orders without a confirmation", b.unconfirmed},
		{"first deliveries out of order", b.disordered},
	} {
		fmt.Fprintf(out, "%-36s %6d\n", line.text, line.n)
	}
	if b.balance() {
		fmt.Fprintln(out, "\nThe books balance.")
	} else {
		fmt.Fprintln(out, "\nTHE BOOKS DO NOT BALANCE.")
	}
}

// order is a row of orders.
type order struct {
	ID    string
	Item  string
	Place int // among the orders of the item
	Units int
	state string
}

// readBooks reads both databases.
func readBooks(ctx context.Context, orders, stock *database) (b books, err error) {
	placed := make(map[string]order)
	rows, err := orders.db.QueryContext(ctx, "SELECT id, item, place, units, state FROM orders")
	if err != nil {
		return b, err
	}
	for rows.Next() {
		var o order
		if err := rows.Scan(&o.ID, &o.Item, &o.Place, &o.Units, &o.state); err != nil {
			return b, errors.Join(err, rows.Close())
		}
		placed[o.ID] = o
		b.orders, b.ordered = b.orders+1, b.ordered+o.Units
		if o.state != "delivered" {
			b.unconfirmed++
		}
	}
	if err := rows.Err(); err != nil {
		return b, err
	}
	var left int
	if err := stock.db.QueryRowContext(ctx, "SELECT SUM(units) FROM stock").Scan(&left); err != nil {
		return b, err
	}
	b.taken = items*supply - left
	if rows, err = stock.db.QueryContext(ctx, "SELECT order_id, item, units FROM deliveries ORDER BY item, n"); err != nil {
		return b, err
	}
	seen, last := make(map[string]int), make(map[string]int) // deliveries by order; the last place by item
	for rows.Next() {
		var d order
		if err := rows.Scan(&d.ID, &d.Item, &d.Units); err != nil {
			return b, errors.Join(err, rows.Close())
		}
		b.deliveries, b.delivered = b.deliveries+1, b.delivered+d.Units
		o, known := placed[d.ID]
		switch seen[d.ID]++; {
		case !known:
			b.withoutRow++
		case seen[d.ID] == 2:
			b.twice++
		case seen[d.ID] == 1 && o.Place < last[d.Item]:
			b.disordered++
		case seen[d.ID] == 1:
			last[d.Item] = o.Place
		}
	}
	for id := range placed {
		if seen[id] == 0 {
			b.lost++
		}
	}
	return b, rows.Err()
}
