package main

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// books compare the databases. No process reads all of them while customers order.
type books struct {
	orders, ordered       int // orders that are committed, and their units
	deliveries, delivered int // rows of deliveries, and their units
	taken                 int // units that are gone from the stock
	payments, paid        int // rows of payments, and their units
	received              int // units on the accounts

	lost        int // orders without a delivery
	twice       int // orders with several deliveries
	withoutRow  int // deliveries of orders that were never committed
	unconfirmed int // orders that wait for the confirmation
	disordered  int // first deliveries before that of an earlier order of the same item

	unpaid     int // orders without a payment, where orders are paid
	paidTwice  int // orders with several payments
	paidForNil int // payments of orders that were never committed
	prepared   int // transactions that are prepared and not finished

	haveAccounts bool // orders are paid
}

func (b books) balance() bool {
	if b.haveAccounts && (b.ordered != b.paid || b.paid != b.received) {
		return false
	}
	return b.unpaid+b.paidTwice+b.paidForNil+b.prepared == 0 && b.lost+b.twice+b.withoutRow+b.unconfirmed+b.disordered == 0 && b.ordered == b.delivered && b.delivered == b.taken
}

func (b books) print(out io.Writer) {
	fmt.Fprintf(out, "%-36s %6s %6s\n", "BOOKS", "rows", "units")
	fmt.Fprintf(out, "%-36s %6d %6d\n", "orders", b.orders, b.ordered)
	if b.haveAccounts {
		fmt.Fprintf(out, "%-36s %6d %6d\n", "payments", b.payments, b.paid)
		fmt.Fprintf(out, "%-36s %6s %6d\n", "received on the accounts", "", b.received)
	}
	fmt.Fprintf(out, "%-36s %6d %6d\n", "deliveries", b.deliveries, b.delivered)
	fmt.Fprintf(out, "%-36s %6s %6d\n", "gone from the stock", "", b.taken)
	type line struct {
		text string
		n    int
	}
	var lines []line
	if b.haveAccounts {
		lines = []line{{"orders that were never paid", b.unpaid}, {"orders that were paid again", b.paidTwice},
			{"payments without an order", b.paidForNil}, {"branches that are still prepared", b.prepared}}
	}
	for _, line := range append(lines, []line{
		{"orders that were never delivered", b.lost},
		{"orders that were delivered again", b.twice},
		{"deliveries without an order", b.withoutRow},
		{"orders without a confirmation", b.unconfirmed},
		{"first deliveries out of order", b.disordered},
	}...) {
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

// readBooks reads all databases.
func (t *trial) readBooks(ctx context.Context) (b books, err error) {
	placed := make(map[string]order)
	rows, err := t.orders.db.QueryContext(ctx, "SELECT id, item, place, units, state FROM orders")
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
	if err := t.readPayments(ctx, &b, placed); err != nil {
		return b, err
	}
	return b, t.readDeliveries(ctx, &b, placed)
}

// readPayments compares the payments with the orders.
func (t *trial) readPayments(ctx context.Context, b *books, placed map[string]order) error {
	if t.payments == nil {
		return nil
	}
	b.haveAccounts = true
	for _, d := range []*database{t.orders, t.payments} {
		n, err := d.prepared(ctx)
		if err != nil {
			return err
		}
		b.prepared += n
	}
	if err := t.payments.db.QueryRowContext(ctx, "SELECT SUM(units) FROM accounts").Scan(&b.received); err != nil {
		return err
	}
	rows, err := t.payments.db.QueryContext(ctx, "SELECT order_id, units FROM payments")
	if err != nil {
		return err
	}
	seen := make(map[string]int) // payments by order
	for rows.Next() {
		var id string
		var units int
		if err := rows.Scan(&id, &units); err != nil {
			return errors.Join(err, rows.Close())
		}
		b.payments, b.paid = b.payments+1, b.paid+units
		_, known := placed[id]
		switch seen[id]++; {
		case !known:
			b.paidForNil++
		case seen[id] == 2:
			b.paidTwice++
		}
	}
	for id := range placed {
		if seen[id] == 0 {
			b.unpaid++
		}
	}
	return rows.Err()
}

// readDeliveries compares the stock with the orders.
func (t *trial) readDeliveries(ctx context.Context, b *books, placed map[string]order) error {
	var left int
	if err := t.stock.db.QueryRowContext(ctx, "SELECT SUM(units) FROM stock").Scan(&left); err != nil {
		return err
	}
	b.taken = items*supply - left
	rows, err := t.stock.db.QueryContext(ctx, "SELECT order_id, item, units FROM deliveries ORDER BY item, n")
	if err != nil {
		return err
	}
	seen, last := make(map[string]int), make(map[string]int) // deliveries by order; the last place by item
	for rows.Next() {
		var d order
		if err := rows.Scan(&d.ID, &d.Item, &d.Units); err != nil {
			return errors.Join(err, rows.Close())
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
	return rows.Err()
}
