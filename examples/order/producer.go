package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/pawl-go/pawl/outbox"
)

// shop is the producer.
type shop struct {
	*settings
	*database
	box  *outbox.Table
	send func(context.Context, order) error // of the naive producer
}

// errDeclined rolls an order back.
var errDeclined = errors.New("the card is declined")

// produce lets each customer order once, and says when it is through. A process that goes on after another one finds its orders.
func produce(ctx context.Context, s *settings, out io.Writer) error {
	db, err := openDatabase(ctx, s.Orders)
	if err != nil {
		return err
	}
	defer db.db.Close()
	box, err := outbox.New(db.dialect, nil)
	if err != nil {
		return err
	}
	p := &shop{settings: s, database: db, box: box}
	if s.Naive {
		broker, end, err := openPublisher(ctx, s)
		if err != nil {
			return err
		}
		defer end()
		p.send = func(ctx context.Context, o order) error { return sendNaively(ctx, broker, s.Stream, o) }
	}
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, s.Shop, http.HandlerFunc(p.hear)) }()
	for i := range s.N {
		if err := p.take(ctx, i); err != nil {
			return fmt.Errorf("customer %d: %w", i, err)
		}
	}
	if _, err := fmt.Fprintln(out, "through"); err != nil {
		return err
	}
	return <-ended
}

// take takes the order of a customer, unless an earlier process has taken it.
func (p *shop) take(ctx context.Context, customer int) error {
	o := order{ID: fmt.Sprintf("order-%05d", customer), Item: item(customer % items), Units: 1 + customer%3}
	var known int
	err := p.db.QueryRowContext(ctx, p.bind("SELECT COUNT(*) FROM orders WHERE id = ?"), o.ID).Scan(&known)
	if err != nil || known > 0 {
		return err
	}
	declined := p.Declined || customer%5 == 4
	if p.Naive {
		err = p.takeNaively(ctx, customer, o, declined)
	} else {
		err = p.inTx(ctx, func(tx *sql.Tx) error { return p.order(ctx, tx, o, declined) })
	}
	if err != nil && !errors.Is(err, errDeclined) {
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
func (p *shop) order(ctx context.Context, tx *sql.Tx, o order, declined bool) error {
	o, err := p.insert(ctx, tx, o)
	if err != nil {
		return err
	}
	payload, err := json.Marshal(o)
	if err != nil {
		return err
	}
	// The ID of the message is that of the order. The relay polls every 50 ms, so nobody wakes it.
	if _, err := p.box.Enqueue(ctx, tx, outbox.Message{ID: o.ID, Topic: p.Stream, Key: o.Item, Payload: payload}); err != nil {
		return err
	}
	if declined {
		return errDeclined
	}
	return nil
}

func (p *shop) insert(ctx context.Context, tx *sql.Tx, o order) (order, error) {
	if _, err := tx.ExecContext(ctx, p.bind("UPDATE items SET ordered = ordered + 1 WHERE item = ?"), o.Item); err != nil {
		return o, err
	}
	if err := tx.QueryRowContext(ctx, p.bind("SELECT ordered FROM items WHERE item = ?"), o.Item).Scan(&o.Place); err != nil {
		return o, err
	}
	_, err := tx.ExecContext(ctx, p.bind("INSERT INTO orders VALUES (?, ?, ?, ?, 'placed')"), o.ID, o.Item, o.Place, o.Units)
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
