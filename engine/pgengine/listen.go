package pgengine

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/sqlengine"
)

// listener is the one connection on which an Engine is told of its claims. It
// is not of the pool: it would be missing there for ever.
type listener struct {
	config    *pgx.ConnConfig
	prepare   func(context.Context, *pgx.ConnConfig) error // nil: config is all
	channel   string
	engine    *sqlengine.Engine
	connected atomic.Bool

	life context.Context
	end  context.CancelFunc
	done sync.WaitGroup

	turn    chan struct{} // of one place: who has put something in may start it
	started bool
}

// A connection that says nothing for so long is asked whether it lives.
const silence = 5 * time.Second

func newListener(config *pgx.ConnConfig, channel string) *listener {
	l := &listener{config: config, channel: channel, turn: make(chan struct{}, 1)}
	config.OnNotification = nil // it may be that of a connection of the user's
	l.life, l.end = context.WithCancel(context.Background())
	return l
}

// start listens from the first session on: who only looks needs no connection
// for that.
func (l *listener) start(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if l.started {
		return nil
	}
	conn, err := l.connect(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return engine.Unavailable("listen", err)
	}
	l.started = true
	l.done.Go(func() { l.run(conn) })
	return nil
}

func (l *listener) connect(ctx context.Context) (*pgx.Conn, error) {
	config := l.config
	if l.prepare != nil {
		config = config.Copy()
		if err := l.prepare(ctx, config); err != nil {
			return nil, err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{l.channel}.Sanitize()); err != nil {
		l.hangUp(conn)
		return nil, err
	}
	return conn, nil
}

func (l *listener) hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn.Close(ctx) //nolint:errcheck // there is nothing to lose
}

// run reads messages, and connects again when the connection is lost. What was
// sent meanwhile is lost too, so then it asks for all who wait.
func (l *listener) run(conn *pgx.Conn) {
	for conn != nil {
		l.connected.Store(true)
		l.read(conn)
		l.connected.Store(false)
		l.hangUp(conn)
		conn = l.again()
	}
}

// again returns nil when it is not wanted any more.
func (l *listener) again() (conn *pgx.Conn) {
	for pause := 10 * time.Millisecond; l.life.Err() == nil; pause = min(2*pause, time.Second) {
		ctx, cancel := context.WithTimeout(l.life, silence)
		var err error
		if conn == nil {
			conn, err = l.connect(ctx)
		}
		if err == nil {
			err = l.engine.Ask(ctx) // that may need another connection of the pool
		}
		cancel()
		if err == nil {
			return conn
		}
		select {
		case <-time.After(pause):
		case <-l.life.Done():
		}
	}
	if conn != nil {
		l.hangUp(conn)
	}
	return nil
}

// read returns when the connection is lost or not wanted any more.
func (l *listener) read(conn *pgx.Conn) {
	for l.life.Err() == nil {
		ctx, cancel := context.WithTimeout(l.life, silence)
		n, err := conn.WaitForNotification(ctx)
		quiet := ctx.Err() != nil
		cancel()
		if n != nil {
			l.engine.Receive(message(n.Payload))
		}
		switch {
		case err == nil:
		case !quiet || conn.IsClosed():
			return
		default:
			ctx, cancel := context.WithTimeout(l.life, silence)
			err := conn.Ping(ctx)
			cancel()
			if err != nil {
				return
			}
		}
	}
}

// message reads what the procedures tell: token, gone, session, claim.
func message(payload string) sqlengine.Message {
	f := append(strings.SplitN(payload, " ", 4), "", "", "", "")
	token, _ := fence.ParseToken(f[0]) // 0, as in a message that is none: the claim is to be looked at
	return sqlengine.Message{Token: token, Gone: f[1] == "1", Session: f[2], Claim: f[3]}
}

func (l *listener) stop() {
	l.end()
	l.turn <- struct{}{} // whoever starts it comes first
	l.started = true
	<-l.turn
	l.done.Wait()
}
