package rabbit

import (
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/pawl-go/pawl/outbox"
)

// HeaderKey is the header of AMQP that has Message.Key. A message without a key lacks it.
const HeaderKey = "Pawl-Key"

// headerCount is the header in which a quorum queue counts deliveries.
const headerCount = "x-delivery-count"

const maxShort = 255 // bytes of a short string of AMQP

// encode makes the message of AMQP, or refuses what the client library could not write.
func (p *Publisher) encode(m outbox.Message) (sending, error) {
	x := sending{exchange: p.opts.Exchange, key: m.Topic, mandatory: !p.opts.AllowUnroutable}
	if p.opts.Route != nil {
		x.exchange, x.key = p.opts.Route(m)
	}
	x.message = amqp.Publishing{MessageId: m.ID, Timestamp: m.Time, DeliveryMode: amqp.Persistent, Headers: make(amqp.Table, len(m.Headers)+1), Body: m.Payload}
	for name, value := range m.Headers {
		switch {
		case strings.EqualFold(name, HeaderKey):
			return x, fmt.Errorf("%w: header %q is of the outbox", outbox.ErrRefused, name)
		case name == headerCount:
			return x, fmt.Errorf("%w: header %q is of RabbitMQ", outbox.ErrRefused, name)
		case name == "Content-Type" && value != "": // another spelling, or an empty value, would not come back from the property
			x.message.ContentType = value
		case len(name) > maxShort:
			return x, fmt.Errorf("%w: the name of a header has %d bytes, and AMQP has %d", outbox.ErrRefused, len(name), maxShort)
		default:
			x.message.Headers[name] = value
		}
	}
	if m.Key != "" {
		x.message.Headers[HeaderKey] = m.Key
	}
	for what, text := range map[string]string{"exchange": x.exchange, "routing key": x.key, "ID": m.ID, "content type": x.message.ContentType} {
		if len(text) > maxShort {
			return x, fmt.Errorf("%w: the %s has %d bytes, and AMQP has %d", outbox.ErrRefused, what, len(text), maxShort)
		}
	}
	return x, nil
}
