package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
	"github.com/pawl-go/pawl/outbox"
)

// shop takes orders: a producer or a clerk.
type shop struct {
	*settings
	*database                 // of orders
	payments, stock *database // nil: not of the transaction
	box             *outbox.Table
	coordinator     *dtx.Coordinator // nil: there are no payments, or dtx is left out
	resources       []*dtx.Resource
	send            func(context.Context, order) error // of the naive producer
}

var (
	// errDeclined rolls an order back.
	errDeclined = errors.New("the card is declined")
	// errKnown says that the customer has ordered before.
	errKnown = errors.New("the order is known")
)

func (p *shop) openBox() (err error) {
	p.box, err = outbox.New(p.dialect, nil)
	return err
}

// produce lets each customer order once, and says when it is through. A process that goes on after another one finds its orders.
func produce(ctx context.Context, s *settings) error {
	p, err := openShop(ctx, s)
	if err != nil {
		return err
	}
	defer p.close()
	if s.Naive {
		broker, end, err := openPublisher(ctx, s)
		if err != nil {
			return err
		}
		defer end()
		p.send = func(ctx context.Context, o order) error { return sendNaively(ctx, broker, s.Stream, o) }
	}
	listener, err := listen(ctx, s.Shop)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, listener, http.HandlerFunc(p.hear)) }()
	for i := range s.N {
		if err := p.take(ctx, i); err != nil {
			return fmt.Errorf("customer %d: %w", i, err)
		}
	}
	if _, err := fmt.Fprintln(s.out, "through"); err != nil {
		return err
	}
	return <-ended
}

// take takes the order of a customer, unless an earlier process has taken it.
func (p *shop) take(ctx context.Context, customer int) error {
	o := newOrder(customer)
	known, err := p.known(ctx, p.db, o)
	if err != nil || known {
		return err
	}
	declined := p.Declined || customer%5 == 4
	switch {
	case p.Naive:
		err = p.takeNaively(ctx, customer, o, declined)
	case p.coordinator != nil:
		err = p.together(ctx, o, declined)
	default:
		err = p.inTx(ctx, func(tx *sql.Tx) error {
			if err := p.order(ctx, tx, o); err != nil || !declined {
				return err
			}
			return errDeclined
		})
	}
	if err != nil && !errors.Is(err, errDeclined) && !errors.Is(err, errKnown) {
		return err
	}
	if err == nil {
		p.die(afterCommit)
	}
	select {
	case <-time.After(10 * time.Millisecond): // until the next customer comes
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// order writes the order and its message in one transaction. The row of the item is locked from the first statement on.
// So the messages of an item are enqueued in the order of the orders.
func (p *shop) order(ctx context.Context, tx dialect.DB, o order) error {
	o, err := p.insert(ctx, tx, o)
	if err != nil {
		return err
	}
	payload, err := json.Marshal(o)
	if err != nil {
		return err
	}
	// The ID of the message is that of the order. The relay polls every 50 ms, so nobody wakes it.
	_, err = p.box.Enqueue(ctx, tx, outbox.Message{ID: o.ID, Topic: p.Stream, Key: o.Item, Payload: payload})
	return err
}

func newOrder(customer int) order {
	return order{ID: fmt.Sprintf("order-%05d", customer), Item: item(customer % items), Units: 1 + customer%3}
}

func (p *shop) known(ctx context.Context, db dialect.DB, o order) (bool, error) {
	var n int
	err := dialect.New(p.dialect).Add("SELECT COUNT(*) FROM orders WHERE id = ").Value(o.ID).Scan(ctx, db, &n)
	return n > 0, err
}

// insert writes an order. The commit of an earlier process may be under way: then the row of the item is locked until the order is known.
func (p *shop) insert(ctx context.Context, tx dialect.DB, o order) (order, error) {
	if _, err := tx.ExecContext(ctx, p.bind("UPDATE items SET ordered = ordered + 1 WHERE item = ?"), o.Item); err != nil {
		return o, err
	}
	known, err := p.known(ctx, tx, o)
	if err == nil && known {
		err = errKnown
	}
	if err == nil {
		err = dialect.New(p.dialect).Add("SELECT ordered FROM items WHERE item = ").Value(o.Item).Scan(ctx, tx, &o.Place)
	}
	if err != nil {
		return o, err
	}
	_, err = tx.ExecContext(ctx, p.bind("INSERT INTO orders VALUES (?, ?, ?, ?, 'placed')"), o.ID, o.Item, o.Place, o.Units)
	return o, err
}

// hear gets a confirmation: the order is delivered and the message is done, in one transaction.
func (p *shop) hear(w http.ResponseWriter, r *http.Request) {
	err := p.inTx(r.Context(), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(r.Context(), p.bind("UPDATE orders SET state = 'delivered' WHERE id = ?"), r.FormValue("order"))
		if err != nil || p.Naive {
			return err
		}
		return p.box.Complete(r.Context(), tx, r.FormValue("message"))
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}
