package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/outbox"
)

// The forms of a naive producer.
const (
	commitFirst = "commit, then send"
	sendFirst   = "send, then commit"
)

// takeNaively takes an order without dtx and an outbox. A process that dies between the two steps forgets the second, or repeats
// the first.
func (p *shop) takeNaively(ctx context.Context, customer int, o order, declined bool) error {
	form := p.Form
	if form == "" {
		form = []string{commitFirst, sendFirst}[customer%2]
	}
	err := p.inTx(ctx, func(tx *sql.Tx) (err error) {
		if o, err = p.insert(ctx, tx, o); err != nil {
			return err
		}
		if form == sendFirst {
			if err := p.payNaively(ctx, o); err != nil {
				return err
			}
			if err := p.send(ctx, o); err != nil {
				return err
			}
			p.die(afterSend)
		}
		if declined {
			return errDeclined
		}
		return nil
	})
	if err != nil || form == sendFirst {
		return err
	}
	p.die(afterCommit)
	if err := p.payNaively(ctx, o); err != nil {
		return err
	}
	return p.send(ctx, o)
}

// payNaively takes the payment in a transaction of its own.
func (p *shop) payNaively(ctx context.Context, o order) error {
	if p.payments == nil {
		return nil
	}
	if err := p.payments.inTx(ctx, func(tx *sql.Tx) error { return p.payments.pay(ctx, tx, o) }); err != nil {
		return err
	}
	p.die(afterPayment)
	return nil
}

// sendNaively sends until the broker confirms. Each message gets an ID of its own, because nothing has kept an ID.
func sendNaively(ctx context.Context, broker outbox.Publisher, stream string, o order) error {
	payload, err := json.Marshal(o)
	if err != nil {
		return err
	}
	for {
		m := outbox.Message{ID: outbox.NewID(), Topic: stream, Key: o.Item, Payload: payload, Time: time.Now(), Attempt: 1}
		err := broker.Publish(ctx, m)
		if err == nil || ctx.Err() != nil || errors.Is(err, outbox.ErrRefused) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// consumeNaively is a consumer without an inbox: it commits, and acknowledges.
func (w *warehouse) consumeNaively(ctx context.Context, source inbox.Source) error {
	feed, err := source.Open(ctx, false)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		feed.Close(ctx) //nolint:errcheck // its deliveries go to others anyway
	}()
	for {
		all, err := feed.Receive(ctx, 10)
		if err != nil {
			return err
		}
		for _, d := range all {
			if err := w.inTx(ctx, func(tx *sql.Tx) error { return w.deliver(ctx, tx, d.Message()) }); err != nil {
				return err
			}
			w.die(beforeAck)
			// A naive sender may wait for the answer in a transaction, which the confirmation would wait for.
			go w.delivered(context.WithoutCancel(ctx), d.Message())
			if err := d.Ack(ctx); err != nil {
				return err
			}
		}
	}
}
