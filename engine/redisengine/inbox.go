package redisengine

import (
	"context"
	"errors"

	"github.com/redis/rueidis"
)

// inbox is a connection of its own that is subscribed to one channel, so that
// other commands keep the client's fast path and a message is handled by the
// goroutine that read it.
type inbox struct {
	broken <-chan error // says once why the connection ended
	close  func()
}

// subscribe returns when the server has confirmed. The connection is closed in
// the end, not given back to the pool: to unsubscribe it would take an answer
// of a server that may be frozen.
func (e *Engine) subscribe(ctx context.Context, channel string, receive func(message string)) (*inbox, error) {
	conn, err := e.dedicate(ctx)
	if err != nil {
		return nil, err
	}
	confirmed := make(chan struct{}, 1)
	broken := conn.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage: func(m rueidis.PubSubMessage) { receive(m.Message) },
		OnSubscription: func(s rueidis.PubSubSubscription) {
			if s.Kind == "subscribe" {
				select {
				case confirmed <- struct{}{}:
				default:
				}
			}
		},
	})
	if err := conn.Do(ctx, conn.B().Subscribe().Channel(channel).Build()).Error(); err != nil {
		conn.Close()
		return nil, err
	}
	select {
	case <-confirmed:
		return &inbox{broken, conn.Close}, nil
	case err := <-broken:
		conn.Close()
		return nil, errors.Join(errors.New("connection lost"), err)
	case <-ctx.Done():
		conn.Close()
		return nil, context.Cause(ctx)
	}
}

// dedicate takes a connection, for which the client does not look at a context
// while it dials.
func (e *Engine) dedicate(ctx context.Context) (rueidis.DedicatedClient, error) {
	made := make(chan rueidis.DedicatedClient)
	go func() {
		conn, _ := e.client.Dedicate()
		select {
		case made <- conn:
		case <-ctx.Done():
			conn.Close()
		}
	}()
	select {
	case conn := <-made:
		return conn, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
