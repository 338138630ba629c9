package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/outbox"
)

const relayHelp = `Send the messages of a table to a broker until a signal comes. Any number of processes may do so for one
table: they share its 16 partitions. All of them use the same --store, whose locks hold the partitions. Without
--store the locks are in a file of the user, which relays of other users and machines do not see. Relays of
other tables may have the same --store, but not those of a copy of the database.

--to says where messages go, or else the variable PAWL_TO. The topic of a message is

  amqp:, amqps:       the routing key in RabbitMQ, of --exchange
  nats:               the subject in NATS JetStream
  redis:, rediss:     the name of the stream; also redis+cluster:, redis+sentinel:
  http:, https:       the header Ce-Type: all messages are posted to the URL as CloudEvents, and
                      signed with the secret of PAWL_WEBHOOK_SECRET, as Standard Webhooks describes;
                      without a secret they are not signed

A message whose outcome is unknown is sent again, so a message may come twice. Consumers recognise repeats by
the ID, see package inbox. The messages of a key are sent one after another. A message that fails --attempts
times is dead. A refusal counts. A failure of unknown outcome, such as a time-out, counts only if the broker
confirms other messages meanwhile. The later messages of a dead one's key wait until "pawl outbox requeue".
A broker or database that is away makes no message dead, and nor does a broker that takes no messages. Only
--attempts 1 or 2 differ: a connection that breaks may count for the messages under way. The relay tries again, and
prints each reason once a minute. When no message waits after a failure any more, the relay says that the broker
confirms messages again. A failed message is tried again within a minute, or within two if very many have failed.

--listen serves HTTP:

  GET /healthz    200 while the process runs
  GET /readyz     200 when the database answers within a second, and the table is there
  GET /metrics    figures for Prometheus: what was sent, how much waits and since when

INT, TERM, HUP or QUIT ends the relay. Messages that are under way are interrupted, and are sent again by the next relay.`

// relayCommand is what the user chose for a relay.
type relayCommand struct {
	box    *box
	store  *store
	broker brokerOptions
	opts   outbox.RelayOptions
	listen string
}

func newOutboxRelay(b *box, s *store) *cobra.Command {
	r := &relayCommand{box: b, store: s}
	cmd := &cobra.Command{
		Use:     "relay",
		Short:   "Send the messages to a broker",
		Long:    relayHelp,
		Example: "  pawl outbox relay --db sqlite:orders.db --to nats://localhost --listen 127.0.0.1:8766",
		Args:    takes(0, 0),
		RunE: verb(func(cmd *cobra.Command, _ []string) error {
			if err := r.complete(); err != nil {
				return err
			}
			return r.relay(cmd.Context(), cmd.OutOrStdout())
		}),

		PersistentPreRunE: func(*cobra.Command, []string) error { return nil }, // a relay has a store
	}
	f := cmd.Flags()
	f.StringVar(&r.broker.url, "to", "", "URL of the broker (default: $PAWL_TO)")
	f.StringVar(&r.broker.exchange, "exchange", "", "the exchange of RabbitMQ (default: the default exchange)")
	f.StringVar(&r.broker.source, "source", "", "the source of the CloudEvents of a webhook (default: /)")
	f.Int64Var(&r.broker.maxLen, "maxlen", 0, "about how many entries a Redis stream keeps; 0 keeps all")
	f.StringVar(&r.listen, "listen", "", "the address of the metrics; port 0 is any free port (default: none)")
	f.IntVar(&r.opts.Window, "window", 64, "messages of a partition that are under way, 1 to 1,000")
	f.IntVar(&r.opts.Hold, "hold", outbox.Partitions, "partitions that this process holds at most, 1 to 16")
	f.IntVar(&r.opts.MaxAttempts, "attempts", 20, "failures that count after which a message is dead, 1 to 1,000,000")
	f.BoolVar(&r.opts.ContinueKeys, "continue-keys", false, "send the messages of a key also after a dead one")
	f.DurationVar(&r.opts.Timeout, "timeout", 30*time.Second, "the time of one sending")
	f.DurationVar(&r.opts.Poll, "poll", 500*time.Millisecond, "the time between looks at the table")
	f.DurationVar(&r.opts.Resend, "resend", 0, "send a confirmed message again after so long, unless it is done; 0 is never")
	f.DurationVar(&r.opts.Retention, "retention", 7*24*time.Hour, "how long confirmed messages stay in the table; with --resend only done messages go, and all others stay")
	return cmd
}

// complete checks the options without a database, a store or a broker.
func (r *relayCommand) complete() error {
	const day = 24 * time.Hour
	o := &r.opts
	if r.listen != "" {
		if err := checkListen("--listen", r.listen); err != nil {
			return err
		}
	}
	switch {
	case r.broker.maxLen < 0:
		return usageError("--maxlen is %d: 0 or more are allowed", r.broker.maxLen)
	case o.Resend != 0 && (o.Resend < time.Second || o.Resend > 366*day):
		return usageError("--resend is %v: 0 (never), and %v to %v are allowed", o.Resend, time.Second, 366*day)
	}
	return cmp.Or(
		inRange("--window", o.Window, 1, 1000),
		inRange("--hold", o.Hold, 1, outbox.Partitions),
		inRange("--attempts", o.MaxAttempts, 1, 1_000_000),
		inRange("--timeout", o.Timeout, 100*time.Millisecond, time.Hour),
		inRange("--poll", o.Poll, 10*time.Millisecond, time.Hour),
		inRange("--retention", o.Retention, time.Second, 3653*day),
	)
}

// relay sends until a signal comes.
func (r *relayCommand) relay(ctx context.Context, w io.Writer) error {
	location, err := databaseURL(r.box.db)
	if err != nil {
		return err
	}
	db, err := relayDatabase(ctx, location)
	if err != nil {
		return unmade(badDatabase(err))
	}
	defer soon(closeWithin, func() { db.Close() }) //nolint:errcheck // the process ends
	table, err := outbox.New(db.Dialect, &outbox.Options{Table: r.box.table})
	if err != nil {
		return fmt.Errorf("--table: %w", err)
	}
	locks, err := r.store.location()
	if err != nil {
		return err
	}
	ctx, stop := untilSignal(ctx)
	defer stop()
	to, err := r.broker.open(ctx)
	if err != nil {
		return bySignal(ctx, err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
		defer cancel()
		to.close(ctx) //nolint:errcheck // the process ends
	}()
	err = r.store.operating(ctx, func(ctx context.Context, client *pawl.Client) error {
		log, opts := &relayLog{}, r.opts
		opts.OnError = log.failed
		relay, err := table.Relay(client, db.DB, to, &opts)
		if err != nil {
			return err
		}
		r.begins(locks)
		return r.run(ctx, &relayService{relay: relay, table: table, db: db.DB, name: r.box.table}, log, w)
	})
	if err != nil {
		return bySignal(ctx, unmade(err))
	}
	return nil
}

// begins tells the operator the choices whose mistakes would show nowhere else.
func (r *relayCommand) begins(locks string) {
	if r.store.chosen() {
		news("the partitions are locked in %s: all relays of the table need this store", place(locks))
	} else {
		news("the partitions are locked in %s: relays of other users or machines do not see these locks, and need one --store with this relay", place(locks))
	}
	if scheme, _, _ := strings.Cut(r.broker.location(), ":"); strings.HasPrefix(scheme, "http") && os.Getenv("PAWL_WEBHOOK_SECRET") == "" {
		news("the webhooks are not signed: PAWL_WEBHOOK_SECRET is missing")
	}
}

// relayDatabase is a database that may be away now. A file that is missing now is a mistake of the operator.
func relayDatabase(ctx context.Context, location string) (*open.Database, error) {
	if strings.HasPrefix(location, "sqlite:") {
		return open.OpenDatabase(engine.Existing(ctx), location)
	}
	db, err := open.PrepareDatabase(location)
	if err == nil && !strings.Contains(location, "connections=") {
		db.DB.SetMaxOpenConns(outbox.Partitions + 4)
		db.DB.SetMaxIdleConns(outbox.Partitions + 4)
	}
	return db, err
}

// run runs the relay beside its service, until ctx or one of them ends.
func (r *relayCommand) run(ctx context.Context, s *relayService, log *relayLog, w io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	parts := []func() error{
		func() error { return s.relay.Run(ctx) },
		func() error { return log.watch(ctx, s.relay) },
	}
	if r.listen != "" {
		listener, err := net.Listen("tcp", r.listen)
		if err != nil {
			return &exitError{exitUnavailable, fmt.Errorf("--listen: %w", err)}
		}
		defer listener.Close()
		if _, err := fmt.Fprintf(w, "http://%s\n", listener.Addr()); err != nil {
			return fmt.Errorf("print the address: %w", err)
		}
		parts = append(parts, func() error { return serveUntil(ctx, listener, s.handler(), func() { s.ending.Store(true) }) })
	}
	ended := make(chan error, len(parts))
	for _, part := range parts {
		go func() { ended <- part() }()
	}
	var all []error
	for range parts {
		all = append(all, <-ended)
		stop() // the other parts
	}
	return errors.Join(all...)
}

// relayLog tells an operator the news of a relay.
type relayLog struct {
	errorLog
	troubled atomic.Bool // the operator has read that the broker fails, and not yet that the broker has recovered
}

// failed prints an error. Errors of many messages for one reason are one line, with the ID of the first message.
func (l *relayLog) failed(err error) {
	inner := errors.Unwrap(err)
	if inner == nil || !strings.HasPrefix(err.Error(), "outbox: publish message ") {
		l.errorLog.failed(err)
		return
	}
	if l.failedBy(inner.Error(), err) && !errors.Is(err, outbox.ErrRefused) { // a broker that refuses a message works
		l.troubled.Store(true)
	}
}

// watch prints the changes that matter to an operator, until ctx ends.
func (l *relayLog) watch(ctx context.Context, relay *outbox.Relay) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	told, before := outbox.RelayStats{}, outbox.RelayStats{}
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		// In this order: a failure that was printed is in the figures.
		troubled, is := l.troubled.Load(), relay.Stats()
		if is.Partitions != told.Partitions && is.Partitions == before.Partitions { // they come and go while relays share
			news("this relay holds %d of %d partitions", is.Partitions, outbox.Partitions)
			told.Partitions = is.Partitions
		}
		if is.Dead > before.Dead {
			news("%d messages are dead since this relay began (try: pawl outbox ls --state dead)", is.Dead)
		}
		if is.Hung > 0 && before.Hung == 0 {
			news("a sending does not return, though its time is over")
		}
		if n%int(sameWhile/time.Second) == 0 {
			l.rest()
		}
		if troubled && !is.Failing {
			news("the broker confirms messages again")
			l.troubled.Store(false)
		}
		before = is
	}
}
