package millbox

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/outbox"
)

// EnqueueOptions are the settings of [NewEnqueuer].
type EnqueueOptions struct {
	// Key returns Message.Key. Default: the metadata Pawl-Key, or no key if there is none.
	Key func(topic string, m *message.Message) string
}

// Enqueuer is a publisher of Watermill that puts messages into an outbox. An Enqueuer is for one transaction, and is as safe for
// concurrent use as that is. Create it with [NewEnqueuer].
type Enqueuer struct {
	table *outbox.Table
	tx    dialect.DB
	key   func(string, *message.Message) string
}

var _ message.Publisher = (*Enqueuer)(nil)

// NewEnqueuer returns a publisher for the caller's transaction, which the publisher neither begins nor ends. The transaction is a *sql.Tx,
// or one of pgx by package pgxtx. Nil opts are the defaults. The error matches [pawl.ErrInvalid].
func NewEnqueuer(table *outbox.Table, tx dialect.DB, opts *EnqueueOptions) (*Enqueuer, error) {
	if table == nil || tx == nil {
		return nil, fmt.Errorf("watermill: %w: table or tx is nil", pawl.ErrInvalid)
	}
	e := &Enqueuer{table, tx, func(_ string, m *message.Message) string { return m.Metadata.Get(MetadataKey) }}
	if opts != nil && opts.Key != nil {
		e.key = opts.Key
	}
	return e, nil
}

// Publish implements [message.Publisher]. All messages are enqueued by one INSERT, or none is: 0 to 1,000 messages. The relay sends the
// messages if the transaction is committed, and only then. The ctx of the first message bounds the INSERT. A message without a
// UUID gets one. The metadata Pawl-Key and Pawl-Time are no headers, because the publisher of the relay sets them.
func (e *Enqueuer) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	all := make([]outbox.Message, len(messages))
	for i, m := range messages {
		all[i] = outbox.Message{ID: m.UUID, Topic: topic, Key: e.key(topic, m), Payload: m.Payload, Headers: make(map[string]string, len(m.Metadata))}
		for name, value := range m.Metadata {
			if !reserved(name) {
				all[i].Headers[name] = value
			}
		}
	}
	ids, err := e.table.Enqueue(messages[0].Context(), e.tx, all...)
	if err != nil {
		return err
	}
	for i, m := range messages {
		m.UUID = ids[i]
	}
	return nil
}

// Close implements [message.Publisher]. Close does nothing, because the transaction is the caller's.
func (e *Enqueuer) Close() error { return nil }
