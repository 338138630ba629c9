package pgengine

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/sqlengine"
	"github.com/pawl-go/pawl/internal/turn"
)

// listener is the one connection on which an Engine is told of its claims, and
// renews its sessions. A listener is not of the pool, because it would be missing there for ever,
// and renewals would wait for requests that hang there.
type listener struct {
	config  *pgx.ConnConfig
	prepare func(context.Context, *pgx.ConnConfig) error // nil: config is all
	ready   func(context.Context, *pgx.Conn) error       // of a new connection; nil: nothing
	notify  func(ctx context.Context, channel, payload string) error
	ask     func() // asks for all waiters
	receive func(sqlengine.Message) bool
	channel string

	// heard says that a message that was sent by the pool has come. Through a pooler
	// no message comes.
	heard atomic.Bool

	life context.Context
	end  context.CancelFunc
	done sync.WaitGroup

	turn    turn.Turn // of the call that starts it
	started bool

	mu      sync.Mutex
	pending []*request         // renewals
	reading context.CancelFunc // interrupts the reader; nil: there is no connection
}

// request is a query that is to be made on the connection.
type request struct {
	ctx    context.Context
	query  string
	args   []any
	row    func(func(...any) error) error
	answer chan error
}

// A connection that says nothing for so long is asked whether it lives.
const silence = 5 * time.Second

func newListener(config *pgx.ConnConfig) *listener {
	l := &listener{config: config, channel: "pawl_" + rand.Text(), turn: turn.New(1)}
	config.OnNotification = nil // it may be that of a connection of the user's
	config.RuntimeParams["client_encoding"] = "UTF8"
	l.life, l.end = context.WithCancel(context.Background())
	return l
}

// attach has a server told by this listener, and its sessions renewed.
func (l *listener) attach(server *sqlengine.Server) {
	pool := server.Query
	server.Channel, server.Listen, server.Told = l.channel, l.start, l.heard.Load
	server.Renew = func(ctx context.Context, query string, args []any, row func(func(...any) error) error) error {
		err := l.query(ctx, query, args, row)
		if errors.Is(err, errAway) || hasCode(err, noRight) { // a database of database/sql does not tell which role its connections take
			return pool(ctx, query, args, row)
		}
		return err
	}
	l.notify = func(ctx context.Context, channel, payload string) error {
		return pool(ctx, "SELECT pg_notify($1, $2)::text", append(slices.Clone(server.Args), channel, payload), func(func(...any) error) error { return nil })
	}
}

// start listens from the first session on: a program that only looks needs no connection
// for that.
func (l *listener) start(ctx context.Context) error {
	if err := l.turn.Take(ctx); err != nil {
		return err
	}
	defer l.turn.Give()
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
	if l.ready != nil {
		err = l.ready(ctx, conn)
	}
	if err == nil {
		_, err = conn.Exec(ctx, "LISTEN "+pgx.Identifier{l.channel}.Sanitize())
	}
	if err == nil {
		err = conn.Ping(ctx) // the server shows others the last query of a connection
	}
	if err != nil {
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

// run reads messages, and reconnects when the connection is lost. Messages
// sent meanwhile are lost too: waiters ask until a message has come, and once
// after it.
func (l *listener) run(conn *pgx.Conn) {
	for conn != nil {
		nonce := rand.Text()
		ctx, cancel := context.WithCancel(l.life)
		l.done.Go(func() { l.prove(ctx, nonce) })
		l.read(conn, nonce)
		cancel()
		l.heard.Store(false)
		l.hangUp(conn)
		conn = l.again()
	}
}

// prove sends the message that says that messages arrive. The message goes through the
// pool, because a connection's message to itself arrives behind a pooler, too.
func (l *listener) prove(ctx context.Context, nonce string) {
	for pause := 10 * time.Millisecond; l.notify(ctx, l.channel, nonce) != nil; pause = min(2*pause, time.Second) {
		if turn.Pause(ctx, pause) != nil {
			return
		}
	}
}

// again returns nil when it is not wanted any more.
func (l *listener) again() *pgx.Conn {
	for pause := 10 * time.Millisecond; l.life.Err() == nil; pause = min(2*pause, time.Second) {
		ctx, cancel := context.WithTimeout(l.life, silence)
		conn, err := l.connect(ctx)
		cancel()
		if err == nil {
			return conn
		}
		turn.Pause(l.life, pause) //nolint:errcheck // the loop ends with it
	}
	return nil
}

// read returns when the connection is lost or not wanted any more.
func (l *listener) read(conn *pgx.Conn, nonce string) {
	defer l.away()
	for l.life.Err() == nil {
		ctx, cancel := context.WithTimeout(l.life, silence)
		if asked := l.next(cancel); asked != nil {
			cancel()
			asked.answer <- ask(conn.Query, asked.ctx, asked.query, asked.args, asked.row)
			if conn.IsClosed() {
				return
			}
			continue
		}
		n, _ := conn.WaitForNotification(ctx) // its error is that of ctx, or of the connection
		why := ctx.Err()
		cancel()
		switch {
		case n != nil && n.Payload == nonce:
			l.heard.Store(true)
			l.ask()
		case n != nil:
			l.receive(message(n.Payload))
		case conn.IsClosed() || why == nil:
			return
		case errors.Is(why, context.DeadlineExceeded) && l.ping(conn) != nil:
			return
		}
	}
}

func (l *listener) ping(conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(l.life, silence)
	defer cancel()
	return conn.Ping(ctx)
}

// next returns a pending request, or nil and notes how to interrupt the
// reader.
func (l *listener) next(interrupt context.CancelFunc) *request {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reading = interrupt
	if len(l.pending) == 0 {
		return nil
	}
	first := l.pending[0]
	l.pending = l.pending[1:]
	return first
}

// errAway says that there is no connection at the moment.
var errAway = errors.New("the listener is away")

func (l *listener) away() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reading = nil
	for _, r := range l.pending {
		r.answer <- errAway
	}
	l.pending = nil
}

// query asks on the connection, if there is one.
func (l *listener) query(ctx context.Context, query string, args []any, row func(func(...any) error) error) error {
	r := &request{ctx, query, args, row, make(chan error, 1)}
	l.mu.Lock()
	if l.reading == nil {
		l.mu.Unlock()
		return errAway
	}
	l.pending = append(l.pending, r)
	l.reading()
	l.mu.Unlock()
	select {
	case err := <-r.answer:
		return err
	case <-ctx.Done():
	}
	l.mu.Lock()
	i := slices.Index(l.pending, r)
	if i >= 0 {
		l.pending = slices.Delete(l.pending, i, i+1)
	}
	l.mu.Unlock()
	if i >= 0 {
		return ctx.Err()
	}
	return <-r.answer // it is being made, and ends with ctx
}

// message reads a message of the procedures: token, gone, session, claim.
func message(payload string) sqlengine.Message {
	f := append(strings.SplitN(payload, " ", 4), "", "", "", "")
	token, _ := fence.ParseToken(f[0]) // 0, as in a message that is none: the claim is to be looked at
	return sqlengine.Message{Token: token, Gone: f[1] == "1", Session: f[2], Claim: f[3]}
}

func (l *listener) stop() {
	l.end()
	l.turn <- struct{}{} // a call that starts it comes first
	l.started = true
	<-l.turn
	l.done.Wait()
}
