package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/url"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem/sqlidem"
	"github.com/pawl-go/pawl/inbox"
)

// warehouse is the consumer.
type warehouse struct {
	*settings
	*database
	box       *inbox.Inbox
	seen      *sqlidem.Store
	confirmer *confirmer
}

// consume lowers the stock.
func consume(ctx context.Context, s *settings) error {
	db, err := openDatabase(ctx, s.Stock)
	if err != nil {
		return err
	}
	defer db.db.Close()
	w := &warehouse{settings: s, database: db, confirmer: &confirmer{settings: s}}
	if w.box, err = inbox.New("stock", nil); err != nil {
		return err
	}
	if w.seen, err = sqlidem.New(db.dialect, nil); err != nil {
		return err
	}
	source, end, err := openSource(ctx, s)
	if err != nil {
		return err
	}
	defer end()
	if s.Naive {
		return w.consumeNaively(ctx, source)
	}
	client, endLocks, err := locks(ctx, s.StockLocks)
	if err != nil {
		return err
	}
	defer endLocks()
	// One process at a time reads, so that the items keep their order. Without Single all processes do.
	opts := &inbox.ConsumerOptions{Single: client.Mutex("stock"), Grace: time.Second, Reply: func(ctx context.Context, m inbox.Message) error {
		w.die(beforeAck)
		w.delivered(ctx, m)
		return nil
	}}
	c, err := w.box.Consumer(db.db, w.seen, source, w.deliver, opts)
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// deliver is the effect of a message, in the transaction that keeps its ID.
func (w *warehouse) deliver(ctx context.Context, tx *sql.Tx, m inbox.Message) error {
	o, err := orderOf(m)
	if err != nil {
		return err
	}
	return w.lower(ctx, tx, o)
}

// lower takes the units of an order from the stock.
func (d *database) lower(ctx context.Context, tx dialect.DB, o order) error {
	if _, err := tx.ExecContext(ctx, d.bind("UPDATE stock SET units = units - ?, delivered = delivered + 1 WHERE item = ?"), o.Units, o.Item); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, d.bind("INSERT INTO deliveries SELECT item, delivered, ?, ? FROM stock WHERE item = ?"), o.ID, o.Units, o.Item)
	return err
}

func orderOf(m inbox.Message) (o order, err error) {
	if err := json.Unmarshal(m.Payload, &o); err != nil {
		return o, fmt.Errorf("%w: message %q is no order: %w", inbox.ErrRefused, m.ID, err)
	}
	return o, nil
}

// delivered comes after the commit, also after a repeat that the inbox has absorbed: the first confirmation may be lost.
func (w *warehouse) delivered(ctx context.Context, m inbox.Message) {
	if o, err := orderOf(m); err == nil {
		w.confirmer.confirm(ctx, url.QueryEscape(m.ID), o)
	}
}
