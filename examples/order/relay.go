package main

import (
	"context"
	"errors"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/outbox"
)

// ttl is short, so that others follow a killed process soon. Programs take the default.
const ttl = time.Second

// locks returns a client of a store of locks.
func locks(ctx context.Context, url string) (*pawl.Client, func(), error) {
	store, err := open.Open(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	client, err := pawl.New(ctx, store, &pawl.Options{TTL: ttl})
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	return client, func() {
		client.Close(context.WithoutCancel(ctx)) //nolint:errcheck // its session ends anyway
		store.Close()
	}, nil
}

// relayAll sends the messages of the outbox.
func relayAll(ctx context.Context, s *settings) error {
	db, err := openDatabase(ctx, s.Orders)
	if err != nil {
		return err
	}
	defer db.db.Close()
	box, err := outbox.New(db.dialect, nil)
	if err != nil {
		return err
	}
	client, end, err := locks(ctx, s.Locks)
	if err != nil {
		return err
	}
	defer end()
	broker, endBroker, err := openPublisher(ctx, s)
	if err != nil {
		return err
	}
	defer endBroker()
	// All times are short, so that the example ends soon. Programs take the defaults, and a Resend of minutes.
	r, err := box.Relay(client, db.db, mortal{broker, s}, &outbox.RelayOptions{Resend: time.Second, Poll: 50 * time.Millisecond,
		Rescan: 500 * time.Millisecond, Balance: 500 * time.Millisecond, Timeout: 5 * time.Second,
		Backoff: 20 * time.Millisecond, MaxBackoff: 200 * time.Millisecond})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// mortal is a publisher whose process may die when the broker has confirmed and the relay does not know yet.
type mortal struct {
	outbox.Publisher
	*settings
}

func (m mortal) Publish(ctx context.Context, message outbox.Message) error {
	err := m.Publisher.Publish(ctx, message)
	if err == nil {
		m.die(afterConfirm)
	}
	return err
}
