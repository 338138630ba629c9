package rabbit

import (
	"context"
	"errors"
	"net"
	"net/url"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// DialFunc makes a connection, and returns when ctx ends. A publisher calls it again when the connection is lost. The
// publisher closes the connection, so each call returns a new one. Do not enable the recovery of the client library.
type DialFunc func(ctx context.Context) (*amqp.Connection, error)

// Dial returns a function that connects to the broker at an AMQP URL. The config is as for [amqp.DialConfig]. The
// heartbeat, by default 10 s, decides when a broker that says nothing counts as lost: after 3 of them.
func Dial(brokerURL string, config amqp.Config) DialFunc {
	return func(ctx context.Context) (*amqp.Connection, error) {
		c := config
		var stop func() bool
		if c.Dial == nil {
			c.Dial = func(network, addr string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, addr)
				if err == nil { // the handshake heeds no ctx
					stop = context.AfterFunc(ctx, func() { conn.Close() }) //nolint:errcheck // it is given up
				}
				return conn, err
			}
		}
		conn, err := amqp.DialConfig(brokerURL, c)
		if stop != nil && !stop() && err == nil {
			conn.CloseDeadline(time.Now()) //nolint:errcheck // ctx has closed it
			err = ctx.Err()
		}
		return conn, err
	}
}

// redact hides URLs, which may have a password. The text of a URL that is not valid may have a part of it too.
func redact(err error) error {
	if errors.As(err, new(*url.Error)) {
		return errors.New("the URL of the broker is not valid")
	}
	return err
}
